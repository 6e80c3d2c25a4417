package main

import (
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/internal/lab/cloudtest"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/rogpeppe/go-internal/testscript"
)

// scriptCommands are what the scripts need beside the program itself.
var scriptCommands = map[string]func(ts *testscript.TestScript, neg bool, args []string){
	"appears":   scriptAppears,
	"cloud":     scriptCloud,
	"collector": scriptCollector,
	"context":   scriptContext,
	"await":     scriptAwait,
	"exits":     scriptExits,
	"free":      scriptFree,
	"hold":      scriptHold,
	"llm":       scriptLLM,
	"nats":      scriptNATS,
	"pasted":    scriptPasted,
	"row":       scriptRow,
}

// scriptPatience bounds what scripts wait for, far above what a loaded machine needs.
const scriptPatience = time.Minute

// scriptLook is the time between two looks at what scripts wait for.
const scriptLook = 50 * time.Millisecond

// scriptExits runs a program and checks its exit code:
//
//	exits 2 stage process nowhere.jsonl
func scriptExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits code program [arg…]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := exitCode(ts, args[1:]); got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

func exitCode(ts *testscript.TestScript, args []string) int {
	err := ts.Exec(args[0], args[1:]...)
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return e.ExitCode()
	}
	ts.Check(err)
	return 0
}

// scriptLLM serves the flaky LLM until the end of the script and puts its base URL into a variable:
//
//	llm LLM -errors 401=1
func scriptLLM(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: llm VARIABLE [-rate n] [-latency d] [-errors shares] [-refuse word] [-slow word] [-stall word] [-long bytes] [-answers n] [-after file]")
	}
	var cfg llmtest.Config
	answers, after := 0, ""
	flags := flag.NewFlagSet("llm", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Float64Var(&cfg.Rate, "rate", 0, "")
	flags.DurationVar(&cfg.Latency, "latency", 0, "")
	flags.Func("errors", "", func(s string) (err error) {
		cfg.Errors, err = llmtest.ParseErrors(s)
		return err
	})
	flags.Func("refuse", "", func(word string) error { // prompts with this word get a 400
		cfg.Script = func(c llmtest.Call) *llmtest.Step {
			if strings.Contains(c.Prompt, word) {
				return &llmtest.Step{Status: http.StatusBadRequest}
			}
			return nil
		}
		return nil
	})
	flags.Func("slow", "", func(word string) error { // prompts with this word are answered a second later than others
		cfg.Script = func(c llmtest.Call) *llmtest.Step {
			if strings.Contains(c.Prompt, word) {
				return &llmtest.Step{Delay: time.Second}
			}
			return nil
		}
		return nil
	})
	flags.Func("stall", "", func(word string) error { // prompts with this word get no answer before a file of that name is there
		cfg.Script = func(c llmtest.Call) *llmtest.Step {
			if _, err := os.Stat(ts.MkAbs(word)); err != nil && strings.Contains(c.Prompt, word) {
				return &llmtest.Step{Trouble: llmtest.Stall}
			}
			return nil
		}
		return nil
	})
	flags.Func("long", "", func(text string) error { // prompts with the word long get an answer of so many bytes
		size, err := strconv.Atoi(text)
		cfg.Script = func(c llmtest.Call) *llmtest.Step {
			if strings.Contains(c.Prompt, "long") {
				return &llmtest.Step{Body: fmt.Sprintf(`{"model":"m","choices":[{"message":{"content":%q},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}`,
					strings.Repeat("y", size))}
			}
			return nil
		}
		return err
	})
	flags.IntVar(&answers, "answers", 0, "")
	flags.StringVar(&after, "after", "", "") // no call is answered before this file is there
	ts.Check(flags.Parse(args[1:]))
	if answers > 0 { // and all later calls take for ever, which the file llm-stalled shows
		cfg.Script = func(c llmtest.Call) *llmtest.Step {
			if c.N < answers {
				return nil
			}
			_ = os.WriteFile(ts.MkAbs("llm-stalled"), []byte(c.Prompt), 0o600)
			return &llmtest.Step{Trouble: llmtest.Stall}
		}
	}
	llm, err := llmtest.New(cfg)
	ts.Check(err)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for after != "" && r.Context().Err() == nil {
			if _, err := os.Stat(ts.MkAbs(after)); err == nil {
				break
			}
			time.Sleep(scriptLook)
		}
		llm.ServeHTTP(w, r)
	}))
	ts.Defer(server.Close)
	ts.Setenv(args[0], server.URL+"/v1")
}

// scriptCloud serves a cloud that issues credentials, and an LLM that takes these alone, until
// the end of the script:
//
//	cloud -life 30s
//
// CLOUD is the address of its servers over HTTP, CLOUDTLS over HTTPS, and CLOUDHOST the
// first without a scheme. The files ca.pem, assertion, agent-token, service-account.json and
// external-account.json are what its clients need. SIGNED, BEDROCK and TOKEN are the
// base URLs of the LLM, the first two for signatures of AWS, the third for access tokens.
// While a file of the name "refuses" or "hangs" is there, the cloud does so; a file "revoke"
// has the LLM refuse what was issued before, and is removed.
func scriptCloud(ts *testscript.TestScript, neg bool, args []string) {
	flags := flag.NewFlagSet("cloud", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	life := flags.Duration("life", time.Hour, "")
	if err := flags.Parse(args); neg || err != nil {
		ts.Fatalf("usage: cloud [-life d]")
	}
	cloud := cloudtest.New()
	ts.Defer(cloud.Close)
	cloud.SetLife(*life)
	llm, err := llmtest.New(llmtest.Config{Latency: 20 * time.Millisecond})
	ts.Check(err)
	start := func(h http.Handler) *httptest.Server {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case exists(ts, "refuses"):
				cloud.Set(cloudtest.Refuses)
			case exists(ts, "hangs"):
				cloud.Set(cloudtest.Hangs)
			default:
				cloud.Set(cloudtest.Works)
			}
			if exists(ts, "revoke") {
				ts.Check(os.Remove(ts.MkAbs("revoke")))
				cloud.Revoke()
			}
			h.ServeHTTP(w, r)
		}))
		ts.Defer(server.Close)
		return server
	}
	plain, secure := start(cloud), start(cloud)
	plain.Start()
	secure.StartTLS()
	signed, token := start(cloud.Guard("bedrock", "eu-central-1", llm)), start(cloud.Guard("", "", llm))
	signed.Start()
	token.Start()
	for name, text := range map[string][]byte{
		"ca.pem":    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}),
		"assertion": []byte(cloudtest.Assertion), "agent-token": []byte(cloudtest.AgentToken),
		"service-account.json":  cloudtest.ServiceAccount(plain.URL + "/token"),
		"external-account.json": cloudtest.ExternalAccount(plain.URL+"/v1/token", ts.MkAbs("assertion")),
	} {
		ts.Check(os.WriteFile(ts.MkAbs(name), text, 0o600))
	}
	for name, value := range map[string]string{
		"CLOUD": plain.URL, "CLOUDHOST": strings.TrimPrefix(plain.URL, "http://"), "CLOUDTLS": secure.URL,
		"SIGNED": signed.URL + "/v1", "BEDROCK": signed.URL, "TOKEN": token.URL + "/v1", "TENANT": cloudtest.Tenant, "AWS_EC2_METADATA_DISABLED": "true",
	} {
		ts.Setenv(name, value)
	}
}

func exists(ts *testscript.TestScript, name string) bool {
	_, err := os.Stat(ts.MkAbs(name))
	return err == nil
}

// scriptHold keeps an address taken until the end of the script:
//
//	hold ADDR
func scriptHold(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: hold VARIABLE")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // immediate
	ts.Check(err)
	ts.Defer(func() { _ = listener.Close() })
	ts.Setenv(args[0], listener.Addr().String())
}

// scriptFree puts an address into a variable at which nothing listens:
//
//	free ADDR
func scriptFree(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: free VARIABLE")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // immediate
	ts.Check(err)
	ts.Setenv(args[0], listener.Addr().String())
	ts.Check(listener.Close())
}

// scriptRow appends a row of the given size to a file, one too large to be part of a script:
//
//	row rows.jsonl 2000000
func scriptRow(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: row file bytes")
	}
	size, err := strconv.Atoi(args[1])
	ts.Check(err)
	f, err := os.OpenFile(ts.MkAbs(args[0]), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	ts.Check(err)
	const frame = `{"text":""}`
	_, err = fmt.Fprintf(f, "{\"text\":\"%s\"}\n", strings.Repeat("x", size-len(frame)))
	ts.Check(errors.Join(err, f.Close()))
}

// scriptAwait runs a program until it succeeds and prints at least the given number of lines:
//
//	await 5 stage results
func scriptAwait(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: await lines program [arg…]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	scriptWait(ts, args[0]+" lines", func() bool {
		return exitCode(ts, args[1:]) == 0 && strings.Count(ts.ReadFile("stdout"), "\n") >= want
	})
}

// scriptAppears waits until a file is there:
//
//	appears stage-data/nats.json
func scriptAppears(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: appears file")
	}
	scriptWait(ts, args[0], func() bool {
		_, err := os.Stat(ts.MkAbs(args[0]))
		return err == nil
	})
}

func scriptWait(ts *testscript.TestScript, what string, is func() bool) {
	for began := time.Now(); time.Since(began) < scriptPatience; time.Sleep(scriptLook) {
		if is() {
			return
		}
	}
	ts.Fatalf("%s: not within %v", what, scriptPatience)
}

// scriptPasted runs a block of shell in the README of an example, as if it were pasted in
// the root of a clone. Blocks count from 1:
//
//	pasted photos 1
func scriptPasted(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: pasted example block")
	}
	if _, err := os.Lstat(ts.MkAbs("examples")); err != nil {
		ts.Check(os.Symlink(filepath.Join(filepath.Dir(ts.Getenv("EXAMPLE")), "examples"), ts.MkAbs("examples")))
	}
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	page := ts.ReadFile(filepath.Join("examples", args[0], "README.md"))
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(page, -1)
	if n < 1 || n > len(blocks) {
		ts.Fatalf("the page has %d blocks of shell", len(blocks))
	}
	ts.Check(ts.Exec("sh", "-e", "-c", blocks[n-1][1]))
}
