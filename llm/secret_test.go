package llm_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/llmtest"
)

func TestKeyIsReplacedForLaterCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var keys []string
		server, err := llmtest.New(llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			keys = append(keys, c.Header.Get("Authorization"))
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		pipe, stop := server.Pipe()
		defer stop()
		client, err := llm.NewProvider(llm.Mock, llm.ProviderConfig{BaseURL: pipe.URL(), DialContext: pipe.DialContext, APIKey: llm.NewSecret("one")})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		for _, key := range []string{"one", "two", ""} {
			if err := client.SetAPIKey(key); err != nil {
				t.Fatal(err)
			}
			if _, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"}); e != nil {
				t.Fatal(e)
			}
		}
		if got, want := strings.Join(keys, ","), "Bearer one,Bearer two,"; got != want {
			t.Errorf("keys sent: %q, want %q", got, want)
		}
		err = client.SetAPIKey("tail\n")
		if e, ok := errors.AsType[*llm.SettingError](err); !ok || e.Setting != "APIKey" || strings.Contains(err.Error(), "tail") {
			t.Errorf("SetAPIKey with a newline = %v", err)
		}
	})
}

func TestKeyIsNotPrinted(t *testing.T) {
	cfg := llm.ProviderConfig{BaseURL: "http://llm.test/v1", APIKey: llm.NewSecret(secret), Model: "m"}
	client, err := llm.NewProvider(llm.OpenAI, cfg)
	if err != nil {
		t.Fatal(err)
	}
	direct := llm.ClientConfig{APIKey: llm.NewSecret(secret), Model: "m"}
	key := llm.NewSecret(secret)
	type hidden struct { // of an unexported field, package fmt calls no method
		provider llm.ProviderConfig
		client   llm.ClientConfig
		pointer  *llm.ProviderConfig
		key      llm.Secret
		keys     []llm.Secret
		byName   map[string]llm.Secret
	}
	within := hidden{cfg, direct, &cfg, key, []llm.Secret{key}, map[string]llm.Secret{"key": key}}
	for _, v := range []any{client, cfg, &cfg, direct, struct{ C *llm.Client }{client}, key, &key, within, &within} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			text := fmt.Sprintf(verb, v)
			if strings.Contains(text, secret) || strings.Contains(text, fmt.Sprintf("%x", secret)) {
				t.Errorf("%s of %T holds the key: %s", verb, v, text)
			}
		}
	}
	holdsNoKey(t, "secret", key, &key, within, struct{ Key llm.Secret }{key})
	if got, want := fmt.Sprintf("%v %s %+v %d", key, &key, llm.Secret{}, key), "(set) (set) (not set) (set)"; got != want {
		t.Errorf("secrets print as %q, want %q", got, want)
	}
	if got, want := fmt.Sprint(client), "llm.Client{openai http://llm.test/v1 m}"; got != want {
		t.Errorf("client prints as %q, want %q", got, want)
	}
}

func TestPlaceholderKeysMayStandInAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _ := dial(t, llm.ProviderConfig{}, llmtest.Step{Body: `{"choices":[{"message":{"content":"run ollama, key ` + secret + `"}}]}`})
		x, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"})
		if e != nil {
			t.Fatal(e)
		}
		if want := "run ollama, key " + secret; x.Reply.Text != want {
			t.Errorf("the model's answer %q was changed to %q", want, x.Reply.Text)
		}
		if bytes.Contains(x.Response, []byte(secret)) {
			t.Errorf("the key is in the recorded response %s", x.Response)
		}
	})
}

// TestKeyIsNowhereInWhatAServerRepeats lets every provider's server send back the key that it was sent, in all places
// where servers and proxies have been seen to do so, and looks for it, and for half of it, in all that a caller gets.
func TestKeyIsNowhereInWhatAServerRepeats(t *testing.T) {
	filler := strings.Repeat("x", 490) // an excerpt of 500 bytes cuts the key in two
	repeats := map[string]func(key string) llmtest.Step{
		"bad key": func(key string) llmtest.Step {
			return llmtest.Step{Status: 401, Body: `{"error":{"message":"Incorrect API key provided: ` + key + `","type":"` + key + `","code":"` + key + `"}}`}
		},
		"plain text": func(key string) llmtest.Step { return llmtest.Step{Status: 403, Body: "no access with " + key} },
		"page": func(key string) llmtest.Step {
			return llmtest.Step{Status: 502, Body: "<pre>" + filler + key + "</pre>"}
		},
		"cut message": func(key string) llmtest.Step {
			return llmtest.Step{Status: 400, Body: `{"error":{"message":"` + filler + key + `"}}`}
		},
		"limit": func(key string) llmtest.Step {
			return llmtest.Step{Status: 429, Body: `{"detail":"key ` + key + ` is over its limit"}`}
		},
		"cut preview": func(key string) llmtest.Step { return llmtest.Step{Body: filler + key} },
		"member":      func(key string) llmtest.Step { return llmtest.Step{Body: `{"` + filler + key + `":1,"` + key + `":2}`} },
		"content type": func(key string) llmtest.Step {
			return llmtest.Step{Body: "{", Header: map[string]string{"Content-Type": "text/html; key=" + key}}
		},
		"no choices": func(key string) llmtest.Step { return llmtest.Step{Body: `{"choices":[],"key":"` + key + `"}`} },
		"error in a 200": func(key string) llmtest.Step {
			return llmtest.Step{Body: `{"error":{"message":"key ` + key + `","code":"` + key + `"}}`}
		},
		"redirect": func(key string) llmtest.Step {
			return llmtest.Step{Status: 302, Header: map[string]string{"Location": "https://login.test/" + key + "?key=" + key}, Body: "{}"}
		},
		"garbage": func(key string) llmtest.Step { return llmtest.Step{Trouble: llmtest.Garbage, Body: key} },
	}
	for _, provider := range llm.Providers() {
		t.Run(provider, func(t *testing.T) {
			for name, repeat := range repeats {
				synctest.Test(t, func(t *testing.T) {
					var received int
					server, err := llmtest.New(llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
						for _, values := range c.Header {
							received += strings.Count(strings.Join(values, ","), secret)
						}
						step := repeat(secret)
						return &step
					}})
					if err != nil {
						t.Fatal(err)
					}
					pipe, stop := server.Pipe()
					defer stop()
					cfg := llm.ProviderConfig{BaseURL: pipe.URL(), DialContext: pipe.DialContext, APIKey: llm.NewSecret(secret), Model: "m"}
					client, err := llm.NewProvider(provider, cfg)
					if err != nil {
						t.Fatal(err)
					}
					defer client.Close()
					prepared, err := client.Prepare(&llm.Request{Prompt: "hello"})
					if err != nil {
						t.Fatal(err)
					}
					x, err := client.Do(t.Context(), prepared)
					e, ok := errors.AsType[*llm.Error](err)
					if !ok || received != 1 {
						t.Fatalf("%s: %v, and the key arrived %d times", name, err, received)
					}
					holdsNoKey(t, name, prepared, *prepared, x, *x, x.Request, x.Response, x.Reply, e, *e, e.Facts, e.Err, client, cfg, &cfg)
				})
			}
		})
	}
}

// holdsNoKey prints values in every way that programs print them.
func holdsNoKey(t *testing.T, name string, values ...any) {
	t.Helper()
	half := secret[:10]
	var out bytes.Buffer
	level := &slog.HandlerOptions{Level: slog.LevelDebug}
	logs := []*slog.Logger{slog.New(slog.NewTextHandler(&out, level)), slog.New(slog.NewJSONHandler(&out, level))}
	for i, v := range values {
		out.Reset()
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		for _, log := range logs {
			log.Info("test", slog.Any("value", v), slog.Group("group", slog.Any("value", v)))
		}
		if raw, err := json.Marshal(v); err == nil { // the others cannot be encoded at all
			out.Write(raw)
		}
		if s, ok := v.(fmt.Stringer); ok {
			out.WriteString(s.String())
		}
		if s, ok := v.(fmt.GoStringer); ok {
			out.WriteString(s.GoString())
		}
		for _, spelling := range []string{half, fmt.Sprintf("%x", half)} {
			if strings.Contains(out.String(), spelling) {
				t.Errorf("%s: value %d, %T, prints the key:\n%s", name, i, v, &out)
			}
		}
	}
}

func TestKeyIsInNoErrorOfTheConfiguration(t *testing.T) {
	for _, key := range []string{secret + "\n", "\t" + secret, secret + " " + secret, secret + "\x00"} {
		for _, provider := range append(llm.Providers(), "unknown") {
			_, err := llm.NewProvider(provider, llm.ProviderConfig{BaseURL: "http://llm.test", APIKey: llm.NewSecret(key), Model: "m"})
			if err == nil {
				t.Fatalf("%s takes the key %q", provider, key)
			}
			holdsNoKey(t, provider, err)
		}
	}
}

// TestPasswordOfTheProxyIsInNoError runs itself again: the proxy variables are read once a process.
func TestPasswordOfTheProxyIsInNoError(t *testing.T) {
	if os.Getenv("LLM_TEST_PROXY_PASSWORD") != "" {
		client, err := llm.NewProvider(llm.OpenAI, llm.ProviderConfig{BaseURL: "https://llm.invalid/v1", Model: "m", Timeout: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		x, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"})
		if e == nil || x.Sent {
			t.Fatalf("got %v, sent %v: nobody listens there", e, x.Sent)
		}
		holdsNoKey(t, "refused", e, *e, x, client)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestPasswordOfTheProxyIsInNoError$")
	cmd.Env = append(os.Environ(), "LLM_TEST_PROXY_PASSWORD=1", "HTTPS_PROXY=http://user:"+secret+"@127.0.0.1:1", "NO_PROXY=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
