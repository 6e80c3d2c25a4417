package consumer

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// spreadEvery is how often a replica tells the others of itself; spreadForget is after how long a silent one is taken
	// for gone: three messages in a row got lost. It is longer than a pin lives, so the partitions of a replica that was
	// killed wait for this.
	spreadEvery  = 500 * time.Millisecond
	spreadForget = 1600 * time.Millisecond
	// spreadListen is how long a replica that starts listens to the answers of the others before it takes anything.
	spreadListen = 250 * time.Millisecond
	// spreadPatience is how long rows of a partition may wait, seen twice, before anybody takes it, whoever should: that
	// one may be alive and still unable to.
	spreadPatience = 3 * time.Second
)

// Spread spreads the partitions of a stage evenly over its replicas: nobody hoards, and when a replica comes or goes, as
// few partitions move as can. The replicas tell each other over core NATS what they own, and each decides by the same
// rule what it should take and what to give up.
//
// It is advice. Who owns a partition is decided by the log alone, so a message that is lost, late or a lie costs an
// uneven spread for a while, or a hand-over too many, never a result. Where the subject is not permitted every replica
// thinks that it is alone and takes what it can get.
//
// Make one for each process with [NewSpread] and give it to the [Config] of every partition. Methods are safe for
// concurrent use.
type Spread struct {
	nc         *nats.Conn
	subject    string
	id         string
	partitions int
	log        *slog.Logger
	news       chan struct{} // holds a token while this replica has something to tell

	mu        sync.Mutex
	peers     map[string]peer
	owned     map[int]bool
	mine      []bool          // what this replica should serve
	changed   []chan struct{} // one a partition; holds a token when mine has changed
	listening bool            // for the others, before the first decision
	warned    bool            // of a replica with another number of partitions
}

// peer is another replica, as it told last.
type peer struct {
	owned []int
	heard time.Time
}

// announcement is what a replica tells the others.
type announcement struct {
	ID         string `json:"id"`
	Partitions int    `json:"partitions"`
	Owned      []int  `json:"owned"`
	// Hello asks the others to tell of themselves at once.
	Hello bool `json:"hello,omitempty"`
	// Leaving says that what it owns will soon be free.
	Leaving bool `json:"leaving,omitempty"`
}

// SpreadSubject is where the replicas of a stage tell each other of themselves.
func SpreadSubject(name string) string { return "llm-stage." + name + ".replicas" }

// NewSpread returns a Spread for the stage of that name with that many partitions. Id tells this process from all
// others. [Spread.Run] does the work; until then no partition is to be served.
func NewSpread(nc *nats.Conn, name, id string, partitions int, log *slog.Logger) *Spread {
	s := &Spread{
		nc: nc, subject: SpreadSubject(name), id: id, partitions: partitions, log: log,
		news: make(chan struct{}, 1), peers: make(map[string]peer), owned: make(map[int]bool),
		mine: make([]bool, partitions), changed: make([]chan struct{}, partitions),
		listening: true,
	}
	for p := range s.changed {
		s.changed[p] = make(chan struct{}, 1)
	}
	return s
}

// Run takes part until ctx ends. When soft ends it tells the others that this replica is leaving, so that they stand by
// for what it hands over. The error is that of the subscription.
func (s *Spread) Run(soft, ctx context.Context) error {
	heard := make(chan *nats.Msg, 256) // a burst of hellos; what does not fit is said again
	sub, err := s.nc.ChanSubscribe(s.subject, heard)
	if err != nil {
		return fmt.Errorf("listen to the other replicas: %w", err)
	}
	defer sub.Unsubscribe() //nolint:errcheck // nobody listens any more either way
	listened := time.NewTimer(spreadListen)
	defer listened.Stop()
	tick := time.NewTicker(spreadEvery)
	defer tick.Stop()
	leaving := soft.Done()
	s.tell(announcement{Hello: true})
	for {
		select {
		case <-ctx.Done():
			s.tell(announcement{Leaving: true})
			return nil
		case <-leaving:
			leaving = nil
			s.tell(announcement{Leaving: true})
			continue
		case m := <-heard:
			if hello := s.hear(m.Data, time.Now()); !hello {
				break
			}
			s.tell(announcement{Leaving: soft.Err() != nil})
		case <-listened.C:
			s.mu.Lock()
			s.listening = false
			s.mu.Unlock()
		case <-s.news:
			s.tell(announcement{Leaving: soft.Err() != nil})
		case <-tick.C:
			s.tell(announcement{Leaving: soft.Err() != nil})
		}
		s.decide(time.Now())
	}
}

// tell sends an announcement, completed by what this replica owns.
func (s *Spread) tell(a announcement) {
	s.mu.Lock()
	a.ID, a.Partitions, a.Owned = s.id, s.partitions, slices.Sorted(maps.Keys(s.owned))
	s.mu.Unlock()
	body, err := json.Marshal(a)
	if err == nil {
		err = s.nc.Publish(s.subject, body)
	}
	if err != nil {
		s.log.Debug("the other replicas are not told", slog.Any("error", err))
	}
}

// hear takes the announcement of another replica, and reports whether it asks for ours.
func (s *Spread) hear(body []byte, now time.Time) (hello bool) {
	var a announcement
	if err := json.Unmarshal(body, &a); err != nil || a.ID == "" || a.ID == s.id {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case a.Partitions != s.partitions:
		if !s.warned {
			s.warned = true
			s.log.Warn("another replica of this stage has another number of partitions: give all the same STAGE_PARTITIONS",
				slog.String("replica", a.ID), slog.Int("theirs", a.Partitions), slog.Int("ours", s.partitions))
		}
		return false
	case a.Leaving:
		delete(s.peers, a.ID)
	default:
		s.peers[a.ID] = peer{owned: a.Owned, heard: now}
	}
	return a.Hello
}

// decide works out anew what this replica should serve, and wakes the partitions for which that has changed.
func (s *Spread) decide(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listening {
		return
	}
	members := []member{{id: s.id, owned: slices.Collect(maps.Keys(s.owned))}}
	for id, p := range s.peers {
		if now.Sub(p.heard) > spreadForget {
			delete(s.peers, id)
			continue
		}
		members = append(members, member{id: id, owned: p.owned})
	}
	for p, id := range assign(members, s.partitions) {
		if mine := id == s.id; mine != s.mine[p] {
			s.mine[p] = mine
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

// should tells whether this replica should serve the partition. A nil Spread says that it should.
func (s *Spread) should(partition int) bool {
	if s == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mine[partition]
}

// changes holds a token when the answer of should may have changed. It is for the partition's one consumer.
func (s *Spread) changes(partition int) <-chan struct{} {
	if s == nil {
		return nil
	}
	return s.changed[partition]
}

// own notes whether this replica owns the partition, and has the others told at once.
func (s *Spread) own(partition int, owned bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	if owned {
		s.owned[partition] = true
	} else {
		delete(s.owned, partition)
	}
	s.mu.Unlock()
	select {
	case s.news <- struct{}{}:
	default:
	}
}
