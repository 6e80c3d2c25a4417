package tail

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// serverSkew is how far the clocks of servers may be apart for a result to bound the
	// time of its row's events.
	serverSkew = 2 * time.Second
	// partitionsTried is how many partitions are looked at for a row of which nothing
	// says where it is.
	partitionsTried = 16
)

// span is the time in which a row's events were stored. A zero time is unknown.
type span struct {
	since, until time.Time
	result       *emission // of the row, or nil if there is none, or it was not looked for
	// sure says that there are no events of the row outside of the span. For example, a row
	// without a result is still in the input, and was taken within the window if at all.
	sure bool
}

// locate returns when the events of the row were stored, as its result shows, so that a
// story reads a small part of an audit that may have millions of events. Results are in
// the order of the rows, so it takes a look at some thirty of them to find the row's. All
// events of a row are stored before its result. In stream order no owner takes a row
// before the results of all rows more than a window before it are stored.
func (r *search) locate(ctx context.Context, source *jetstream.RawStreamMsg) (span, error) {
	partitions := r.partitions(source)
	for _, p := range partitions {
		filter := stored.LogSubject(r.cfg, p, "rows")
		own, last, err := r.findEmitted(ctx, filter)
		if err != nil || last == nil {
			return span{}, err
		}
		_, anyOrder := progressOf(last)
		switch {
		case own == nil && len(partitions) > 1: // it is in another one, or nowhere
			continue
		case own == nil && anyOrder:
			return span{}, nil
		case own == nil:
			since, err := r.windowBefore(ctx, filter, last.Sequence)
			return span{since: since, sure: true}, err
		}
		seq, low := progressOf(own)
		if low { // its own result may be before that
			return span{until: own.Time.Add(serverSkew)}, nil
		}
		if seq == r.row {
			since, err := r.windowBefore(ctx, filter, own.Sequence)
			result := &emission{at: own.Sequence, stored: own.Time, owner: own.Header.Get(streams.HeaderOwner)}
			return span{since: since, until: own.Time.Add(serverSkew), result: result}, err
		}
	}
	return span{}, nil
}

// partitions returns the partitions in which the row may be, or none if that is unknown.
func (r *search) partitions(source *jetstream.RawStreamMsg) []int {
	n := r.cfg.Streams.Partitions
	switch {
	case r.partition != nil:
		return []int{*r.partition}
	case n == 1:
		return []int{0}
	case source != nil:
		if p, ok := PartitionOf(r.cfg, source.Subject); ok {
			return []int{p}
		}
		return nil
	case n > partitionsTried:
		return nil
	}
	all := make([]int, n)
	for p := range all {
		all[p] = p
	}
	return all
}

// PartitionOf reads the partition from the subject of a row.
func PartitionOf(cfg *config.Config, subject string) (int, bool) {
	tokens := strings.Split(subject, ".")
	for i, token := range strings.Split(cfg.Input.Subject, ".") {
		if token == "{partition}" && i < len(tokens) {
			p, err := strconv.Atoi(tokens[i])
			return p, err == nil
		}
	}
	return 0, false
}

// findEmitted returns the first result of a partition by which the row must have had its
// own, or nil. In stream order it is the row's own, or that of a later row. last is the
// last result of the partition, or nil.
func (r *search) findEmitted(ctx context.Context, filter string) (found, last *jetstream.RawStreamMsg, err error) {
	nc, stream := r.js.Conn(), r.cfg.Result.Stream
	if last, err = streams.LastMessage(ctx, nc, stream, filter); err != nil || last == nil {
		return nil, nil, err
	}
	if done, _ := progressOf(last); done < r.row {
		return nil, last, nil
	}
	// found is the first result so far that is late enough, and all from it to high are.
	found = last
	for low, high := uint64(1), last.Sequence; low < high; {
		middle := low + (high-low)/2
		m, err := streams.NextMessage(ctx, nc, stream, filter, middle)
		if err != nil || m == nil { // m is nil if they have left the stream meanwhile
			return nil, last, err
		}
		if done, _ := progressOf(m); done >= r.row {
			found, high = m, middle
		} else {
			low = m.Sequence + 1
		}
	}
	return found, last, nil
}

// progressOf returns the row up to which all rows had their results when a result was
// stored. In stream order that is the result's own row. In other orders the result names
// it, and low is true.
func progressOf(m *jetstream.RawStreamMsg) (done uint64, low bool) {
	if text := m.Header.Get(streams.HeaderLow); text != "" {
		done, _ = strconv.ParseUint(text, 10, 64)
		return done, true
	}
	done, _ = strconv.ParseUint(m.Header.Get(streams.HeaderSourceSeq), 10, 64)
	return done, false
}

// windowBefore returns when the result was stored that is a window before another one,
// with a margin. It is zero if there is none.
func (r *search) windowBefore(ctx context.Context, filter string, at uint64) (time.Time, error) {
	window := uint64(r.cfg.Window.Rows) //nolint:gosec // not negative
	behind, err := r.pending(ctx, filter, at)
	if err != nil {
		return time.Time{}, err
	}
	for back := 2 * window; back < at; back *= 4 {
		n, err := r.pending(ctx, filter, at-back)
		if err != nil {
			return time.Time{}, err
		}
		if n-min(n, behind) <= window {
			continue // results of other partitions lie between
		}
		m, err := streams.NextMessage(ctx, r.js.Conn(), r.cfg.Result.Stream, filter, at-back)
		if err != nil || m == nil {
			return time.Time{}, err
		}
		return m.Time.Add(-serverSkew), nil
	}
	return time.Time{}, nil
}

// pending is how many results of a partition there are from a sequence on.
func (r *search) pending(ctx context.Context, filter string, from uint64) (uint64, error) {
	o := r.options(time.Time{})
	o.Stream, o.Filters, o.From, o.HeadersOnly = r.cfg.Result.Stream, []string{filter}, from, true
	reader, err := stored.Open(ctx, r.js, o)
	if err != nil {
		return 0, err
	}
	defer reader.Close()
	return reader.Left, nil
}
