package budget

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/aimd/fleet"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/pool"
	"github.com/nats-io/nats.go"
)

func TestMain(m *testing.M) { stagetest.Main(m) }

// provider is a token bucket that all processes of a test call.
type provider struct {
	mu                sync.Mutex
	rate, burst       float64
	level             float64
	filled            time.Time
	accepted, refused atomic.Int64
	inFlight          int64
	most              atomic.Int64
}

var errRefused = errors.New("429")

func (p *provider) call() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.level = min(p.burst, p.level+p.rate*now.Sub(p.filled).Seconds())
	p.filled = now
	if p.level < 1 {
		p.refused.Add(1)
		return false
	}
	p.level--
	p.accepted.Add(1)
	p.inFlight++
	p.most.Store(max(p.most.Load(), p.inFlight))
	return true
}

// process is one process that calls the provider through a shared budget.
type process struct {
	*Budget
	account *Account
	done    atomic.Int64
	stop    func()
}

// work weighs what the provider says that it does in the end.
type work struct{}

func (work) Weight(int) int64 { return 100 }

// start runs a process with endless work until it is stopped.
func (p *provider) start(t *testing.T, nc *nats.Conn, id string, limits fleet.Limits) *process {
	t.Helper()
	b := New(nc, Config{
		Name: "team", ID: id, Weight: 1, Law: aimd.DefaultAdaptive(32), Logger: slog.New(slog.DiscardHandler),
	})
	account := stagetest.Value(b.Account("mock", limits))(t)
	call := func(ctx context.Context, _ work, _ pool.Attempt) (struct{}, pool.Verdict) {
		ok, takes := p.call(), time.Second
		if !ok {
			takes = 60 * time.Millisecond
		}
		select {
		case <-time.After(takes):
		case <-ctx.Done():
			return struct{}{}, pool.Verdict{Class: pool.Cancelled, Err: ctx.Err()}
		}
		if !ok {
			return struct{}{}, pool.Verdict{Class: pool.Capacity, Err: errRefused}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.inFlight--
		return struct{}{}, pool.Verdict{Weight: 100}
	}
	made := stagetest.Value(pool.New(pool.Config{Size: 32, Law: account, Gates: account.Gates(), Retry: pool.DefaultRetry(), QueueLimit: 64}, call))(t)
	b.Wake = made.Wake
	s := &process{Budget: b, account: account}
	ctx, cancel := context.WithCancel(t.Context())
	var parts sync.WaitGroup
	parts.Go(func() { b.Run(ctx) })
	parts.Go(func() { _ = made.Run(ctx) })
	parts.Go(func() {
		for ctx.Err() == nil {
			_ = made.Submit(ctx, work{}, func(r pool.Result[work, struct{}]) {
				if r.Err == nil {
					s.done.Add(1)
				}
			})
		}
	})
	s.stop = sync.OnceFunc(func() {
		cancel()
		parts.Wait()
	})
	t.Cleanup(s.stop)
	return s
}

// count resets the counters.
func (p *provider) count(processes []*process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.accepted.Store(0)
	p.refused.Store(0)
	p.most.Store(0)
	for _, s := range processes {
		s.done.Store(0)
	}
}

// team is eight processes at one provider, with these limits in turn.
func (p *provider) team(t *testing.T, limits ...fleet.Limits) (server *stagetest.NATS, processes []*process) {
	t.Helper()
	server = stagetest.StartNATS(t)
	p.filled = time.Now()
	for i := range 8 {
		processes = append(processes, p.start(t, server.Connect(), fmt.Sprintf("run-%d", i), limits[i%len(limits)]))
	}
	time.Sleep(15 * time.Second)
	p.count(processes)
	return server, processes
}

// modes counts the processes in each mode.
func modes(processes []*process) map[fleet.Mode]int {
	count := map[fleet.Mode]int{}
	for _, s := range processes {
		count[s.account.State().Mode]++
	}
	return count
}

// Processes share one law, and without a connection each goes on at what it had.
func TestProcessesShareWhatTheyLearn(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		p := &provider{rate: 40, burst: 5}
		_, processes := p.team(t, fleet.Limits{})
		time.Sleep(30 * time.Second)
		if p.accepted.Load() < 30*36 || p.refused.Load() > p.accepted.Load()/20 {
			t.Errorf("%d calls were accepted in 30 s and %d refused, want about 1200 and few", p.accepted.Load(), p.refused.Load())
		}
		for i, s := range processes {
			if s.done.Load() < 120 || s.done.Load() > 180 {
				t.Errorf("process %d made %d calls, want about 150", i, s.done.Load())
			}
			if st := s.account.State(); st.Members != 8 || st.Rate < 36 || st.Rate > 80 || st.Share < 0.11 || st.Share > 0.14 {
				t.Errorf("process %d: %+v", i, st)
			}
		}
		if m := modes(processes); m[fleet.Lead] != 1 || m[fleet.Follow] != 7 {
			t.Errorf("the processes are %v, want one leader and seven members", m)
		}

		for _, s := range processes {
			s.nc.Load().Close()
		}
		time.Sleep(3 * time.Second)
		if m := modes(processes); m[fleet.Alone] != 8 {
			t.Errorf("3 s after they lost their connections the processes are %v, want all alone", m)
		}
		p.count(processes)
		time.Sleep(30 * time.Second)
		if p.accepted.Load() < 1000 || p.refused.Load() > 300 {
			t.Errorf("%d calls were accepted in 30 s and %d refused, want about 1200 and few", p.accepted.Load(), p.refused.Load())
		}
	})
}

// stopLeader stops the process that leads and returns the others.
func stopLeader(t *testing.T, processes []*process, stop func(*process)) []*process {
	t.Helper()
	for i, s := range processes {
		if s.account.State().Mode == fleet.Lead {
			stop(s)
			return slices.Delete(processes, i, i+1)
		}
	}
	t.Fatal("nobody leads")
	return nil
}

// A leader that leaves says so, and is replaced at once. One that dies says nothing: its connection is gone.
func TestALeaderThatLeavesOrDiesIsReplaced(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		p := &provider{rate: 40, burst: 5}
		_, processes := p.team(t, fleet.Limits{})
		processes = stopLeader(t, processes, func(s *process) { s.stop() })
		time.Sleep(700 * time.Millisecond)
		if m := modes(processes); m[fleet.Lead] != 1 || m[fleet.Follow] != 6 {
			t.Errorf("after .7 s the processes are %v, want one leader and six members", m)
		}
		if st := processes[0].account.State(); st.Members != 7 {
			t.Errorf("%d members, want 7", st.Members)
		}
		time.Sleep(5 * time.Second)
		p.count(processes)
		processes = stopLeader(t, processes, func(s *process) {
			s.nc.Load().Close()
			s.stop()
		})
		time.Sleep(2 * time.Second)
		if m := modes(processes); m[fleet.Lead] != 1 || m[fleet.Follow] != 5 {
			t.Errorf("after 2 s the processes are %v, want one leader and five members", m)
		}
		if p.accepted.Load() < 72*6/7 {
			t.Errorf("%d calls were accepted in the 2 s, want more than .9 of what six of seven had", p.accepted.Load())
		}
		time.Sleep(3 * time.Second)
		p.count(processes)
		time.Sleep(20 * time.Second)
		if p.accepted.Load() < 720 || p.refused.Load() > 40 {
			t.Errorf("%d calls were accepted in 20 s and %d refused, want about 800 and few", p.accepted.Load(), p.refused.Load())
		}
	})
}

// Limits that somebody has set are those of all processes together.
func TestLimitsAreOfTheWhole(t *testing.T) {
	for name, c := range map[string]struct {
		limits fleet.Limits
		most   int64 // calls in half a minute
	}{
		"calls a minute":  {fleet.Limits{RPM: 600}, 300},
		"tokens a minute": {fleet.Limits{TPM: 60_000}, 300},
		"calls in flight": {fleet.Limits{Concurrency: 6}, 180},
	} {
		t.Run(name, func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				p := &provider{rate: 1000, burst: 50}
				_, processes := p.team(t, c.limits, fleet.Limits{}) // what only some set holds for all
				time.Sleep(30 * time.Second)
				if p.accepted.Load() > c.most*102/100+8 || p.accepted.Load() < c.most*93/100 {
					t.Errorf("%d calls in half a minute, want about %d", p.accepted.Load(), c.most)
				}
				if limit := c.limits.Concurrency; limit > 0 && p.most.Load() > int64(limit) {
					t.Errorf("%d calls in flight, want %d at most", p.most.Load(), limit)
				}
				for i, s := range processes {
					if s.done.Load() < c.most/16 {
						t.Errorf("process %d made %d calls, want about %d", i, s.done.Load(), c.most/8)
					}
				}
			})
		})
	}
}

// Whoever may publish on the subject can send anything.
func TestForgedMessagesStopNobody(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		p := &provider{rate: 40, burst: 5}
		server, processes := p.team(t, fleet.Limits{})
		forger := server.Connect()
		for range 20 {
			for _, body := range []string{
				`{}`, `nonsense`, `{"plan":1}`, `{"report":1,"id":"x","weight":1,"sent":18446744073709551615,"want":1e6,"in_flight":99999,"hungry":true}`,
				`{"plan":1,"term":18446744073709551615,"leader":"a","seq":1,"curve":[0,0,0,0,0,0,0,0,0,0],"members":1}`,
				`{"plan":1,"term":9,"leader":"a","seq":1,"curve":[1e9,0,0,0,0,0,0,0,0,0],"members":1}`,
				`{"report":1,"id":"y","weight":-5}`, `{"hello":1}`, `{"report":1,"id":"z","weight":1,"refusals":[{"turn":-1}]}`,
			} {
				for _, kind := range []string{"plan", "report", "other"} {
					stagetest.Must(t, forger.Publish("llm-stage.budget.team.mock."+kind, []byte(body)))
				}
			}
			time.Sleep(time.Second)
		}
		if p.accepted.Load() < 600 {
			t.Errorf("%d calls were accepted in 20 s, want about 800", p.accepted.Load())
		}
		if m := modes(processes); m[fleet.Alone] != 0 {
			t.Errorf("the processes are %v, want none alone", m)
		}
	})
}
