package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go/jetstream"
)

// way is a row's way through the stage: when it was taken, its call sent and answered, by
// the stage's clock, and when its result was stored, by the server's, which is that of
// the same machine.
type way struct{ taken, sent, answered, stored time.Time }

func (w way) fromTaken() time.Duration { return w.stored.Sub(w.taken) }

func (w way) fromSent() time.Duration { return w.stored.Sub(w.sent) }

func (w way) call() time.Duration { return w.answered.Sub(w.sent) }

// ways returns those of the rows that have their result, by number.
func (s *site) ways(ctx context.Context) (map[int]way, error) {
	all := make(map[int]way)
	err := s.readAll(ctx, "RESULTS", resultSubject, true, func(m jetstream.Msg) error {
		seq, err := strconv.Atoi(m.Headers().Get(streams.HeaderSourceSeq))
		meta, metaErr := m.Metadata()
		if err := errors.Join(err, metaErr); err != nil {
			return err
		}
		all[seq-1] = way{stored: meta.Timestamp}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, s.readAll(ctx, "AUDIT", "audit.stage.0.row", false, func(m jetstream.Msg) error {
		e, err := auditlog.Decode(m.Data())
		if err != nil {
			return err
		}
		n := int(e.Row.Sequence) - 1 //nolint:gosec // the number of a row
		if w, done := all[n]; done {
			w.taken, w.sent, w.answered = e.Row.QueuedAt, e.Row.StartedAt, e.Row.FinishedAt
			all[n] = w
		}
		return nil
	})
}

// readAll calls each with all messages of a subject.
func (s *site) readAll(ctx context.Context, stream, subject string, headersOnly bool, each func(jetstream.Msg) error) error {
	from, err := s.js.Stream(ctx, stream)
	if err != nil {
		return err
	}
	info, err := from.Info(ctx, jetstream.WithSubjectFilter(subject))
	if err != nil {
		return err
	}
	cfg := jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}, HeadersOnly: headersOnly}
	return s.read(ctx, stream, cfg, int(info.State.Subjects[subject]), each) //nolint:gosec // a count of messages
}

// spans are times of some rows in the stage, and what their calls took of them, over all
// rounds.
type spans struct {
	list, before, calls, after []time.Duration // in all, until the call was sent, the call, from its end to the result stored
	rates                      []float64       // p99 by that of the calls, of each round
}

// byOrder is the spans of each order.
type byOrder map[string]*spans

// add adds the times of a turn's rows that are asked for.
func (b byOrder) add(o ordering, ways map[int]way, rows func(n int) bool, of func(way) time.Duration) {
	t := b[o.name]
	if t == nil {
		t = new(spans)
		b[o.name] = t
	}
	var list, calls []time.Duration
	for n, w := range ways {
		if rows(n) {
			list, calls = append(list, of(w)), append(calls, w.call())
			t.before, t.after = append(t.before, w.sent.Sub(w.taken)), append(t.after, w.stored.Sub(w.answered))
		}
	}
	slices.Sort(list)
	slices.Sort(calls)
	t.rates = append(t.rates, percentile(list, 99).Seconds()/percentile(calls, 99).Seconds())
	t.list, t.calls = append(t.list, list...), append(t.calls, calls...)
}

// msAt is a percentile of times in ms.
func msAt(list []time.Duration, p int) float64 {
	return ms(percentile(slices.Sorted(slices.Values(list)), p))
}

// partsHead are the columns of parts.
const partsHead = "until the call: p50, p99 ms | the call: p50, p99 ms | after it: p50, p99 ms | p99 by the calls'"

// parts are the columns that say where the time goes.
func (t *spans) parts() string {
	part := func(list []time.Duration) string { return fmt.Sprintf("%.1f, %.1f", msAt(list, 50), msAt(list, 99)) }
	return fmt.Sprintf("%s | %s | %s | %.2f", part(t.before), part(t.calls), part(t.after), t.ratio())
}

// ratio is the median of the rounds' p99 by that of the calls.
func (t *spans) ratio() float64 { return middle(t.rates) }

// meanCall is that of the rows that are asked for, in seconds.
func meanCall(ways map[int]way, rows func(n int) bool) float64 {
	var sum time.Duration
	count := 0
	for n, w := range ways {
		if rows(n) {
			sum += w.call()
			count++
		}
	}
	return sum.Seconds() / float64(count)
}
