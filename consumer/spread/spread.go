// Package spread decides which partitions of a stage each of its replicas should serve,
// so that the shares are even.
//
//	s := spread.New(nc, spread.Config{Name: "stage", ID: runID, Partitions: partitions, Logger: log})
//	go s.Run(soft, ctx) // announces this replica and listens to the others
//	for !s.Should(partition) {
//		<-s.Changes(partition)
//	}
//
// It is advice: only the results stream decides who owns a partition.
package spread

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

const (
	// announceEvery is how often a replica announces itself to the others.
	announceEvery = 500 * time.Millisecond
	// listenFor is how long a replica listens to the answers of the others before it
	// takes anything: when it starts, and after it had lost the connection.
	listenFor = 250 * time.Millisecond
	// gatherFor is how long news gathers: a replica that starts or stops changes many
	// partitions in one moment.
	gatherFor = 10 * time.Millisecond
	// checkEvery is how often a replica checks what others announce: see
	// [roster.checkNext].
	checkEvery = 2 * time.Second
)

// Spread spreads the partitions of a stage evenly over its replicas: none hoards, and
// when a replica comes or goes, as few partitions move as can. The replicas announce to
// each other over core NATS which partitions they serve and stand by for, and each
// decides by the same rules (see roster) what it should take and what it should release.
//
// It is advice. Who owns a partition is decided by the log alone, so a message that is
// lost, late or a lie costs an uneven spread for a while, or a hand-over too many, never
// a result. Where the subject is not permitted every replica thinks that it is alone and
// takes what it can get.
//
// Make one for each process with [New] and give it to the consumer of every partition.
// Methods are safe for concurrent use.
type Spread struct {
	nc      *nats.Conn
	subject string
	explain func(error) string
	log     *slog.Logger
	news    chan struct{}   // holds a token while this replica has news to announce
	moved   chan *nats.Conn // holds the connection that takes the place of nc
	others  atomic.Int32    // see Others

	mu        sync.Mutex
	roster    *roster
	serves    []bool          // what this replica should serve
	looks     []time.Time     // when each partition should be looked at
	changed   []chan struct{} // one a partition; holds a token when serves or looks have changed
	listening bool            // to the others, before a decision
	warned    bool            // of a replica with another number of partitions
}

// Subject is where the replicas of a stage announce themselves.
func Subject(name string) string { return "llm-stage." + name + ".replicas" }

// Config of a [Spread]. All fields but Explain are required.
type Config struct {
	// Name of the stage.
	Name string
	// ID distinguishes this process from all others; it is the RunID of its consumers.
	ID string
	// Partitions of the stage.
	Partitions int
	// Explain puts an error into words for the log, as [streams.Explain] does. If it is
	// nil, the error's own words are used.
	Explain func(error) string
	Logger  *slog.Logger
}

// New returns a Spread. [Spread.Run] does the work; until then no partition should be
// served.
func New(nc *nats.Conn, cfg Config) *Spread {
	if cfg.Explain == nil {
		cfg.Explain = error.Error
	}
	s := &Spread{
		nc: nc, subject: Subject(cfg.Name), explain: cfg.Explain, log: cfg.Logger,
		news: make(chan struct{}, 1), moved: make(chan *nats.Conn, 1),
		roster: newRoster(cfg.ID, cfg.Partitions, time.Now()), listening: true,
		serves: make([]bool, cfg.Partitions), looks: make([]time.Time, cfg.Partitions),
		changed: make([]chan struct{}, cfg.Partitions),
	}
	for p := range s.changed {
		s.changed[p] = make(chan struct{}, 1)
	}
	return s
}

// Run takes part until ctx ends. When soft ends it announces that this replica is
// leaving, so that the others stand by for what it hands over. Its error says that it
// could not subscribe.
func (s *Spread) Run(soft, ctx context.Context) error {
	heard := make(chan *nats.Msg, 256) // a burst of hellos; what does not fit is announced again
	select {
	case s.nc = <-s.moved:
	default:
	}
	sub, err := s.nc.ChanSubscribe(s.subject, heard)
	if err != nil {
		return fmt.Errorf("listen to the other replicas: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // no listener remains either way
	connected := s.nc.StatusChanged(nats.CONNECTED)
	defer func() { s.nc.RemoveStatusListener(connected) }()
	listened, tick, check := time.After(listenFor), time.Tick(announceEvery), time.Tick(checkEvery)
	var gathered <-chan time.Time // nil while there is no news
	leaving := soft.Done()
	announce := func(hello bool) { s.announce(hello, soft.Err() != nil) }
	announce(true)
	for {
		select {
		case <-ctx.Done():
			s.announce(false, true)
			return nil
		case <-leaving:
			leaving = nil
			announce(false)
			continue
		case nc := <-s.moved:
			s.mu.Lock()
			s.nc = nc
			s.mu.Unlock()
			// An error means that nc is closed, too, and another one follows.
			if again, err := nc.ChanSubscribe(s.subject, heard); err == nil {
				sub = again
			}
			connected = nc.StatusChanged(nats.CONNECTED)
			s.rejoin()
			listened = time.After(listenFor)
			announce(true)
		case <-connected:
			s.rejoin()
			listened = time.After(listenFor)
			announce(true)
		case m := <-heard:
			if s.hear(m.Data, time.Now()) {
				announce(false)
			}
		case <-listened:
			s.listened()
		case <-s.news:
			if gathered == nil {
				gathered = time.After(gatherFor)
			}
			continue
		case <-gathered:
			gathered = nil
			announce(false)
		case <-tick:
			announce(false)
		case <-check:
			s.mu.Lock()
			s.roster.checkNext(s.serves, time.Now())
			s.mu.Unlock()
		}
		s.decide(time.Now())
	}
}

// Use has the replica announce itself, and listen, over another connection, since the
// present one is closed for good. Safe for concurrent use.
func (s *Spread) Use(nc *nats.Conn) {
	select {
	case <-s.moved: // one that nobody has taken yet
	default:
	}
	s.moved <- nc
}

// announce sends this replica's announcement to the others.
func (s *Spread) announce(hello, leaving bool) {
	s.mu.Lock()
	a := s.roster.announce()
	s.mu.Unlock()
	a.Hello, a.Leaving, a.Stays = hello, a.Leaving || leaving, a.Stays && !leaving
	body, err := json.Marshal(a)
	if err == nil {
		err = s.nc.Publish(s.subject, body)
	}
	if err != nil {
		s.log.Debug("announcement to the other replicas not sent", slog.Any("error", err))
	}
}

// hear handles the announcement of another replica, and reports whether it asks for ours.
func (s *Spread) hear(body []byte, now time.Time) (hello bool) {
	var a announcement
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := json.Unmarshal(body, &a); err != nil || a.ID == "" || a.ID == s.roster.id {
		return false
	}
	if ours := len(s.serves); a.Partitions != ours {
		if !s.warned {
			s.warned = true
			s.log.Warn("another replica of this stage has a different number of partitions",
				slog.String("replica", a.ID), slog.Int("theirs", a.Partitions),
				slog.Int("ours", ours),
				slog.String("reason", s.explain(streams.NewSettingError(streams.FieldPartitions,
					"give all replicas the same %s", streams.FieldPartitions))))
		}
		return false
	}
	s.roster.hear(a, now)
	return a.Hello
}

// rejoin listens again before it decides: without a connection no replica was heard,
// which does not mean that there is none. This replica keeps what it serves meanwhile.
func (s *Spread) rejoin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.roster.reunite(time.Now())
	s.listening = true
}

// listened ends the time of listening: from now on this replica decides.
func (s *Spread) listened() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listening = false
	for p := range s.changed {
		s.wake(p)
	}
}

// decide works out what this replica should serve and look at, and wakes the partitions
// for which that has changed.
func (s *Spread) decide(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listening || !s.nc.IsConnected() {
		return
	}
	gone := s.roster.forget(now)
	s.others.Store(int32(s.roster.serving())) //nolint:gosec // far fewer
	for p, serve := range s.roster.serve(now) {
		look := s.roster.lookAt(p)
		if serve != s.serves[p] || !look.Equal(s.looks[p]) || gone {
			s.serves[p], s.looks[p] = serve, look
			s.wake(p)
		}
	}
}

func (s *Spread) wake(partition int) {
	select {
	case s.changed[partition] <- struct{}{}:
	default:
	}
}

// Should reports whether this replica should serve the partition. A nil Spread says that
// it should.
func (s *Spread) Should(partition int) bool {
	if s == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.serves[partition]
}

// Others returns how many other replicas serve partitions, so that their calls go where
// ours go. Those that only stand by or are leaving start no calls. Without a connection
// it stays what it was; a nil Spread knows of none.
func (s *Spread) Others() int {
	if s == nil {
		return 0
	}
	return int(s.others.Load())
}

// Changes holds a token when the answer of [Spread.Should] or [Spread.LookAt] may have
// changed, or a replica is gone. It is for the partition's one consumer.
func (s *Spread) Changes(partition int) <-chan struct{} {
	if s == nil {
		return nil
	}
	return s.changed[partition]
}

// LookAt returns when the consumer of a partition that this replica should not serve
// should be looked at. Zero means not before there is a change.
func (s *Spread) LookAt(partition int) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listening {
		return time.Time{}
	}
	return s.roster.lookAt(partition)
}

// Disputed reports whether that look should read the log, too.
func (s *Spread) Disputed(partition int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.roster.disputed(partition)
}

// Saw records what that look has shown.
func (s *Spread) Saw(partition int, seen Sight) {
	s.mu.Lock()
	s.roster.saw(partition, seen, time.Now())
	s.mu.Unlock()
	s.decide(time.Now())
}

// Own notes how this replica serves the partition from now on, and announces it soon.
func (s *Spread) Own(partition int, service Service) {
	s.change(func(r *roster) { r.own(partition, service, time.Now()) })
}

// Release notes that this replica begins to release the partition: from now on until the
// partition is free its rows wait for the calls in flight.
func (s *Spread) Release(partition int) {
	s.change(func(r *roster) { r.release(partition, time.Now()) })
}

// StandBy notes whether this replica waits for the partition, and announces it soon.
func (s *Spread) StandBy(partition int, waits bool) {
	s.change(func(r *roster) { r.places[partition].standby = waits })
}

// Leave has this replica hand over what it serves to replicas that stand by for it, and
// take no more, until it is called with false. What nobody stands by for it keeps, and it
// takes over a partition whose rows wait and that nobody serves.
func (s *Spread) Leave(on bool) { s.change(func(r *roster) { r.leaving = on }) }

// Leaves reports whether it does. A nil Spread does not.
func (s *Spread) Leaves() bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.roster.leaving
}

// Avoid has another replica take a partition from this one, until it is called with
// false. This one may get another in its place, as the shares stay as even as they can.
// It serves the partition all the same while no other stands by for it, and takes it over
// where its rows wait and nobody serves them.
func (s *Spread) Avoid(partition int, on bool) {
	s.change(func(r *roster) { r.places[partition].avoid = on })
}

// Lost returns the replicas that fell silent within the last minute without leaving, by
// id, and when each was last heard. A nil Spread knows of none.
func (s *Spread) Lost() map[string]time.Time {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.roster.lost)
}

func (s *Spread) change(do func(*roster)) {
	if s == nil {
		return
	}
	s.mu.Lock()
	do(s.roster)
	s.mu.Unlock()
	select {
	case s.news <- struct{}{}:
	default:
	}
}
