//go:build unix

package openfiles_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/llm-stage/stage/internal/openfiles"
)

// TestCallsLeaveTheLastDescriptors runs itself again, to use up the descriptors of a separate process.
func TestCallsLeaveTheLastDescriptors(t *testing.T) {
	const variable = "OPENFILES_TEST"
	if address := os.Getenv(variable); address != "" {
		useUp(t, address)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestCallsLeaveTheLastDescriptors$")
	cmd.Env = append(os.Environ(), variable+"="+listener.Addr().String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func useUp(t *testing.T, address string) {
	t.Helper()
	const limit = 100
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
		t.Fatal(err)
	}
	if n, ok := openfiles.Limit(); n != limit || !ok {
		t.Fatalf("Limit returns %d, %v", n, ok)
	}
	dialer := net.Dialer{Control: openfiles.Control}
	held := dialAll(t, dialer.DialContext, address)
	calls := len(held)
	files := 0
	for ; ; files++ {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		held = append(held, f)
	}
	if calls < limit/2 || files != limit/4 {
		t.Errorf("%d calls and %d files had a descriptor; want half and a quarter of %d", calls, files, limit)
	}
	for _, c := range held {
		_ = c.Close()
	}
	if c, err := dialer.DialContext(t.Context(), "tcp", address); err != nil {
		t.Errorf("with free descriptors: %v", err)
	} else {
		_ = c.Close()
	}
}

// dialAll opens connections until no descriptor is left for one.
func dialAll(t *testing.T, dial func(ctx context.Context, network, address string) (net.Conn, error), address string) []io.Closer {
	t.Helper()
	var held []io.Closer
	for {
		c, err := dial(t.Context(), "tcp", address)
		if errors.Is(err, syscall.EMFILE) {
			return held
		}
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
}
