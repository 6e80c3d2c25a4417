package pool_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/pool"
)

// absent is the verdict on a call to a server that is not started.
var absent = pool.Verdict{Class: pool.Transient, Origin: pool.OfNetwork, Err: errRefused, Absent: true, Unsent: true}

func TestAServerThatIsNotUpIsAnOutageAtOnce(t *testing.T) {
	for _, size := range []int{1, 2, 64} {
		for _, jobs := range []int{1, 3, 100} {
			synctest.Test(t, func(t *testing.T) {
				const up = 20 * time.Second
				w := world{took: time.Second, outages: []outage{{0, up, absent}}}
				p := w.running(t, pool.Config{Size: size})
				go func() {
					time.Sleep(100 * ms)
					pause := p.Stats().Pause
					if pause.Kind != pool.Outage || pause.Since.Sub(w.begin) > 10*ms || pause.Absent.Sub(w.begin) > 10*ms || pause.Lost != 0 {
						t.Errorf("size %d, %d jobs: paused %+v", size, jobs, pause)
					}
				}()
				if failed := failed(batch(t, p, jobs)); failed != nil {
					t.Errorf("size %d: jobs %v of %d failed", size, failed, jobs)
				}
				if !slices.Equal(w.pause, []string{"outage"}) {
					t.Errorf("size %d, %d jobs: pauses %v", size, jobs, w.pause)
				}
				begun := len(w.during(0, 10*ms))
				if want := min(size, jobs); begun != want {
					t.Errorf("size %d, %d jobs: %d calls before the pause, want %d", size, jobs, begun, want)
				}
				if probes := len(w.during(10*ms, up)); probes < 15 || probes > 22 {
					t.Errorf("size %d, %d jobs: %d probes in %v", size, jobs, probes, up)
				}
				if late := w.during(up, time.Hour)[0].at - up; late > time.Second {
					t.Errorf("size %d, %d jobs: noticed %v late", size, jobs, late)
				}
				if p.Stats().Pause.Kind != pool.NotPaused {
					t.Errorf("size %d, %d jobs: still paused", size, jobs)
				}
			})
		}
	}
}

// checkAbsent reports the instants before until at which the pool does not say whether all servers are absent, as they
// are in these outages. Probes notice a change within a second.
func checkAbsent(t *testing.T, p *pool.Pool[int, int], w *world, until time.Duration, spans ...outage) {
	t.Helper()
	const late = 1250 * ms
	for at := 500 * ms; at < until; at += time.Second {
		time.Sleep(time.Until(w.begin.Add(at)))
		must, may := false, false
		for _, s := range spans {
			must = must || at >= s.from+late && at < s.to
			may = may || at >= s.from && at < s.to+late
		}
		if got := !p.Stats().Pause.Absent.IsZero(); got && !may || !got && must {
			t.Errorf("after %v: absent %v", at, got)
		}
	}
}

func TestAServerIsAbsentOnlyWhileNothingListens(t *testing.T) {
	const second = time.Second
	gone, goneAgain := outage{0, 5 * second, absent}, outage{10 * second, 15 * second, absent}
	sickBetween := outage{5 * second, 10 * second, sick}
	longGone := []outage{{0, time.Minute, absent}}
	for _, test := range []struct {
		name     string
		outages  []outage
		fallback *world
		want     []outage
	}{
		{"then it is up", []outage{gone}, nil, []outage{gone}},
		{"then it is sick, and gone again", []outage{gone, sickBetween, goneAgain}, nil, []outage{gone, goneAgain}},
		{"sick first", []outage{{0, 10 * second, sick}, goneAgain}, nil, []outage{goneAgain}},
		{"after a success", []outage{goneAgain}, nil, nil},
		{"with a fallback", longGone, &world{took: second}, nil},
		{"with a fallback that is sick", longGone, &world{took: second, outages: []outage{{0, time.Minute, sick}}}, nil},
		{"with a fallback that is absent", longGone, &world{took: second, outages: longGone}, []outage{{10 * second, time.Minute, absent}}},
	} {
		bubble(t, test.name, func(t *testing.T) {
			w := &world{took: 100 * ms, outages: test.outages}
			cfg := pool.Config{Size: 8}
			if test.fallback != nil {
				w.servers = map[int]*world{1: test.fallback}
				cfg.Fallbacks, cfg.FallbackAfter = []pool.Server{{}}, 10*second
			}
			p := w.running(t, cfg)
			for i := range 1000 {
				submit(t, p, i, func(result) {})
			}
			checkAbsent(t, p, w, 30*second, test.want...)
		})
	}
}

func TestRowsGoPastAServerThatIsNotUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{took: time.Second, outages: []outage{{0, 30 * time.Second, absent}}, servers: map[int]*world{1: {took: time.Second}}}
		p := w.running(t, pool.Config{Size: 4, Fallbacks: []pool.Server{{}}})
		if jobs := failed(batch(t, p, 200)); jobs != nil || len(w.pause) > 0 {
			t.Errorf("jobs %v failed, pauses %v", jobs, w.pause)
		}
		if !slices.ContainsFunc(w.during(0, time.Second), func(c sent) bool { return c.at1 }) {
			t.Error("no job went past within a second")
		}
	})
}
