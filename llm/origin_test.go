package llm

import (
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/llm-stage/stage/llm/redact"
)

func TestProxyThatRefusesIsNamed(t *testing.T) {
	_, err := parseReply(ChatCompletions{}, &ending{Err: &net.OpError{Op: "proxyconnect", Err: &proxyError{405}}}, now, nil)
	e, _ := errors.AsType[*Error](err)
	if e.Class != Permanent || e.Alike != "proxy 405" || !strings.Contains(e.Error(), "proxy answered 405 Method Not Allowed") {
		t.Errorf("got %v %q: %v", e.Class, e.Alike, e)
	}
}

func TestSchemaFailureIsAlike(t *testing.T) {
	_, err := ValidateReply(schemaOf(t, `{"type":"object"}`), "17")
	if e, ok := errors.AsType[*Error](err); !ok || e.Alike != "schema_validation_failed" || e.Origin != OfRequest {
		t.Errorf("got %+v", err)
	}
}

func TestShortageNamesTheRemedy(t *testing.T) {
	for errno, remedy := range map[syscall.Errno]string{
		syscall.EMFILE: "ulimit -n", syscall.ENFILE: "fs.file-max", syscall.EADDRNOTAVAIL: "net.ipv4.ip_local_port_range",
		syscall.ENOBUFS: "memory", syscall.ENOMEM: "memory", syscall.ENETUNREACH: "network", syscall.EHOSTUNREACH: "route",
	} {
		cause := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", errno)}
		_, err := parseReply(ChatCompletions{}, &ending{Err: cause}, now, nil)
		e, _ := errors.AsType[*Error](err)
		if e.Origin != OfHost || !errors.Is(e, errno) || !strings.HasPrefix(e.Error(), cause.Error()+" (") || !strings.Contains(e.Error(), remedy) {
			t.Errorf("%v: got %v, want the remedy %q", errno, e, remedy)
		}
	}
}

func TestAlikeHoldsNoKey(t *testing.T) {
	c := &Client{cfg: ProviderConfig{Redactor: new(redact.Redactor)}}
	c.cfg.Redactor.Add("sk-very-secret")
	e := &Error{Alike: "400 sk-very-secret", Err: errors.New("no")}
	if c.redactError(e); e.Alike != "400 [redacted]" {
		t.Errorf("got %q", e.Alike)
	}
}
