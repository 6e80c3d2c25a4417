package terminal

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTheBarFollowsAResize runs a bar on a real terminal, whose window becomes narrower and wider meanwhile.
func TestTheBarFollowsAResize(t *testing.T) {
	screen, tty := openTerminal(t)
	resize := func(columns uint16) {
		if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
			t.Fatal(err)
		}
	}
	resize(120)
	more := []string{"32 in flight", "delay 40 ms", "35 retries", "36233 tokens"}
	bar := NewBar(t.Context(), tty, 720, 360, func(_ int64, short bool) Beside {
		return Beside{First: []string{fmt.Sprintf("short %t", short), "ETA 42s"}, More: more}
	})
	for _, at := range []struct {
		columns uint16
		last    string // what the line ends with
	}{{120, "36233 tokens"}, {80, "delay 40 ms"}, {40, "short true ETA 42s"}, {120, "36233 tokens"}} {
		resize(at.columns)
		line := ""
		for n := 0; !strings.HasSuffix(line, at.last); n++ {
			if n == 50 { // ten seconds
				t.Fatalf("%d columns: %q", at.columns, line)
			}
			next, err := screen.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			line = strings.TrimSpace(escapes.ReplaceAllString(next, ""))
		}
	}
	go io.Copy(io.Discard, screen) //nolint:errcheck // ends with the terminal
	bar.Finish()
}

// openTerminal returns a new terminal, and what it shows.
func openTerminal(t *testing.T) (screen *bufio.Reader, tty *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = tty.Close()
		_ = master.Close()
	})
	return bufio.NewReader(master), tty
}
