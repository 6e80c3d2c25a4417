package consumer_test

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/spread"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go/jetstream"
)

// fault draws a fault.
func (s *sim) fault() {
	s.t.Helper()
	r := s.replicas[s.rng.IntN(len(s.replicas))]
	if s.mixed && s.rng.IntN(12) == 0 {
		s.faultOfOrder(r)
		return
	}
	draws := 22
	if s.partitions > 1 {
		draws += 10
	}
	switch draw := s.rng.IntN(draws); draw {
	case 0, 1, 2, 3, 4, 5, 6:
		after := s.rng.IntN(10)
		step := consumer.Steps[s.rng.IntN(len(consumer.Steps))]
		switch step {
		case "taken", "answered", "kept", "appending", "appended", "acked":
		default:
			after %= 2 // they come once a term or a second
		}
		r.arm(step, manners[s.rng.IntN(len(manners))], after, moment(s.rng, 8*time.Second))
	case 7:
		if r.alive {
			s.note("kill")
			s.kill(r)
			s.leaveAlone(r)
		}
	case 8, 9:
		if r.alive && r.link.awake() { // asleep while a rival takes over; then what it had sent arrives late
			s.note("zombie")
			lasts := 500*time.Millisecond + moment(s.rng, 8*time.Second)
			r.sleep(lasts)
			if l := r.life; s.rng.IntN(3) == 0 { // before it has looked around
				time.AfterFunc(lasts+moment(s.rng, 500*time.Millisecond), func() { l.stop(0) })
			}
		}
	case 10, 11:
		if r.alive && r.link.awake() {
			s.note("clean stop")
			s.stopCleanly(r)
			s.leaveAlone(r)
		}
	case 12:
		s.restartServer(moment(s.rng, 4*time.Second))
	case 13:
		if r.alive {
			s.note("slow network")
			latency, lasts := moment(s.rng, time.Second), moment(s.rng, 10*time.Second)
			link := r.link
			r.trouble(lasts + 4*time.Second) // healed at the next look, after which the messages in flight arrive
			link.set(func() { link.latency = max(latency, link.usual) })
			s.healAfter(lasts, func() { link.set(func() { link.latency = link.usual }) })
		}
	case 14:
		if r.alive {
			s.note("stop twice")
			r.stop(1 + moment(s.rng, 3*time.Second))
			s.leaveAlone(r)
		}
	case 15, 16, 17, 18, 19, 20, 21:
		s.faultOfServer(r, draw)
	default:
		s.faultOfSpread(r, draw-22)
	}
}

// leaveAlone leaves a place empty for a while, now and then.
func (s *sim) leaveAlone(r *simReplica) {
	if s.rng.IntN(2) == 0 {
		r.away = time.Now().Add(moment(s.rng, 12*time.Second))
	}
}

// faultOfServer is a fault caused by a client with rights to streams and consumers.
func (s *sim) faultOfServer(r *simReplica, draw int) {
	s.t.Helper()
	partition := s.rng.IntN(s.partitions)
	durable := streams.DurableName("stage", partition)
	switch draw {
	case 15:
		s.note("reset by another client")
		seq := uint64(s.rng.IntN(s.loaded))
		if s.retention != jetstream.LimitsPolicy {
			seq = 0 // a later one deletes rows that nobody has taken
		}
		s.disturb(0)
		_, _ = s.js.ResetConsumerToSequence(s.t.Context(), "ROWS", durable, seq)
	case 16:
		s.note("unpinned")
		s.disturb(0)
		_ = s.stream("ROWS").UnpinConsumer(s.t.Context(), durable, "stage")
	case 17:
		stream := []string{"RESULTS", "AUDIT", "JOURNAL"}[s.rng.IntN(3)]
		if stream != "RESULTS" && s.thrifty() {
			return
		}
		s.fill(stream, moment(s.rng, 15*time.Second))
	case 20:
		if r.alive && !s.thrifty() { // until there is no more room for events
			s.fill("AUDIT", 15*time.Second+moment(s.rng, 10*time.Second))
			time.Sleep(3*time.Second + moment(s.rng, 3*time.Second))
			s.note("stop twice while full")
			r.stop(1 + moment(s.rng, 4*time.Second))
		}
	case 18:
		if s.retention == jetstream.LimitsPolicy { // else its rows would go with it
			s.note("durable deleted")
			s.trouble(3 * time.Second)
			s.disturb(simRequest)
			_ = s.js.DeleteConsumer(s.t.Context(), "ROWS", durable)
			if s.strict() {
				lasts := moment(s.rng, 5*time.Second)
				s.trouble(lasts + 3*time.Second)
				s.gone[partition]++
				s.healAfter(lasts, func() {
					s.createDurable(partition)
					s.gone[partition]--
				})
			}
		}
	case 21:
		s.fill(streams.BucketStream(simBucket), moment(s.rng, 15*time.Second))
	case 19:
		if !s.thrifty() {
			s.note("journal purged")
			_ = s.stream("JOURNAL").Purge(s.t.Context())
		}
	}
}

// fill makes a stream refuse everything for a while.
func (s *sim) fill(stream string, lasts time.Duration) {
	s.note("full " + stream)
	full(stream)(s.testbed)
	s.trouble(lasts + 10*time.Second) // a term that ends meanwhile has no next one, which would keep what is answered
	s.healAfter(lasts, func() { unlimited(stream)(s.testbed) })
}

// healAfter ends a fault after a while. Until then, and until requests that got lost in it are repeated, it excuses a
// partition that stands still.
func (s *sim) healAfter(lasts time.Duration, do func()) {
	s.mu.Lock()
	s.ongoing++
	s.mu.Unlock()
	s.heals = append(s.heals, heal{time.Now().Add(lasts), func() {
		do()
		s.mu.Lock()
		s.ongoing--
		s.mu.Unlock()
		s.disturb(simRequest)
	}})
}

// faultOfSpread moves partitions.
func (s *sim) faultOfSpread(r *simReplica, draw int) {
	s.t.Helper()
	switch draw {
	case 0, 1: // joins, or leaves to come again
		s.note(s.move(r))
	case 2, 3, 4, 5: // while calls are waited for; so long that the replicas forget each other
		s.note(s.move(r) + ", server restart")
		time.Sleep(300*time.Millisecond + moment(s.rng, time.Second))
		s.restartServer(time.Second + moment(s.rng, 3*time.Second))
	case 6, 7:
		s.note(s.move(r) + ", drop")
		time.Sleep(300*time.Millisecond + moment(s.rng, time.Second))
		for _, other := range s.replicas {
			if other != r && other.alive && other.running() {
				other.drop()
			}
		}
	default:
		s.note("rumour")
		end := s.spreadRumour(rumours[s.rng.IntN(len(rumours))])
		s.disturb(0)
		s.heals = append(s.heals, heal{time.Now().Add(moment(s.rng, 30*time.Second)), end})
	}
}

// move makes a process join or leave, and returns which.
func (s *sim) move(r *simReplica) string {
	if !r.alive {
		r.away = time.Time{}
		s.start(r)
		return "join"
	}
	r.stop(0)
	r.away = time.Now().Add(moment(s.rng, 10*time.Second))
	return "leave"
}

// rumours are spread by a client that serves nothing.
var rumours = []string{
	`{"id":"%s","partitions":%d,"owned":[]}`,
	`{"id":"%s","partitions":%d,"owned":[%s]}`,
	`{"id":"%s","partitions":%d,"owned":[],"standby":[%s]}`,
	`{"id":"%s","partitions":%d,"owned":[],"taken":[%s]}`,
}

// spreadRumour starts a rumour, and returns the function that ends it.
func (s *sim) spreadRumour(rumour string) (end func()) {
	id := []string{"a", "z"}[s.rng.IntN(2)] // before or after the names of the others
	all := make([]string, s.partitions)
	for p := range all {
		all[p] = fmt.Sprint(p)
	}
	args := []any{id, s.partitions, strings.Join(all, ",")}
	body := fmt.Appendf(nil, rumour, args[:strings.Count(rumour, "%")]...)
	over := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		for {
			_ = s.nc.Publish(spread.Subject("stage"), body)
			select {
			case <-over:
				return
			case <-time.After(300 * time.Millisecond):
			}
		}
	})
	return func() {
		close(over)
		telling.Wait()
		s.disturb(0)
	}
}

// thrifty reports whether journal and audit are left alone, so that no call is made again without need.
func (s *sim) thrifty() bool { return s.seed%2 == 0 }

// old reports whether the server cannot set a consumer back, like servers before 2.14: it is deleted and re-created.
func (s *sim) old() bool { return s.seed%6 == 3 && s.retention == jetstream.LimitsPolicy }

// strict reports whether the stage must not create its durables: an operator does.
func (s *sim) strict() bool { return s.seed%6 == 0 && s.retention == jetstream.LimitsPolicy }

func (s *sim) restartServer(down time.Duration) {
	s.t.Helper()
	s.note("server restart")
	s.trouble(down + 3*time.Second)
	s.disturb(down + time.Second + simRequest)
	if s.old() || s.mixed {
		// A server that goes down sleeps with a lock held that the creation of a consumer waits for, and a lock that is
		// waited for stops virtual time. Here each term creates one, or may, so all are cut off a moment before.
		s.plug(false)
		time.Sleep(10 * time.Millisecond)
	}
	s.stopServer()
	time.Sleep(down)
	s.startServer()
	if s.old() || s.mixed {
		s.plug(true)
	}
}

// plug connects all processes to the server, or cuts them off.
func (s *sim) plug(in bool) {
	for _, r := range s.replicas {
		if r.alive {
			r.link.set(func() {
				if r.link.deaf = !in; !in {
					r.link.lose()
				}
			})
		}
	}
}
