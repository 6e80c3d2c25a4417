package llm_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
)

// secret is a key that must not be seen anywhere but in the request's header.
const secret = "sk-very-secret-0123456789"

// newClient is a client that is closed when the test ends.
func newClient(tb testing.TB, provider string, cfg llm.ProviderConfig) *llm.Client {
	tb.Helper()
	client := must.Value(llm.NewProvider(provider, cfg))(tb)
	tb.Cleanup(client.Close)
	return client
}

// serve starts a server, over pipes, that is stopped when the test ends.
func serve(t *testing.T, cfg llmtest.Config) (*llmtest.Server, *llmtest.PipeListener) {
	t.Helper()
	server := must.Value(llmtest.New(cfg))(t)
	pipe, stop := server.Pipe()
	t.Cleanup(stop)
	return server, pipe
}

// dial is a client of a server that plays steps, over pipes.
func dial(t *testing.T, cfg llm.ProviderConfig, steps ...llmtest.Step) (*llm.Client, *llmtest.Server) {
	t.Helper()
	server, pipe := serve(t, llmtest.Config{Script: llmtest.Steps(steps...)})
	if cfg.DialContext == nil {
		cfg.DialContext = pipe.DialContext
	}
	if cfg.BaseURL = pipe.URL(); !cfg.APIKey.IsSet() {
		cfg.APIKey = redact.NewSecret(secret)
	}
	return newClient(t, llm.Mock, cfg), server
}

func ask(ctx context.Context, t *testing.T, client *llm.Client, r llm.Request) (*llm.Exchange, *llm.Error) {
	t.Helper()
	p := must.Value(client.Prepare(&r))(t)
	x, err := client.Do(ctx, p)
	if err == nil {
		return x, nil
	}
	e, ok := errors.AsType[*llm.Error](err)
	if !ok {
		t.Fatalf("%T %v is not an *llm.Error", err, err)
	}
	return x, e
}

func TestExchangeTellsWhatHappened(t *testing.T) {
	long := `{"choices":[{"message":{"content":"` + strings.Repeat("x", 1<<16) + `"}}]}`
	tests := []struct {
		name   string
		step   llmtest.Step
		class  llm.Class
		reason llm.Reason
		status int
		text   string // in the error
	}{
		{"success", llmtest.Step{}, 0, "", 200, ""},
		{"rate limit", llmtest.Step{Status: 429, Header: map[string]string{"Retry-After": "3"}}, llm.Capacity, llm.ReasonAPICallFailed, 429, "scripted failure"},
		{"stall", llmtest.Step{Trouble: llmtest.Stall}, llm.Transient, llm.ReasonAPICallFailed, 0, "attempt timed out after 10s"},
		{"stall in the body", llmtest.Step{Trouble: llmtest.Hang}, llm.Transient, llm.ReasonAPICallFailed, 200, "attempt timed out"},
		{"cut", llmtest.Step{Trouble: llmtest.Cut}, llm.Transient, llm.ReasonAPICallFailed, 200, "unexpected EOF"},
		{"cut error", llmtest.Step{Status: 503, Trouble: llmtest.Cut}, llm.Capacity, llm.ReasonAPICallFailed, 503, ""},
		{"reset after sending", llmtest.Step{Trouble: llmtest.Reset}, llm.Transient, llm.ReasonAPICallFailed, 0, "EOF"},
		{"garbage", llmtest.Step{Trouble: llmtest.Garbage}, llm.Transient, llm.ReasonAPICallFailed, 0, "malformed HTTP"},
		{"too large", llmtest.Step{Body: long}, llm.Permanent, llm.ReasonResponseTooLarge, 200, "exceeds"},
		{"redirect", llmtest.Step{Status: 307, Header: map[string]string{"Location": "https://u:p@other.test/v1?key=" + secret}, Body: "{}"}, llm.Fatal, llm.ReasonAPICallFailed, 307, "redirects to https://other.test/v1 ("},
		{"key repeated", llmtest.Step{Status: 401, Body: `{"error":{"message":"bad key ` + secret + `","code":"` + secret + `"}}`}, llm.Fatal, llm.ReasonAPICallFailed, 401, "bad key [redacted]"},
		{"key repeated in a 200", llmtest.Step{Body: `{"` + secret + `":1}`}, llm.Transient, llm.ReasonMalformedResponse, 200, ""},
		{"html", llmtest.Step{Body: "<html>", Header: map[string]string{"Content-Type": "text/html"}}, llm.Transient, llm.ReasonInvalidJSONResponse, 200, "<html>"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, _ := dial(t, llm.ProviderConfig{Timeout: 10 * time.Second, MaxReplyBytes: 1 << 15}, tt.step)
				x, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"})
				if x.Status != tt.status || !x.Sent {
					t.Errorf("status %d sent %v, want %d true", x.Status, x.Sent, tt.status)
				}
				switch tt.name {
				case "stall", "stall in the body", "cut", "reset after sending", "garbage":
					if !x.Unknown {
						t.Error("the outcome is said to be known")
					}
				default:
					if x.Unknown {
						t.Error("the outcome is said to be unknown")
					}
				}
				if len(x.Request) == 0 || len(x.Response) > 1<<16 {
					t.Errorf("%d bytes of request, %d of response", len(x.Request), len(x.Response))
				}
				if e == nil {
					if tt.class != 0 {
						t.Fatalf("no error, want %v %s", tt.class, tt.reason)
					}
					if want := llmtest.Answer("hello"); x.Reply.Text != want {
						t.Errorf("text %q, want %q", x.Reply.Text, want)
					}
					if x.Reply.Usage == nil || x.Reply.Usage.TotalTokens == 0 {
						t.Errorf("usage %v", x.Reply.Usage)
					}
					return
				}
				if e.Class != tt.class || e.Reason != tt.reason || e.Status != tt.status || e.Provider != "mock" {
					t.Errorf("got %v %s %d %s (%v), want %v %s %d mock", e.Class, e.Reason, e.Status, e.Provider, e, tt.class, tt.reason, tt.status)
				}
				if !strings.Contains(e.Error(), tt.text) {
					t.Errorf("error %q does not say %q", e, tt.text)
				}
				if x.RetryAfter != e.RetryAfter || tt.status == 429 && x.RetryAfter != 3*time.Second {
					t.Errorf("retry after %v and %v", x.RetryAfter, e.RetryAfter)
				}
				for _, dump := range []string{fmt.Sprintf("%+v %q", x, x.Response), fmt.Sprintf("%+v %q", *e, e.Facts), string(x.Request)} {
					if strings.Contains(dump, secret) {
						t.Errorf("the key is in %s", dump)
					}
				}
			})
		})
	}
}

func TestLatencyIsTheWholeAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _ := dial(t, llm.ProviderConfig{}, llmtest.Step{Delay: 1500 * time.Millisecond})
		x, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"})
		if e != nil || x.Latency != 1500*time.Millisecond {
			t.Errorf("latency %v, error %v", x.Latency, e)
		}
	})
}

func TestCancelledCallHasNoClassAndMayBeBilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := dial(t, llm.ProviderConfig{}, llmtest.Step{Trouble: llmtest.Stall})
		cause := errors.New("the row took too long")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Second, cause)
		defer cancel()
		x, e := ask(ctx, t, client, llm.Request{Prompt: "hello"})
		if e == nil || e.Class != 0 || !errors.Is(e, cause) || !x.Unknown || x.Status != 0 {
			t.Errorf("got %+v, %+v", x, e)
		}
		synctest.Wait()
		if stats := server.Stats(); stats.Abandoned != 1 || stats.InFlight != 0 {
			t.Errorf("server: %+v", stats)
		}
	})
}

func TestUnsentCallIsNotBilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
		client, _ := dial(t, llm.ProviderConfig{DialContext: func(context.Context, string, string) (net.Conn, error) {
			return nil, refused
		}})
		x, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"})
		if e == nil || e.Class != llm.Transient || x.Sent || x.Unknown || !errors.Is(e, syscall.ECONNREFUSED) {
			t.Errorf("got %+v, %+v", x, e)
		}
	})
}

func TestClientRemembersASuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		missing := llmtest.Step{Status: 404}
		client, _ := dial(t, llm.ProviderConfig{}, missing, missing, llmtest.Step{}, missing)
		var got []llm.Class
		for _, model := range []string{"", "chosen-by-the-row", "", ""} {
			_, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello", Model: model})
			if e == nil {
				e = new(llm.Error)
			}
			got = append(got, e.Class)
		}
		if want := []llm.Class{llm.Fatal, llm.Permanent, 0, llm.Permanent}; !slices.Equal(got, want) {
			t.Errorf("classes %v, want %v", got, want)
		}
	})
}

// Anthropic's words are those for a limit that others have used up: headers and the length of the request decide.
func TestRequestAboveAllInputTokensOfAMinuteFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := llmtest.Step{
			Status: 429,
			Header: map[string]string{"Anthropic-Ratelimit-Input-Tokens-Limit": "1000", "Anthropic-Ratelimit-Input-Tokens-Remaining": "1000"},
			Body:   `{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed your organization's rate limit of 1,000 input tokens per minute."}}`,
		}
		client, _ := dial(t, llm.ProviderConfig{}, refused, refused)
		for prompt, want := range map[string]llm.Class{"short": llm.Capacity, strings.Repeat("long ", 1000): llm.Permanent} {
			if _, e := ask(t.Context(), t, client, llm.Request{Prompt: prompt}); e == nil || e.Class != want {
				t.Errorf("prompt of %d bytes: %v, want %v", len(prompt), e, want)
			}
		}
	})
}

func TestConnectTimeoutAfterASuccessIsOfTheNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var full atomic.Bool
		_, pipe := serve(t, llmtest.Config{Script: llmtest.Steps(llmtest.Step{Header: map[string]string{"Connection": "close"}})})
		client := newClient(t, llm.Mock, llm.ProviderConfig{
			BaseURL: pipe.URL(),
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				if full.Load() {
					return nil, &net.OpError{Op: "dial", Net: network, Err: os.ErrDeadlineExceeded}
				}
				return pipe.DialContext(ctx, network, address)
			},
		})
		if _, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"}); e != nil {
			t.Fatal(e)
		}
		full.Store(true)
		if _, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"}); e == nil || e.Class != llm.Transient || e.Origin != llm.OfNetwork {
			t.Errorf("got %+v, want transient and of the network", e)
		}
	})
}

func TestConnectionsAreReusedAndBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, pipe := serve(t, llmtest.Config{Latency: time.Second})
		var dials atomic.Int64
		client := newClient(t, llm.Mock, llm.ProviderConfig{
			BaseURL:     pipe.URL(),
			Concurrency: 4,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				dials.Add(1)
				return pipe.DialContext(ctx, network, address)
			},
		})
		start := time.Now()
		for range 3 {
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					if _, e := ask(t.Context(), t, client, llm.Request{Prompt: fmt.Sprint(i)}); e != nil {
						t.Error(e)
					}
				})
			}
			wg.Wait()
		}
		if n, most := dials.Load(), server.Stats().MaxInFlight; n > 8 || most != 4 {
			t.Errorf("%d connections opened, %d calls at once, want few and 4", n, most)
		}
		if took := time.Since(start); took != 6*time.Second {
			t.Errorf("24 calls of 1s, 4 at a time, took %v", took)
		}
	})
}

func TestGzipIsReadAndBoundedAfterDecompression(t *testing.T) {
	zip := func(s string) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = w.Write([]byte(s))
		_ = w.Close()
		return b.String()
	}
	const frame = `{"choices":[{"message":{"content":"%s"},"finish_reason":"stop"}]}`
	whole := zip(fmt.Sprintf(frame, "zipped"))
	tests := []struct {
		name   string
		body   string
		reason llm.Reason
	}{
		{"whole", whole, ""},
		{"cut", whole[:len(whole)-12], llm.ReasonAPICallFailed},
		{"no gzip", "plain", llm.ReasonAPICallFailed},
		{"bomb", zip(fmt.Sprintf(frame, strings.Repeat("0", 4<<20))), llm.ReasonResponseTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, _ := dial(t, llm.ProviderConfig{MaxReplyBytes: 1 << 20},
					llmtest.Step{Header: map[string]string{"Content-Encoding": "gzip"}, Body: tt.body})
				x, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"})
				switch {
				case e == nil && (tt.reason != "" || x.Reply.Text != "zipped"):
					t.Errorf("got %+v, want %q", x.Reply, tt.reason)
				case e != nil && e.Reason != tt.reason:
					t.Errorf("got %v %s, want %q", e, e.Reason, tt.reason)
				}
			})
		})
	}
}

// The tests below need real sockets: TLS and proxies are the transport's.

func TestCertificateIsVerified(t *testing.T) {
	flaky := must.Value(llmtest.New(llmtest.Config{}))(t)
	server := httptest.NewUnstartedServer(flaky)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}
	must.Do(t, os.WriteFile(ca, pem.EncodeToMemory(block), 0o600))
	for file, want := range map[string]llm.Class{"": llm.Fatal, ca: 0} {
		client := newClient(t, llm.Mock, llm.ProviderConfig{BaseURL: server.URL, CAFile: file})
		_, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"})
		if e == nil {
			e = new(llm.Error)
		}
		if e.Class != want {
			t.Errorf("CA file %q: got %v, want %v", file, e, want)
		}
		if want == llm.Fatal && !strings.Contains(e.Error(), "CA file") {
			t.Errorf("error %q does not name the fix", e)
		}
	}
}

func TestPlainServerBehindHTTPSIsFatal(t *testing.T) {
	flaky := must.Value(llmtest.New(llmtest.Config{}))(t)
	server := httptest.NewServer(flaky)
	defer server.Close()
	client := newClient(t, llm.Mock, llm.ProviderConfig{BaseURL: strings.Replace(server.URL, "http:", "https:", 1)})
	if _, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"}); e == nil || e.Class != llm.Fatal {
		t.Errorf("got %v, want %v", e, llm.Fatal)
	}
}

// TestProxyFromEnvironment runs itself again: the proxy variables are read once
// a process.
func TestProxyFromEnvironment(t *testing.T) {
	if os.Getenv("LLM_TEST_PROXY") != "" {
		client := newClient(t, llm.Mock, llm.ProviderConfig{BaseURL: "http://llm.invalid/v1"})
		if _, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"}); e != nil {
			t.Fatal(e)
		}
		return
	}
	var host atomic.Value
	flaky := must.Value(llmtest.New(llmtest.Config{}))(t)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host.Store(r.Host)
		flaky.ServeHTTP(w, r)
	}))
	defer proxy.Close()
	self := must.Value(os.Executable())(t)
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestProxyFromEnvironment$")
	cmd.Env = append(os.Environ(), "LLM_TEST_PROXY=1", "HTTP_PROXY="+proxy.URL, "NO_PROXY=")
	if out, err := cmd.CombinedOutput(); err != nil || host.Load() != "llm.invalid" {
		t.Errorf("through the proxy to %v: %v\n%s", host.Load(), err, out)
	}
}
