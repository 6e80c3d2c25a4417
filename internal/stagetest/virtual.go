package stagetest

import (
	"fmt"
	"os"
	"runtime/pprof"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	_ "unsafe" // for go:linkname

	_ "github.com/nats-io/nats.go" // has the timers
)

// virtualMost is how long a test may take, in virtual time.
const virtualMost = 7 * 24 * time.Hour

// natsTimers are the timers that the NATS client keeps for the whole process. Two garbage
// collections would empty the pool, too, but they took a sixth of the CPU time of the
// tests. The dot in the package's path is %2e in the names of symbols.
//
//go:linkname natsTimers github.com/nats-io/nats%2ego.globalTimerPool
var natsTimers struct{ p sync.Pool }

// Virtual runs a test of a whole JetStream in virtual time. One bubble must not find the
// timers of another in the pool of the NATS client, so it is emptied. That is of no use
// to tests that run in parallel.
//
// A server has tickers, so a bubble never deadlocks, and a test that waits in vain would
// run until the time of its package is up. Here it ends after a week of virtual time,
// with the test's name and what its goroutines wait for.
func Virtual(t *testing.T, f func(*testing.T)) {
	t.Helper()
	forget := func() { natsTimers.p = sync.Pool{} }
	forget()       // the timers of a test in real time
	defer forget() // also after a failure
	name := t.Name()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		watch := time.AfterFunc(virtualMost, func() {
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
			panic(fmt.Sprintf("%s still waits after %s of virtual time, see its goroutines above", name, virtualMost))
		})
		t.Cleanup(func() { watch.Stop() })
		f(t)
	})
}
