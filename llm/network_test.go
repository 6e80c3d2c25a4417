package llm_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
)

// server serves each connection over loopback with handle, which need not close it, and returns its address.
func server(t *testing.T, handle func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // immediate
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close() //nolint:errcheck // nothing is left to do
				handle(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		running.Wait()
	})
	return l.Addr().String()
}

// readRequest reads a whole request, so that closing the connection does not reset it.
func readRequest(conn net.Conn) {
	r, err := http.ReadRequest(bufio.NewReader(conn))
	if err == nil {
		_, _ = io.Copy(io.Discard, r.Body)
	}
}

// reply answers a request with text and closes the connection.
func reply(text string) func(net.Conn) {
	return func(conn net.Conn) {
		readRequest(conn)
		_, _ = io.WriteString(conn, text)
	}
}

// reset closes a connection by a TCP reset.
func reset(conn net.Conn) {
	if c, ok := conn.(*net.TCPConn); ok {
		_ = c.SetLinger(0)
	}
}

func TestOriginOverLoopback(t *testing.T) {
	tests := []struct {
		name    string
		scheme  string
		handle  func(net.Conn)
		origin  llm.Origin
		unknown bool // the request was sent, and nobody knows what became of it
		alike   string
	}{
		{"reset before the request", "http", reset, llm.OfNetwork, false, ""},
		{"reset before a byte", "http", func(conn net.Conn) { readRequest(conn); reset(conn) }, llm.OfNetwork, true, ""},
		{"closed before a byte", "http", readRequest, llm.OfNetwork, true, ""},
		{"cut in the status line", "http", reply("HTTP/1.1 20"), llm.OfServer, true, ""},
		{"cut in the headers", "http", reply("HTTP/1.1 200 OK\r\nContent-Le"), llm.OfServer, true, ""},
		{"cut after the headers", "http", reply("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"), llm.OfServer, true, ""},
		{"cut in the body", "http", reply("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"choices\":"), llm.OfServer, true, ""},
		{"empty body", "http", reply("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), llm.OfServer, false, "invalid_json_response"},
		{"no HTTP", "http", reply("SSH-2.0-OpenSSH\r\n\r\n"), llm.OfServer, true, ""},
		{"bad gateway", "http", reply("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"), llm.OfServer, false, ""},
		{"TLS handshake closed", "https", func(conn net.Conn) { _, _ = conn.Read(make([]byte, 16<<10)) }, llm.OfNetwork, false, ""},
		{"TLS handshake reset", "https", reset, llm.OfNetwork, false, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			x, e := askAt(t, llm.ProviderConfig{BaseURL: tt.scheme + "://" + server(t, tt.handle)})
			if e == nil || e.Class != llm.Transient || e.Origin != tt.origin || e.Alike != tt.alike {
				t.Fatalf("got %+v, want transient, origin %d, alike %q", e, tt.origin, tt.alike)
			}
			// Whether the request was written before a reset reached the client is the kernel's affair.
			if tt.name != "reset before the request" && x.Unknown != tt.unknown {
				t.Errorf("unknown %v, want %v: %v", x.Unknown, tt.unknown, e)
			}
		})
	}
}

func TestRefusedConnectionIsOfTheNetwork(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // immediate
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	x, e := askAt(t, llm.ProviderConfig{BaseURL: "http://" + l.Addr().String()})
	if e == nil || e.Class != llm.Transient || e.Origin != llm.OfNetwork || x.Sent {
		t.Errorf("got %+v, sent %v", e, x.Sent)
	}
}

// TestTimeoutIsOfWhoeverWasSilent: until there is a connection it is the network, and then the server.
func TestTimeoutIsOfWhoeverWasSilent(t *testing.T) {
	for _, tt := range []struct {
		name, scheme string
		connects     bool
		want         llm.Origin
	}{
		{"reply", "http", true, llm.OfServer},
		{"TLS handshake", "https", true, llm.OfNetwork},
		{"connect", "http", false, llm.OfNetwork},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hold := make(chan struct{})
				defer close(hold)
				x, e := askAt(t, llm.ProviderConfig{
					BaseURL: tt.scheme + "://llm.test", Timeout: 5 * time.Second,
					DialContext: func(context.Context, string, string) (net.Conn, error) {
						if !tt.connects {
							<-hold // whatever becomes of its context
							return nil, net.ErrClosed
						}
						client, server := net.Pipe()
						go func() { _, _ = io.Copy(io.Discard, server) }() // says nothing
						return client, nil
					},
				})
				if e == nil || e.Class != llm.Transient || e.Origin != tt.want || x.Latency != 5*time.Second {
					t.Fatalf("got %+v after %v, want origin %d", e, x.Latency, tt.want)
				}
				if got := strings.Contains(e.Error(), "before a connection was made"); got != (tt.want == llm.OfNetwork) {
					t.Errorf("error %q", e)
				}
			})
		})
	}
}

// A server that restarts closes its idle connections: the transport finds out when it uses one, and makes another.
func TestTimeoutOnASecondConnectionIsOfTheNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pipe := llmtest.NewPipeListener()
		hold := make(chan struct{})
		var restarted bool
		client := newClient(t, llm.Mock, llm.ProviderConfig{
			BaseURL: pipe.URL(), Timeout: time.Minute,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				if restarted {
					<-hold
					return nil, net.ErrClosed
				}
				conn, err := pipe.DialContext(ctx, network, address)
				return &brittle{Conn: conn, broken: &restarted}, err
			},
		})
		go func() {
			conn, err := pipe.Accept()
			if err != nil {
				return
			}
			readRequest(conn)
			const body = `{"choices":[{"message":{"content":"hi"}}]}`
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 42\r\n\r\n"+body)
			<-hold
			_ = conn.Close()
		}()
		if _, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"}); e != nil {
			t.Fatal(e)
		}
		synctest.Wait() // the connection is idle
		restarted = true
		x, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"})
		if e == nil || e.Origin != llm.OfNetwork || x.Sent || x.Latency != time.Minute {
			t.Errorf("got %+v after %v, sent %v", e, x.Latency, x.Sent)
		}
		close(hold)
	})
}

// brittle is a connection that takes no bytes once it is broken.
type brittle struct {
	net.Conn
	broken *bool
}

func (b *brittle) Write(p []byte) (int, error) {
	if *b.broken {
		return 0, net.ErrClosed
	}
	return b.Conn.Write(p)
}

// askAt makes one call with a new client.
func askAt(t *testing.T, cfg llm.ProviderConfig) (*llm.Exchange, *llm.Error) {
	t.Helper()
	client := newClient(t, llm.Mock, cfg)
	return ask(t.Context(), t, client, llm.Request{Prompt: "hello"})
}

func TestAServerThatIsNotStartedIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // immediate
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	x, e := askAt(t, llm.ProviderConfig{BaseURL: "http://" + addr + "/v1"})
	if e == nil || !e.Absent || e.Class != llm.Transient || x.Sent || !strings.HasPrefix(e.Error(), "mock: nothing listens at "+addr+": is the server started? (") {
		t.Errorf("got %+v", e)
	}
}

// A connection that breaks anywhere in a reply with vectors is the server's failure, and so
// is a page of a proxy that begins like JSON.
func TestAReplyWithVectorsThatIsCut(t *testing.T) {
	const length = "Content-Length: 1000\r\n\r\n"
	for name, tt := range map[string]struct{ provider, model, body string }{
		"openai":  {llm.OpenAI, "m", `{"data":[{"index":0,"embedding":[1,2]}]}`},
		"gemini":  {llm.Gemini, "m", `{"embeddings":[{"values":[1,2]}]}`},
		"bedrock": {llm.Bedrock, "amazon.titan-embed-text-v2:0", `{"embedding":[1,2],"inputTextTokenCount":1}`},
		"vertex":  {llm.Vertex, "text-embedding-005", `{"predictions":[{"embeddings":{"values":[1,2]}}]}`},
	} {
		var text atomic.Value // of the reply
		addr := server(t, func(conn net.Conn) { reply(text.Load().(string))(conn) })
		client := newClient(t, tt.provider, llm.ProviderConfig{
			BaseURL: "http://" + addr + "/v1", APIKey: redact.NewSecret(secret), Model: tt.model, Task: llm.TaskEmbed, Region: "eu-central-1", Project: "p",
		})
		for cut := range tt.body {
			for status, rest := range map[string]string{"200 OK": length, "500 Internal Server Error": "\r\n"} {
				text.Store("HTTP/1.1 " + status + "\r\n" + rest + tt.body[:cut])
				_, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"})
				if e == nil || e.Class != llm.Transient || e.Origin != llm.OfServer {
					t.Errorf("%s, %s cut at %d: %v, want a transient error of the server", name, status, cut, e)
				}
			}
		}
	}
}

// A reply above its bound is paid for and lost, so the bound grows with the vectors.
func TestTheBoundOnAReplyGrowsWithItsVectors(t *testing.T) {
	for inputs, want := range map[int]llm.Reason{64: llm.ReasonResponseTooLarge, 65: ""} {
		body := `{"data":[` + strings.Repeat(`{"embedding":[0.5]},`, inputs-1) + `{"embedding":[0.5]}]}` // 1,300 bytes
		addr := server(t, reply("HTTP/1.1 200 OK\r\n\r\n"+body))
		client := newClient(t, llm.OpenAI, llm.ProviderConfig{BaseURL: "http://" + addr, Model: "m", Task: llm.TaskEmbed, MaxReplyBytes: 1 << 10})
		_, e := ask(t.Context(), t, client, llm.Request{Inputs: slices.Repeat([]string{"hello"}, inputs)})
		if (e == nil) != (want == "") || e != nil && e.Reason != want {
			t.Errorf("%d texts: got %v, want %q", inputs, e, want)
		}
	}
}
