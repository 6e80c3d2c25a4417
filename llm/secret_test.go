package llm_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
)

func TestKeyIsReplacedForLaterCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var keys []string
		_, pipe := serve(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			keys = append(keys, c.Header.Get("Authorization"))
			return nil
		}})
		client := newClient(t, llm.Mock, llm.ProviderConfig{BaseURL: pipe.URL(), DialContext: pipe.DialContext, APIKey: redact.NewSecret("one")})
		for _, key := range []string{"one", "two", ""} {
			must.Value(client.SetLogin(redact.NewSecret(key), redact.Secret{}))(t)
			if _, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"}); e != nil {
				t.Fatal(e)
			}
		}
		if got, want := strings.Join(keys, ","), "Bearer one,Bearer two,"; got != want {
			t.Errorf("keys sent: %q, want %q", got, want)
		}
		_, err := client.SetLogin(redact.NewSecret("tail\n"), redact.Secret{})
		if e, ok := errors.AsType[*llm.SettingError](err); !ok || e.Setting != "APIKey" || strings.Contains(err.Error(), "tail") {
			t.Errorf("SetLogin with a newline = %v", err)
		}
	})
}

func TestKeyIsNotPrinted(t *testing.T) {
	cfg := llm.ProviderConfig{BaseURL: "http://llm.test/v1", APIKey: redact.NewSecret(secret), Model: "m"}
	client := newClient(t, llm.OpenAI, cfg)
	key := redact.NewSecret(secret)
	type hidden struct { // of an unexported field, package fmt calls no method
		provider llm.ProviderConfig
		pointer  *llm.ProviderConfig
		key      redact.Secret
		keys     []redact.Secret
		byName   map[string]redact.Secret
	}
	within := hidden{cfg, &cfg, key, []redact.Secret{key}, map[string]redact.Secret{"key": key}}
	for _, v := range []any{client, cfg, &cfg, struct{ C *llm.Client }{client}, key, &key, within, &within} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			text := fmt.Sprintf(verb, v)
			if strings.Contains(text, secret) || strings.Contains(text, fmt.Sprintf("%x", secret)) {
				t.Errorf("%s of %T holds the key: %s", verb, v, text)
			}
		}
	}
	holdsNoKey(t, "secret", key, &key, within, struct{ Key redact.Secret }{key})
	if got, want := fmt.Sprintf("%v %s %+v %d", key, &key, redact.Secret{}, key), "(set) (set) (not set) (set)"; got != want {
		t.Errorf("secrets print as %q, want %q", got, want)
	}
	if got, want := fmt.Sprint(client), "llm.Client{openai http://llm.test/v1 m}"; got != want {
		t.Errorf("client prints as %q, want %q", got, want)
	}
}

// TestKeyIsInNoAnswer has the model repeat the key: in one piece, in its parts, cut off at the token limit, as the name
// of the model and the id of the reply.
func TestKeyIsInNoAnswer(t *testing.T) {
	for name, tt := range map[string]struct {
		key, body, want string
		truncated       bool
	}{
		"text":       {body: `{"choices":[{"message":{"content":"it is ` + secret + `."}}]}`, want: "it is [redacted]."},
		"escaped":    {body: `{"choices":[{"message":{"content":"it is sk\u002dvery%2Dsecret-0123456789."}}]}`, want: "it is [redacted]."},
		"parts":      {body: `{"choices":[{"message":{"content":[{"type":"text","text":"it is sk-very-"},{"type":"text","text":"secret-0123456789."}]}}]}`, want: "it is [redacted]."},
		"cut":        {body: `{"choices":[{"finish_reason":"length","message":{"content":"it is sk-very-sec"}}]}`, want: "it is [redacted]", truncated: true},
		"as a count": {key: "1200", body: `{"choices":[{"message":{"content":"1200 is the key"}}],"usage":{"prompt_tokens":1200,"completion_tokens":1}}`, want: "[redacted] is the key"},
		"as an id":   {body: `{"id":"` + secret + `","model":"` + secret + `","choices":[{"message":{"content":"fine"}}]}`, want: "fine"},
	} {
		synctest.Test(t, func(t *testing.T) {
			key := cmp.Or(tt.key, secret)
			client, _ := dial(t, llm.ProviderConfig{APIKey: redact.NewSecret(key), AcceptTruncated: tt.truncated}, llmtest.Step{Body: tt.body})
			x, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello " + key})
			if e != nil {
				t.Fatalf("%s: %v", name, e)
			}
			if u := x.Reply.Usage; u != nil && u.PromptTokens != 1200 {
				t.Errorf("%s: the usage is %+v", name, *u)
			}
			if x.Reply.Text != tt.want {
				t.Errorf("%s: the answer is %q, want %q", name, x.Reply.Text, tt.want)
			}
			for _, text := range []string{x.Reply.Model, x.Reply.ID, string(x.Request), string(x.Response)} {
				if strings.Contains(text, key) {
					t.Errorf("%s: the key is in %s", name, text)
				}
			}
		})
	}
}

// TestKeyOfDigitsIsNowhere has a key that is a number of the reply, too, and is where a fact or an error is cut.
func TestKeyOfDigitsIsNowhere(t *testing.T) {
	const key = "31415926535897932384"
	filler := strings.Repeat("x", 490)
	for name, tt := range map[string]struct {
		status       int
		body, reason string
	}{
		"message":       {400, `{"n":` + key + `,"error":{"message":"` + filler + key + `"}}`, "api_call_failed"},
		"detail":        {422, `{"detail":[{"msg":"` + filler[:470] + `","input":` + key + `}]}`, "api_call_failed"},
		"code":          {400, `{"error":{"message":"no","code":` + key + `}}`, "api_call_failed"},
		"finish reason": {200, `{"n":` + key + `,"choices":[{"finish_reason":"` + filler[:70] + key + `","message":{"content":"half"}}]}`, ""},
		"cut off":       {200, `{"choices":[{"finish_reason":"length","message":{"content":"half"}}],"usage":{"prompt_tokens":` + key + `,"completion_tokens":1}}`, "truncated"},
		"no choices":    {200, `{"choices":[],"a":"` + filler[:470] + `","n":` + key + `}`, "empty_choices"},
		"member":        {200, `{"n":-` + key + `,"` + filler + key + `":1}`, ""},
		"across":        {200, `{"a":"` + filler[:470] + `\"","b":[` + key + `.5e1]}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, _ := dial(t, llm.ProviderConfig{APIKey: redact.NewSecret(key)}, llmtest.Step{Status: tt.status, Body: tt.body})
				x, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"})
				var reply string
				if x.Reply != nil {
					reply = fmt.Sprintf("%+v", *x.Reply)
				}
				text := fmt.Sprintf("%s\n%+v\n%s", x.Response, e, reply)
				if e != nil {
					text += fmt.Sprintf("%v %s %s", e.Facts, e.Code, e.Alike)
				}
				if strings.Contains(text, key[:4]) {
					t.Errorf("the beginning of the key is left: %s", text)
				}
				if !json.Valid(x.Response) || tt.reason != "" && (e == nil || string(e.Reason) != tt.reason) {
					t.Errorf("got %v of %s", e, x.Response)
				}
			})
		})
	}
}

// TestCutRepliesHoldNoHalfOfTheKey cuts a reply within the key: at the bound on errors, and by closing the connection.
func TestCutRepliesHoldNoHalfOfTheKey(t *testing.T) {
	const bound = 64 << 10
	for name, step := range map[string]llmtest.Step{
		"an error over the bound": {Status: 500, Body: strings.Repeat("x", bound-9) + secret + strings.Repeat("x", 99)},
		"half an escape":          {Status: 500, Body: strings.Repeat("x", bound-15) + "sk-very\\u002dsecret-0123456789" + strings.Repeat("x", 99)},
	} {
		synctest.Test(t, func(t *testing.T) {
			client, _ := dial(t, llm.ProviderConfig{APIKey: redact.NewSecret(secret)}, step)
			x, _ := ask(t.Context(), t, client, llm.Request{Prompt: "hello"})
			if end := string(x.Response[len(x.Response)-20:]); !strings.HasSuffix(end, "x[redacted]") {
				t.Errorf("%s: the recorded response ends with %q", name, end)
			}
		})
	}
}

func TestKeysThatNoServerTakesAreNamed(t *testing.T) {
	for key, want := range map[string]string{
		"":                     "",
		"sk-plain":             "",
		"\uFEFF" + secret:      "byte order mark",
		"\xFF\xFEs\x00k\x00":   "byte order mark",
		secret + "\n" + secret: "line break",
		secret + " ":           "white space",
		"Bearer " + secret:     "white space",
		secret + "\x00":        "control characters",
		"sk\u2011" + secret:    "not ASCII",
		`"` + secret + `"`:     "in quotes",
		"'" + secret + "'":     "in quotes",
	} {
		err := llm.ValidateAPIKey(key)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secret)) {
			t.Errorf("%q: got %v, want one with %q", key, err, want)
		}
	}
}

func TestExtraHeadersAreSentAndRedacted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got http.Header
		_, pipe := serve(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			got = c.Header
			return &llmtest.Step{Status: 400, Body: `{"error":{"message":"` + strings.Join(c.Header["X-Gateway"], "") + ` beta-2026-01-01 low"}}`}
		}})
		client := newClient(t, llm.Anthropic, llm.ProviderConfig{
			BaseURL: pipe.URL(), DialContext: pipe.DialContext, APIKey: redact.NewSecret(secret), Model: "m",
			ExtraHeaders: redact.NewSecret(`{"x-gateway":"Bearer gateway-token-1","anthropic-beta":"beta-2026-01-01","user-agent":"mine","x-mode":"low"}`),
		})
		for _, tt := range []struct{ headers, sent, text string }{
			{"", "Bearer gateway-token-1", "[redacted] beta-2026-01-01 low"},
			{`{"x-gateway":"Bearer gateway-token-2"}`, "Bearer gateway-token-2", "[redacted] beta-2026-01-01 low"},
		} {
			if tt.headers != "" {
				must.Value(client.SetLogin(redact.NewSecret(secret), redact.NewSecret(tt.headers)))(t)
			}
			_, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"})
			if got.Get("X-Gateway") != tt.sent || got.Get("X-Api-Key") != secret || e == nil || !strings.Contains(e.Error(), tt.text) {
				t.Errorf("sent %v, got %v, want %q", got, e, tt.text)
			}
		}
		_, err := client.SetLogin(redact.NewSecret(secret), redact.NewSecret(`{"x-api-key":"other"}`))
		if e, ok := errors.AsType[*llm.SettingError](err); !ok || e.Setting != "ExtraHeaders" || !strings.Contains(err.Error(), "X-Api-Key carries the API key already") {
			t.Errorf("got %v", err)
		}
	})
}

// TestACredentialMovesBetweenHeaderAndKeyInOneStep also fails once: both then stay as they were.
func TestACredentialMovesBetweenHeaderAndKeyInOneStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent []string
		_, pipe := serve(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			sent = append(sent, c.Header.Get("Authorization")+" "+c.Header.Get("X-Gateway"))
			return nil
		}})
		const inHeader = `{"authorization":"Bearer in-the-header"}`
		client := newClient(t, llm.Mock, llm.ProviderConfig{BaseURL: pipe.URL(), DialContext: pipe.DialContext, ExtraHeaders: redact.NewSecret(inHeader)})
		for _, tt := range []struct{ key, headers, problem, want string }{
			{"sk-key", `{"x-gateway":"one"}`, "", "Bearer sk-key one"},
			{"sk-other", inHeader, "ExtraHeaders: Authorization carries the API key already; remove it, or set no API key", "Bearer sk-key one"},
			{"sk other", `{"x-gateway":2}`, "APIKey: contains white space or control characters; remove them\nExtraHeaders: X-Gateway: the value is not a string", "Bearer sk-key one"},
			{"", inHeader, "", "Bearer in-the-header "},
		} {
			_, err := client.SetLogin(redact.NewSecret(tt.key), redact.NewSecret(tt.headers))
			if (err != nil || tt.problem != "") && fmt.Sprint(err) != tt.problem {
				t.Errorf("key %s, headers %s: got %v, want %s", tt.key, tt.headers, err, tt.problem)
			}
			if _, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"}); e != nil {
				t.Fatal(e)
			}
			if got := sent[len(sent)-1]; got != tt.want {
				t.Errorf("key %s, headers %s: sent %q, want %q", tt.key, tt.headers, got, tt.want)
			}
		}
	})
}

func TestExtraHeadersThatCannotBeSentAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "{}": "", `{"authorization":"Bearer x","cf-aig-authorization":"y"}`: "",
		"anthropic-beta: x":      "not a JSON object of strings",
		`["x"]`:                  "not a JSON object of strings",
		`{"a b":"hidden"}`:       `"a b" is not a valid header name`,
		`{"":"hidden"}`:          `"" is not a valid header name`,
		`{"host":"hidden"}`:      "Host is set by the client itself",
		`{"content-length":"1"}`: "Content-Length is set by the client itself",
		`{"x":1}`:                "X: the value is not a string",
		`{"x":"hidden\nhidden"}`: "X: the value is empty",
		`{"x":" hidden"}`:        "X: the value is empty",
		`{"x":"h","X":"hidden"}`: "X is given twice",
		`{"te":"h","x":"ü"}`:     "Te is set by the client itself; remove it\nX: the value",
	} {
		err := llm.ValidateExtraHeaders(text)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden")) {
			t.Errorf("%s: got %v, want one with %q", text, err, want)
		}
	}
}

// TestKeyIsNowhereInWhatAServerRepeats has every provider's server send back the key that it was sent, in all places
// where servers and proxies have been seen to do so, and looks for it, and for half of it, in all that a caller gets.
func TestKeyIsNowhereInWhatAServerRepeats(t *testing.T) {
	filler := strings.Repeat("x", 490) // an excerpt of 500 bytes cuts the key in two
	repeats := map[string]llmtest.Step{
		"bad key":          {Status: 401, Body: `{"error":{"message":"Incorrect API key provided: ` + secret + `","type":"` + secret + `","code":"` + secret + `"}}`},
		"plain text":       {Status: 403, Body: "no access with " + secret},
		"page":             {Status: 502, Body: "<pre>" + filler + secret + "</pre>"},
		"cut message":      {Status: 400, Body: `{"error":{"message":"` + filler + secret + `"}}`},
		"limit":            {Status: 429, Body: `{"detail":"key ` + secret + ` is over its limit"}`},
		"cut preview":      {Body: filler + secret},
		"member":           {Body: `{"` + filler + secret + `":1,"` + secret + `":2}`},
		"content type":     {Body: "{", Header: map[string]string{"Content-Type": "text/html; key=" + secret}},
		"no choices":       {Body: `{"choices":[],"key":"` + secret + `"}`},
		"error in a 200":   {Body: `{"error":{"message":"key ` + secret + `","code":"` + secret + `"}}`},
		"redirect":         {Status: 302, Header: map[string]string{"Location": "https://login.test/" + secret + "?key=" + secret}, Body: "{}"},
		"cut redirect":     {Status: 302, Header: map[string]string{"Location": "https://login.test/" + filler[:470] + secret}, Body: "{}"},
		"cut content type": {Body: "{", Header: map[string]string{"Content-Type": filler[:485] + secret}},
		"garbage":          {Trouble: llmtest.Garbage, Body: secret},
	}
	for _, provider := range llm.Providers() {
		t.Run(provider, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var step llmtest.Step
				received := 0
				_, pipe := serve(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
					for _, values := range c.Header {
						received += strings.Count(strings.Join(values, ","), secret)
					}
					return &step
				}})
				cfg := llm.ProviderConfig{BaseURL: pipe.URL(), DialContext: pipe.DialContext, APIKey: redact.NewSecret(secret), Model: "m"}
				client := newClient(t, provider, cfg)
				prepared := must.Value(client.Prepare(&llm.Request{Prompt: "hello"}))(t)
				for name, repeat := range repeats {
					step, received = repeat, 0
					x, err := client.Do(t.Context(), prepared)
					e, ok := errors.AsType[*llm.Error](err)
					if !ok || received != 1 {
						t.Fatalf("%s: %v, and the key arrived %d times", name, err, received)
					}
					holdsNoKey(t, name, prepared, *prepared, x, *x, x.Request, x.Response, x.Reply, e, *e, e.Facts, e.Err, client, cfg, &cfg)
				}
			})
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
			_, err := llm.NewProvider(provider, llm.ProviderConfig{BaseURL: "http://llm.test", APIKey: redact.NewSecret(key), Model: "m"})
			if err == nil {
				t.Fatalf("%s takes the key %q", provider, key)
			}
			holdsNoKey(t, provider, err)
		}
	}
}

// A proxy's short password may be the answer to a row, and no provider ever sees it.
func TestShortPasswordOfTheProxyIsAWordOfAnswers(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://builder:pass@127.0.0.1:1")
	r := new(redact.Redactor)
	newClient(t, llm.OpenAI, llm.ProviderConfig{BaseURL: "https://llm.invalid/v1", Model: "m", Redactor: r})
	if got, want := r.RedactString(`pass, not "http://builder:pass@127.0.0.1:1"`), `pass, not "http://[redacted]@127.0.0.1:1"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestPasswordOfTheProxyIsInNoError runs itself again: the proxy variables are read once a process.
func TestPasswordOfTheProxyIsInNoError(t *testing.T) {
	if os.Getenv("LLM_TEST_PROXY_PASSWORD") != "" {
		client := newClient(t, llm.OpenAI, llm.ProviderConfig{BaseURL: "https://llm.invalid/v1", Model: "m", Timeout: 20 * time.Second})
		x, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"})
		if e == nil || x.Sent {
			t.Fatalf("got %v, sent %v: nobody listens there", e, x.Sent)
		}
		holdsNoKey(t, "refused", e, *e, x, client)
		return
	}
	self := must.Value(os.Executable())(t)
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestPasswordOfTheProxyIsInNoError$")
	cmd.Env = append(os.Environ(), "LLM_TEST_PROXY_PASSWORD=1", "HTTPS_PROXY=http://user:"+secret+"@127.0.0.1:1", "NO_PROXY=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
