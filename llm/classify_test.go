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
	"os"
	"syscall"
	"testing"
)

func TestTransportErrorsAreClassified(t *testing.T) {
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	read := func(err error) error { return &net.OpError{Op: "read", Net: "tcp", Err: err} }
	cert := &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}
	unknown := &net.DNSError{Err: "no such host", Name: "api.test", IsNotFound: true}
	flaky := &net.DNSError{Err: "server misbehaving", Name: "api.test", IsTemporary: true}
	tests := []struct {
		name   string
		err    error
		before Class // no success yet
		after  Class // after a success
	}{
		{"refused", dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)), Transient, Transient},
		{"connect time-out", dial(os.ErrDeadlineExceeded), Transient, Capacity},
		{"read time-out", read(os.ErrDeadlineExceeded), Transient, Transient},
		{"reset", read(os.NewSyscallError("read", syscall.ECONNRESET)), Transient, Transient},
		{"broken pipe", os.NewSyscallError("write", syscall.EPIPE), Transient, Transient},
		{"eof", io.EOF, Transient, Transient},
		{"cut", io.ErrUnexpectedEOF, Transient, Transient},
		{"attempt time-out", fmt.Errorf("%w after 1s", ErrTimeout), Transient, Transient},
		{"unknown host", dial(unknown), Fatal, Transient},
		{"flaky resolver", dial(flaky), Transient, Transient},
		{"certificate", cert, Fatal, Fatal},
		{"plain HTTP behind https", http.ErrSchemeMismatch, Fatal, Transient},
		{"no TLS record", tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}, Fatal, Transient},
		{"certificate of ours refused", tls.AlertError(42), Fatal, Transient},
		{"proxy wants a login", &net.OpError{Op: "proxyconnect", Err: &proxyError{407}}, Fatal, Fatal},
		{"proxy has no room", &net.OpError{Op: "proxyconnect", Err: &proxyError{503}}, Capacity, Capacity},
		{"something new", errors.New("surprise"), Transient, Transient},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for proven, want := range map[bool]Class{false: tt.before, true: tt.after} {
				o := Outcome{Err: fmt.Errorf("read reply: %w", tt.err), Known: Known{Proven: proven}}
				class, reason := Classify(&o)
				if class != want || reason != ReasonAPICallFailed {
					t.Errorf("proven=%v: got %v %s, want %v %s", proven, class, reason, want, ReasonAPICallFailed)
				}
			}
		})
	}
}

func TestCancelledIsNoClass(t *testing.T) {
	if class, reason := Classify(&Outcome{Err: fmt.Errorf("do: %w", context.Canceled)}); class != 0 || reason != "" {
		t.Errorf("got %v %q, want nothing", class, reason)
	}
}

func TestErrorStatusCountsThoughItsBodyWasCut(t *testing.T) {
	o := Outcome{Status: 429, Err: io.ErrUnexpectedEOF}
	if class, _ := Classify(&o); class != Capacity {
		t.Errorf("got %v, want %v", class, Capacity)
	}
	o.Status = 200
	if class, _ := Classify(&o); class != Transient {
		t.Errorf("got %v, want %v", class, Transient)
	}
}

func TestOversizedReplyIsPermanentButForErrors(t *testing.T) {
	o := Outcome{Status: 200, Form: FormTooLarge}
	if class, reason := Classify(&o); class != Permanent || reason != ReasonResponseTooLarge {
		t.Errorf("got %v %s, want %v %s", class, reason, Permanent, ReasonResponseTooLarge)
	}
	o.Status = 503
	if class, _ := Classify(&o); class != Capacity {
		t.Errorf("got %v, want %v", class, Capacity)
	}
}

func TestEveryStatusHasAClass(t *testing.T) {
	for status := 300; status <= 599; status++ {
		class, reason := Classify(&Outcome{Status: status})
		if class == 0 || reason == "" {
			t.Errorf("status %d: got %v %q", status, class, reason)
		}
		if got := class == Capacity; got != CapacityStatus(status) {
			t.Errorf("status %d: class %v, but CapacityStatus = %v", status, class, CapacityStatus(status))
		}
	}
	if class, reason := Classify(&Outcome{Status: 200}); class != 0 || reason != "" {
		t.Errorf("status 200: got %v %q", class, reason)
	}
}

func TestSuccessIsClassifiedWithoutAllocating(t *testing.T) {
	o := Outcome{Status: 200, Header: http.Header{"Content-Type": {"application/json"}}}
	if n := testing.AllocsPerRun(100, func() { Classify(&o) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkClassifySuccess(b *testing.B) {
	o := Outcome{Status: 200, Header: http.Header{"Content-Type": {"application/json"}}}
	b.ReportAllocs()
	for b.Loop() {
		Classify(&o)
	}
}
