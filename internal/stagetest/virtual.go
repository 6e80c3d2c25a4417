package stagetest

import (
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"testing"
	"testing/synctest"
	"time"
)

// virtualMost is how long a test may take, in virtual time.
const virtualMost = 7 * 24 * time.Hour

// Virtual runs a test of a whole JetStream in virtual time. The NATS client keeps timers in a pool of the process, and one
// bubble must not find those of another in it: two garbage collections empty it. That is of no use to tests that run in
// parallel.
//
// A server has tickers, so a bubble never deadlocks, and a test that waits in vain would run until the time of its package
// is up. Here it ends after a week of virtual time, with the test's name and what its goroutines wait for.
func Virtual(t *testing.T, f func(*testing.T)) {
	t.Helper()
	defer func() { // also after a failure
		runtime.GC()
		runtime.GC()
	}()
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
