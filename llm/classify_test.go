package llm

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest/must"
)

func TestTransportErrorsAreClassified(t *testing.T) {
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	read := func(err error) error { return &net.OpError{Op: "read", Net: "tcp", Err: err} }
	cert := &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}
	unknown := &net.DNSError{Err: "no such host", Name: "api.test", IsNotFound: true}
	flaky := &net.DNSError{Err: "server misbehaving", Name: "api.test", IsTemporary: true}
	resolver := &net.OpError{Op: "dial", Net: "udp", Err: os.NewSyscallError("socket", syscall.EMFILE)}
	hidden := &net.DNSError{Err: resolver.Error(), Name: "api.test"} // as package net makes it
	timeout := fmt.Errorf("%w after 1s", ErrTimeout)
	tests := []struct {
		name     string
		err      error
		progress progress
		before   Class // no success yet
		after    Class // after a success
		origin   Origin
	}{
		{"refused", dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)), 0, Transient, Transient, OfNetwork},
		{"connect time-out", dial(os.ErrDeadlineExceeded), 0, Transient, Transient, OfNetwork},
		{"read time-out", read(os.ErrDeadlineExceeded), stepConnected, Transient, Transient, OfNetwork},
		{"reset before writing", read(os.NewSyscallError("read", syscall.ECONNRESET)), stepConnected, Transient, Transient, OfNetwork},
		{"reset before a reply", read(os.NewSyscallError("read", syscall.ECONNRESET)), stepConnected | stepSent, Transient, Transient, OfNetwork},
		{"reset in a reply", read(os.NewSyscallError("read", syscall.ECONNRESET)), stepConnected | stepSent | stepReplied, Transient, Transient, OfServer},
		{"broken pipe", os.NewSyscallError("write", syscall.EPIPE), stepConnected, Transient, Transient, OfNetwork},
		{"eof", io.EOF, stepConnected | stepSent, Transient, Transient, OfNetwork},
		{"cut headers", io.ErrUnexpectedEOF, stepConnected | stepSent | stepReplied, Transient, Transient, OfServer},
		{"reply while the request was being written", io.ErrUnexpectedEOF, stepConnected | stepReplied, Transient, Transient, OfServer},
		{"time-out while connecting", timeout, 0, Transient, Transient, OfNetwork},
		{"time-out while writing", timeout, stepConnected, Transient, Transient, OfServer},
		{"time-out of the reply", timeout, stepConnected | stepSent, Transient, Transient, OfServer},
		{"unknown host", dial(unknown), 0, Fatal, Transient, OfNetwork},
		{"flaky resolver", dial(flaky), 0, Transient, Transient, OfNetwork},
		{"certificate", cert, 0, Fatal, Fatal, 0},
		{"plain HTTP behind https", http.ErrSchemeMismatch, 0, Fatal, Transient, OfNetwork},
		{"no TLS record", tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}, 0, Fatal, Transient, OfNetwork},
		{"certificate of ours refused", tls.AlertError(42), 0, Fatal, Transient, OfNetwork},
		{"proxy wants a login", &net.OpError{Op: "proxyconnect", Err: &proxyError{407}}, 0, Fatal, Fatal, 0},
		{"proxy limits", &proxyError{429}, 0, Capacity, Capacity, 0},
		{"proxy gave up", &proxyError{408}, 0, Transient, Transient, OfNetwork},
		{"proxy is broken", &proxyError{500}, 0, Transient, Transient, OfNetwork},
		{"proxy knows no tunnels", &proxyError{501}, 0, Transient, Transient, OfNetwork},
		{"proxy does not reach the server", &proxyError{502}, 0, Transient, Transient, OfNetwork},
		{"proxy does not find the server", &proxyError{503}, 0, Transient, Transient, OfNetwork},
		{"proxy refuses the method", &proxyError{405}, 0, Permanent, Permanent, 0},
		{"no descriptors", dial(os.NewSyscallError("socket", syscall.EMFILE)), 0, Transient, Transient, OfHost},
		{"no descriptors on the machine", dial(os.NewSyscallError("socket", syscall.ENFILE)), 0, Transient, Transient, OfHost},
		{"no descriptors for the resolver", dial(hidden), 0, Transient, Transient, OfHost},
		{"no ports", dial(os.NewSyscallError("connect", syscall.EADDRNOTAVAIL)), 0, Transient, Transient, OfHost},
		{"no buffers", dial(os.NewSyscallError("connect", syscall.ENOBUFS)), 0, Transient, Transient, OfHost},
		{"no memory", dial(os.NewSyscallError("socket", syscall.ENOMEM)), 0, Transient, Transient, OfHost},
		{"no route to the network", dial(os.NewSyscallError("connect", syscall.ENETUNREACH)), 0, Transient, Transient, OfHost},
		{"no route to the host", dial(os.NewSyscallError("connect", syscall.EHOSTUNREACH)), 0, Transient, Transient, OfHost},
		{"no buffers for the request", os.NewSyscallError("write", syscall.ENOBUFS), stepConnected, Transient, Transient, OfHost},
		{"no route back", read(os.NewSyscallError("read", syscall.EHOSTUNREACH)), stepConnected | stepSent, Transient, Transient, OfNetwork},
		{"something new", errors.New("surprise"), 0, Transient, Transient, OfNetwork},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for proven, want := range map[bool]Class{false: tt.before, true: tt.after} {
				o := ending{Err: fmt.Errorf("call: %w", tt.err), Progress: tt.progress, Known: Known{Proven: proven}}
				j := judge(&o)
				if j.class != want || j.reason != ReasonAPICallFailed {
					t.Errorf("proven=%v: got %v %s, want %v %s", proven, j.class, j.reason, want, ReasonAPICallFailed)
				}
				origin := tt.origin
				if want == Fatal {
					origin = OfRequest
				}
				if j.origin != origin {
					t.Errorf("proven=%v: origin %s, want %s", proven, originNames[j.origin], originNames[origin])
				}
			}
		})
	}
}

func TestAReplyThatBreaksOffIsTheServersFailure(t *testing.T) {
	for _, err := range []error{io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.ENOBUFS, ErrTimeout, errors.New("gzip: invalid header")} {
		j := judge(&ending{Status: 200, Err: fmt.Errorf("read reply: %w", err)})
		if j != callFailed(Transient, OfServer) {
			t.Errorf("%v: got %+v", err, j)
		}
	}
}

func TestCancelledIsNoClass(t *testing.T) {
	if j := judge(&ending{Err: fmt.Errorf("do: %w", context.Canceled)}); j.class != 0 || j.reason != "" {
		t.Errorf("got %v %q, want nothing", j.class, j.reason)
	}
}

func TestErrorStatusCountsThoughItsBodyWasCut(t *testing.T) {
	o := ending{Status: 429, Err: io.ErrUnexpectedEOF}
	if j := judge(&o); j.class != Capacity {
		t.Errorf("got %v, want %v", j.class, Capacity)
	}
	o.Status = 200
	if j := judge(&o); j.class != Transient {
		t.Errorf("got %v, want %v", j.class, Transient)
	}
}

func TestOversizedReplyIsPermanentButForErrors(t *testing.T) {
	o := ending{Status: 200, Form: formTooLarge}
	if j := judge(&o); j.class != Permanent || j.reason != ReasonResponseTooLarge {
		t.Errorf("got %v %s, want %v %s", j.class, j.reason, Permanent, ReasonResponseTooLarge)
	}
	o.Status = 503
	if j := judge(&o); j.class != Capacity {
		t.Errorf("got %v, want %v", j.class, Capacity)
	}
}

func TestEveryStatusHasAClass(t *testing.T) {
	for status := 300; status <= 599; status++ {
		j := judge(&ending{Status: status})
		if j.class == 0 || j.reason == "" {
			t.Errorf("status %d: got %v %q", status, j.class, j.reason)
		}
		if capacity := slices.Contains([]int{429, 498, 503, 529}, status); capacity != (j.class == Capacity) { // 498: Groq's flex tier
			t.Errorf("status %d: class %v", status, j.class)
		}
	}
	if j := judge(&ending{Status: 200}); j != (judgement{}) {
		t.Errorf("status 200: got %v %q", j.class, j.reason)
	}
}

func TestStatusSaysWhoseFailureItIs(t *testing.T) {
	const server, request, general = "server", "request", "request, general"
	tests := map[int]string{
		301: request, 400: general, 401: request, 403: request, 404: general, 405: general, 408: server, 409: request, 410: general,
		413: request, 415: general, 422: general, 424: request, 425: request, 429: request, 431: general, 499: server,
		500: server, 501: general, 502: server, 503: request, 504: server, 505: general, 506: general, 507: server, 508: general,
		510: general, 511: general, 520: server, 521: server, 522: server, 523: server, 524: server, 525: server, 526: server,
		527: server, 529: request, 530: server, 599: server,
	}
	for status, want := range tests {
		for _, advice := range []string{"", "false"} {
			h := http.Header{"X-Should-Retry": {advice}}
			j := judge(&ending{Status: status, Header: h, Known: Known{Proven: true}})
			got := originNames[j.origin]
			if j.general {
				got += ", general"
			}
			if got != want {
				t.Errorf("%d with x-should-retry %q: got %s, want %s", status, advice, got, want)
			}
			if advice == "false" && j.class == Transient {
				t.Errorf("%d is transient though the server advises against a retry", status)
			}
		}
	}
}

func TestSuccessIsClassifiedWithoutAllocating(t *testing.T) {
	o := ending{Status: 200, Header: http.Header{"Content-Type": {"application/json"}}}
	if n := testing.AllocsPerRun(100, func() { judge(&o) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkJudgeSuccess(b *testing.B) {
	o := ending{Status: 200, Header: http.Header{"Content-Type": {"application/json"}}}
	b.ReportAllocs()
	for b.Loop() {
		judge(&o)
	}
}

func TestAnErrorNamesTheAddressWhereNothingListens(t *testing.T) {
	refused := os.NewSyscallError("connect", syscall.ECONNREFUSED)
	dial := &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 8000}, Err: refused}
	windows := &net.OpError{Op: "dial", Net: "tcp", Addr: dial.Addr, Err: os.NewSyscallError("connectex", syscall.Errno(10061))}
	proxy := &net.OpError{Op: "proxyconnect", Net: "tcp", Err: dial}
	const server, notAbsent = "nothing listens at %s: is the server started? (", ""
	for _, tt := range []struct {
		name, url string
		outcome   ending
		want      string
	}{
		{"with a port", "http://vllm:8000/v1", ending{Err: dial}, fmt.Sprintf(server, "vllm:8000")},
		{"of Windows", "http://vllm:8000/v1", ending{Err: windows}, fmt.Sprintf(server, "vllm:8000")},
		{"without one", "https://api.test/v1", ending{Err: dial}, fmt.Sprintf(server, "api.test:443")},
		{"IPv6", "http://[::1]/v1", ending{Err: dial}, fmt.Sprintf(server, "[::1]:80")},
		{"unknown URL", "", ending{Err: dial}, fmt.Sprintf(server, "10.1.2.3:8000")},
		{"a proxy", "https://api.test/v1", ending{Err: proxy}, "nothing listens at 10.1.2.3:8000: is the proxy started? ("},
		{"after a success", "http://vllm:8000/v1", ending{Err: dial, Known: Known{Proven: true}}, notAbsent},
		{"on a connection", "http://vllm:8000/v1", ending{Err: dial, Progress: stepConnected}, notAbsent},
		{"a reset", "http://vllm:8000/v1", ending{Err: syscall.ECONNRESET}, notAbsent},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := tt.outcome
			o.Err = fmt.Errorf("call: %w", o.Err)
			if tt.url != "" {
				u := must.Value(url.Parse(tt.url))(t)
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
