package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	addedRate = 500 // rows a second
	addedCall = 50 * time.Millisecond
	addedRows = 5000
	addedFrom = 2 * addedRate // rows before are the warm-up
)

// added publishes rows at a moderate pace and measures what is added to a call: the time
// from the row stored to its result stored, both as the server stamped them, less the
// time that the LLM takes. It holds the way to the stage and back, the HTTP client, the
// wait for earlier rows, and the audit. The first round is a table of its own: the server
// gets the memory of its streams in it, and who comes first in a round pays more of that.
func (s *site) added(ctx context.Context, rounds int) error {
	sc := addedScenario()
	fmt.Printf("\n**added**: what is added to calls of %s at %d rows/s, from the row stored to its result stored less the call, %d rows a round\n", addedCall, addedRate, addedRows-addedFrom)
	if err := s.addedIn(ctx, sc, 1, "the server has just started"); err != nil {
		return err
	}
	return s.addedIn(ctx, sc, rounds, "then, in "+inRounds(rounds))
}

func addedScenario() *scenario {
	return &scenario{rows: addedRows, pool: 100, rowBytes: 1024, latency: addedCall}
}

// addedIn measures some rounds, in each of which another contender is the first.
func (s *site) addedIn(ctx context.Context, sc *scenario, rounds int, title string) error {
	who := []string{"stage", "dh"}
	times := make(map[string][]time.Duration)
	for round := range rounds {
		for i := range who {
			who := who[(round+i)%len(who)]
			list, err := s.addedBy(ctx, sc, who)
			if err != nil {
				return err
			}
			times[who] = append(times[who], list...)
		}
	}
	fmt.Printf("\n%s:\n\n", title)
	latencies(who, times)
	return nil
}

func (s *site) addedBy(ctx context.Context, sc *scenario, who string) (list []time.Duration, err error) {
	err = s.during(ctx, sc, who, 0, func(t *turn) error {
		if err := s.pace(ctx, sc, addedRate); err != nil {
			return err
		}
		if _, err := t.until(ctx, rowsDone(sc.rows)); err != nil {
			return err
		}
		stored, err := s.stamps(ctx, "ROWS", "rows.a", sc.rows)
		if err != nil {
			return err
		}
		done, err := s.stamps(ctx, "RESULTS", resultSubject, sc.rows)
		for n := addedFrom; n < len(done); n++ {
			list = append(list, done[n].Sub(stored[n])-sc.latency)
		}
		return err
	})
	return list, err
}

// pace publishes the rows of a scenario, so many a second, evenly, and sees that all are
// stored.
func (s *site) pace(ctx context.Context, sc *scenario, perSec int) error {
	began := time.Now()
	for n := range sc.rows {
		time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(perSec))))
		if _, err := s.js.PublishAsync(sc.subject(n), sc.row(n)); err != nil {
			return err
		}
	}
	select {
	case <-s.js.PublishAsyncComplete():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stamps returns when the server stored each row, or its result, by the row's number.
func (s *site) stamps(ctx context.Context, stream, subject string, rows int) (map[int]time.Time, error) {
	all := make(map[int]time.Time, rows)
	cfg := jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}}
	return all, s.read(ctx, stream, cfg, rows, func(m jetstream.Msg) error {
		number, _, _ := strings.Cut(strings.TrimPrefix(string(m.Data()), `{"n":`), ",")
		n, err := strconv.Atoi(number)
		meta, metaErr := m.Metadata()
		if err := errors.Join(err, metaErr); err != nil {
			return err
		}
		all[n] = meta.Timestamp
		return nil
	})
}
