package consumer

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/llm-stage/stage/consumer/spread"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// promptLook leaves a request time to be served before the consumer is looked at: a
	// stage that starts again after it was killed finds its rows taken and nobody pinned,
	// and need not wait for the pin to run out.
	promptLook = 10 * time.Millisecond
	// orphanWaitMax spreads the second look of those who stand by.
	orphanWaitMax = 150 * time.Millisecond
	// idleLookAlone and idleLookMost bound the time between two looks of those who stand
	// by where no row waits. Without a spread nobody says that a replica is gone, which
	// may have been given a row just before. It grows only after idleAfter: servers that
	// have just elected a leader may say for a moment that no row waits and none is
	// taken.
	idleLookAlone = 4 * time.Second
	idleLookMost  = 30 * time.Second
	idleAfter     = 15 * time.Second
)

// asideLook is the time between two looks of a replica that stands aside at the partition
// that it has left to the others. asideLooks is how many looks in a row must find that
// nobody serves it. Further looks are 1.1 × PinnedTTL apart: a live owner without room for
// a row renews its pull request every 0.4 × PinnedTTL, and the request waits for half of
// that, so at least one look sees it.
const (
	asideLook  = 5 * time.Second
	asideLooks = 4
)

// standby is one wait for a partition: first for this replica's turn, by the spread or an
// operator, and then for the pin, which the server gives to one client, or for proof that
// nobody holds it. The goroutine of [Consumer.Run] owns it.
type standby struct {
	c       *Consumer
	durable *streams.Durable
	lost    <-chan nats.Status
	// unserved is how many looks in a row of a replica that stands aside have found that
	// rows wait and nobody serves them.
	unserved int
}

// wait waits until this process may claim the partition, and returns the pin; empty when
// it goes on without one. Once soft has ended, the caller ignores what wait returns.
//
// A pinned replica claims again, fenced or not, since no other gets a row:
//
//	A has no pin, and its request waits. B sees nobody pinned, claims, and resets the
//	consumer: the rows and the pin go to A, which learns that it is fenced and releases
//	both.
//	The pin runs out. Every row is taken, nobody is pinned: C claims without a pin, and
//	its reset brings all to B. This repeats.
func (s *standby) wait(soft context.Context) (pin string, err error) {
	for {
		if err := s.awaitTurn(soft); err != nil {
			return "", err
		}
		if pin, err := s.stillPinned(soft); pin != "" || err != nil {
			return pin, err
		}
		pin, passed, err := s.askForPin(soft)
		s.c.cfg.Spread.StandBy(s.c.cfg.Partition, false)
		if err != nil || !passed {
			return pin, err
		}
		s.c.cfg.Spread.Own(s.c.cfg.Partition, spread.NotServed)
	}
}

// stillPinned returns the pin of a term that was fenced, if the server still knows it, and
// no pin otherwise. It works once for each pin.
func (s *standby) stillPinned(soft context.Context) (pin string, err error) {
	kept := s.c.fencedPin
	if s.c.fencedPin = ""; kept == "" {
		return "", nil
	}
	info, err := s.look(soft)
	if err != nil || pinned(info) != kept {
		return "", err
	}
	return kept, nil
}

// awaitTurn waits until the spread gives the partition to this replica, or until it no
// longer stands aside. Meanwhile it looks whether rows wait that nobody serves, when the
// spread asks for that.
func (s *standby) awaitTurn(soft context.Context) error {
	shares, partition := s.c.cfg.Spread, s.c.cfg.Partition
	s.unserved = 0
	if !s.c.steer.mayServe() {
		// The durable consumer was opened since, and nobody may look at it for long.
		s.c.problems.clear(problemOwnership)
	}
	for !s.c.steer.mayServe() {
		var due <-chan time.Time
		if shares == nil {
			due = time.After(asideLook)
			if s.unserved > 0 {
				due = time.After(s.c.cfg.PinnedTTL * 11 / 10)
			}
		} else if at := shares.LookAt(partition); !at.IsZero() {
			due = time.After(time.Until(at))
		}
		select {
		case <-soft.Done():
			return context.Cause(soft)
		case <-s.lost:
			return errConnectionLost
		case <-s.c.mail.signal:
			s.c.carried.collect(s.c.shared)
		case <-shares.Changes(partition):
		case <-s.c.steer.changed:
		case <-due:
			if shares == nil {
				if err := s.lookAside(soft); err != nil {
					return err
				}
				continue
			}
			if err := s.lookForOthers(soft); err != nil {
				return err
			}
		}
	}
	return nil
}

// lookAside ends the standing aside where rows wait and nobody serves them. That nobody is
// pinned does not prove it:
//
//	A stands aside. B serves the partition, and its window is full of rows that wait for
//	the end of a pause. A new leader of the durable consumer forgets the pin.
//	The server grants it again only with a row, and none is left. But B's request waits.
func (s *standby) lookAside(soft context.Context) error {
	info, err := s.look(soft)
	if err != nil {
		return err
	}
	rows := info.NumPending+uint64(info.NumAckPending) > 0 //nolint:gosec // not negative
	if pinned(info) != "" || info.NumWaiting > 0 || !rows {
		s.unserved = 0
		return nil
	}
	if s.unserved++; s.unserved == asideLooks {
		s.c.log.Warn("rows are pending and no replica serves the partition, taking it back",
			slog.Uint64("pending", info.NumPending))
		s.c.steer.aside.Store(false)
	}
	return nil
}

// lookForOthers looks at a partition that another replica should serve.
func (s *standby) lookForOthers(soft context.Context) error {
	info, err := s.look(soft)
	if err != nil {
		return err
	}
	seen := spread.Sight{Pinned: pinned(info) != "", Rows: info.NumPending+uint64(info.NumAckPending) > 0}
	if seen.Rows && !seen.Pinned || s.c.cfg.Spread.Disputed(s.c.cfg.Partition) {
		end, err := s.c.results.readEnd(soft)
		if err != nil {
			return err
		}
		seen.Log, seen.Owner = true, end.owner
	}
	s.c.cfg.Spread.Saw(s.c.cfg.Partition, seen)
	if s.c.cfg.Spread.Should(s.c.cfg.Partition) {
		s.c.log.Info("rows are pending and no replica serves the partition, taking it over",
			slog.Uint64("pending", info.NumPending))
	}
	return nil
}

// look looks at the durable consumer. Where it is served, or where nothing is to be done,
// a problem of an earlier term is over: it does not concern a standby.
func (s *standby) look(soft context.Context) (*jetstream.ConsumerInfo, error) {
	info, err := s.durable.Info(soft)
	if err != nil {
		return nil, err
	}
	if pinned(info) != "" || info.NumPending == 0 && info.NumAckPending == 0 {
		s.c.problems.clear(problemOwnership)
	}
	return info, nil
}

// askForPin asks for rows until one brings the pin, or nobody turns out to hold it;
// passed says that the turn has gone to another replica in the meantime.
//
// The server grants the pin only together with a row. None can be delivered while every
// row is taken and unacked, so an owner that died so would never be replaced; then a
// standby that finds nobody pinned, twice, goes on without a pin: the first row after the
// reset brings it. The random wait keeps ten standbys from claiming at once.
func (s *standby) askForPin(soft context.Context) (pin string, passed bool, err error) {
	p, err := newPuller(s.c, s.durable, "", s.c.cfg.PinnedTTL/2)
	if err != nil {
		return "", false, err
	}
	defer p.close()
	v := newVacancy(s.c)
	look := v.began.Add(promptLook) // when to look whether anybody is pinned, if nothing comes before
	for {
		now := time.Now()
		next, err := p.step(now, 1, 1<<30, true)
		if err != nil {
			return "", false, err
		}
		select {
		case <-soft.Done():
			return "", false, context.Cause(soft)
		case <-s.lost:
			return "", false, errConnectionLost
		case <-s.c.mail.signal:
			s.c.carried.collect(s.c.shared)
			continue
		case <-s.c.steer.changed:
			if !s.c.steer.mayServe() {
				return "", true, nil
			}
			continue
		case <-s.c.cfg.Spread.Changes(s.c.cfg.Partition):
			if !s.c.cfg.Spread.Should(s.c.cfg.Partition) {
				// A row that comes to the request in flight is found missing by its next
				// owner.
				return "", true, nil
			}
			// Another replica may be gone.
			v.idle, look = v.usual, soonest(look, now.Add(rand.N(orphanWaitMax)))
			continue
		case m := <-p.msgs:
			pin, granted, err := s.granted(soft, p, m)
			if granted || err != nil {
				return pin, false, err
			}
			continue
		case <-time.After(soonest(look, next).Sub(now)):
			if time.Now().Before(look) {
				continue
			}
		}
		info, err := s.look(soft)
		if err != nil {
			return "", false, err
		}
		s.c.cfg.Spread.StandBy(s.c.cfg.Partition, true)
		orphaned, wait := v.saw(soft, info)
		if orphaned {
			return "", false, nil
		}
		look = time.Now().Add(wait)
	}
}

// granted reports whether a message is a row, which brings the pin, and returns the pin. It
// is empty where the row does not name it and nobody is pinned by now.
func (s *standby) granted(soft context.Context, p *puller, m *nats.Msg) (pin string, granted bool, err error) {
	row, err := p.received(m, time.Now())
	if err != nil || !row {
		return "", false, err
	}
	if !p.unnamed {
		return p.pin, true, nil
	}
	info, err := s.look(soft)
	if err != nil {
		return "", false, err
	}
	return pinned(info), true, nil
}

// vacancy is what a standby has seen of a partition that may have no owner.
type vacancy struct {
	c        *Consumer
	began    time.Time
	usual    time.Duration // between two looks
	idle     time.Duration // while no row waits
	idleMost time.Duration
	seen     bool // the last look found rows taken or missing, and nobody pinned
	compared bool // the results were compared with the acks, see endsShort
	short    bool // what that comparison has found
}

func newVacancy(c *Consumer) *vacancy {
	usual := c.cfg.PinnedTTL + c.cfg.PinnedTTL/10
	v := &vacancy{c: c, began: time.Now(), usual: usual, idle: usual, idleMost: idleLookMost}
	if c.cfg.Spread == nil {
		v.idleMost = idleLookAlone
	}
	return v
}

// saw takes a look at the consumer. orphaned says that two looks have found the partition
// without an owner. If not, the next look is after wait.
func (v *vacancy) saw(ctx context.Context, info *jetstream.ConsumerInfo) (orphaned bool, wait time.Duration) {
	if pinned(info) != "" {
		// A pinned replica may set the consumer behind rows that it holds, and die:
		// compare again then.
		v.seen, v.compared, v.short, v.idle = false, false, false, v.usual
		return false, v.usual
	}
	idle := info.NumPending == 0 && info.NumAckPending == 0
	if idle && !v.compared {
		v.compared, v.short = v.endsShort(ctx, info)
	}
	switch {
	case info.NumAckPending > 0 || v.short:
		orphaned, v.seen = v.seen, true
		return orphaned, rand.N(orphanWaitMax)
	case !idle:
		v.seen = false
		return false, v.usual
	}
	v.seen = false
	wait = v.idle
	if time.Since(v.began) > idleAfter {
		v.idle = min(2*v.idle, v.idleMost)
	}
	return false, wait
}

// endsShort reports whether the results end before a row that is acked, or that the
// consumer was set behind: a power cut has taken what the server had not synced to the
// disk, they are restored from a backup, or an owner died that had reset the consumer to
// the row after the ones that it had taken. With every row acked, none would come that
// brings the pin, and the results would stay short until the next new row. known is false
// without an answer.
func (v *vacancy) endsShort(ctx context.Context, info *jetstream.ConsumerInfo) (known, short bool) {
	end, err := v.c.results.readEnd(ctx)
	if err != nil {
		return false, false
	}
	next, err := nextInput(ctx, v.c, end.low+1)
	return err == nil, next != 0 && next <= info.AckFloor.Stream
}

// pinned returns the pin that the server knows; empty when nobody is pinned.
func pinned(info *jetstream.ConsumerInfo) string {
	for _, g := range info.PriorityGroups {
		if g.Group == streams.PinGroup {
			return g.PinnedClientID
		}
	}
	return ""
}
