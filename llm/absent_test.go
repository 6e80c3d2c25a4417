package llm

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestAnErrorNamesTheAddressWhereNothingListens(t *testing.T) {
	refused := os.NewSyscallError("connect", syscall.ECONNREFUSED)
	dial := &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 8000}, Err: refused}
	windows := &net.OpError{Op: "dial", Net: "tcp", Addr: dial.Addr, Err: os.NewSyscallError("connectex", syscall.Errno(10061))}
	proxy := &net.OpError{Op: "proxyconnect", Net: "tcp", Err: dial}
	const server, notAbsent = "nothing listens at %s: is the server started? (", ""
	for _, tt := range []struct {
		name, url string
		outcome   Outcome
		want      string
	}{
		{"with a port", "http://vllm:8000/v1", Outcome{Err: dial}, fmt.Sprintf(server, "vllm:8000")},
		{"of Windows", "http://vllm:8000/v1", Outcome{Err: windows}, fmt.Sprintf(server, "vllm:8000")},
		{"without one", "https://api.test/v1", Outcome{Err: dial}, fmt.Sprintf(server, "api.test:443")},
		{"IPv6", "http://[::1]/v1", Outcome{Err: dial}, fmt.Sprintf(server, "[::1]:80")},
		{"unknown URL", "", Outcome{Err: dial}, fmt.Sprintf(server, "10.1.2.3:8000")},
		{"a proxy", "https://api.test/v1", Outcome{Err: proxy}, "nothing listens at 10.1.2.3:8000: is the proxy started? ("},
		{"after a success", "http://vllm:8000/v1", Outcome{Err: dial, Known: Known{Proven: true}}, notAbsent},
		{"on a connection", "http://vllm:8000/v1", Outcome{Err: dial, Progress: Connected}, notAbsent},
		{"a reset", "http://vllm:8000/v1", Outcome{Err: syscall.ECONNRESET}, notAbsent},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := tt.outcome
			o.Err = fmt.Errorf("call: %w", o.Err)
			if tt.url != "" {
				u, err := url.Parse(tt.url)
				if err != nil {
					t.Fatal(err)
				}
				o.URL = u
			}
			_, err := parseReply(ChatCompletions{}, &o, now, nil)
			e, ok := errors.AsType[*Error](err)
			if !ok || e.Class != Transient || e.Origin != OfNetwork || e.Absent != (tt.want != notAbsent) {
				t.Fatalf("got %+v", err)
			}
			if tt.want == notAbsent && strings.Contains(e.Error(), "nothing listens") || !strings.HasPrefix(e.Error(), tt.want) {
				t.Errorf("got %q, want %q", e, tt.want)
			}
			if !strings.HasSuffix(strings.TrimSuffix(e.Error(), ")"), o.Err.Error()) {
				t.Errorf("the system's words are missing: %q", e)
			}
		})
	}
}
