package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// headerLoad and headerLoadRow say of which file a row is, and which row of it, counted from 1.
	headerLoad    = "Stage-Load-Id"
	headerLoadRow = "Stage-Load-Row"
	// headerRowError marks a row whose own body no message can hold, with the reason of its error result; the others tell
	// its size and what there is room for. The body then is the beginning of the row's.
	headerRowError = "Stage-Row-Error"
	headerRowSize  = "Stage-Row-Size"
	headerRowLimit = "Stage-Row-Limit"

	loadGroupRows  = 500
	loadGroupBytes = 4 << 20
	loadRetryMax   = 5 * time.Second
)

// laneOf returns how rows are spread over partitions: by the value of a field, so that rows of equal value keep their
// order, or each in turn when key is empty. Rows without the field, and those that are no objects, stay together too.
func laneOf(key string, partitions int) func(body []byte, n int64) int {
	if key == "" {
		return func(_ []byte, n int64) int { return int((n - 1) % int64(partitions)) }
	}
	return func(body []byte, _ int64) int {
		var fields map[string]json.RawMessage
		_ = json.Unmarshal(body, &fields) // what is no object has no field either
		h := fnv.New32a()
		_, _ = h.Write(fields[key]) // a hash never fails
		return int(h.Sum32() % uint32(partitions))
	}
}

// subjects tells where the rows go.
func (l *loader) subjects() string {
	if len(l.lanes) == 1 {
		return l.lanes[0].Publish
	}
	return fmt.Sprintf("%s … (%d partitions)", l.lanes[0].Publish, len(l.lanes))
}

// loader publishes the rows of one source to the input stream, in order, each once, whatever is killed. A group of rows is
// one atomic batch, on condition that the subject of its first row still ends where this loader left it; on a stream
// without batches it is one row at a time. Where it was is read from the stream: the last row there names its place in the
// source. Two loaders of one source publish the same row first, on the same subject, so one of them is refused.
type loader struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	stream string
	id     string
	batch  bool
	lanes  []lane // one for each partition
	// laneOf chooses the partition of row n of the source, counted from 1. It must always choose the same.
	laneOf func(body []byte, n int64) int
}

// lane is how a source's rows get into one partition.
type lane struct {
	consumer.InputAddress
	end uint64 // stream sequence of the last message there
}

// newLoader finds out how far an earlier load of the same source came. The subjects below input that id makes must belong
// to this source alone. LaneOf may be nil with one partition.
func newLoader(ctx context.Context, nc *nats.Conn, cfg *Config, id string, laneOf func([]byte, int64) int) (l *loader, loaded int64, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, 0, err
	}
	s, err := js.Stream(ctx, cfg.Input.Stream)
	if err != nil {
		return nil, 0, fmt.Errorf("look at stream %s: %w", cfg.Input.Stream, err)
	}
	info := s.CachedInfo().Config
	l = &loader{nc: nc, js: js, stream: cfg.Input.Stream, id: id, batch: info.AllowAtomicPublish, laneOf: laneOf}
	for p := range cfg.Streams.Partitions {
		address, err := consumer.AddressInput(info, cfg.Input.Subject, p, id)
		if err != nil {
			return nil, 0, exitWith(exitUsage, err)
		}
		l.lanes = append(l.lanes, lane{InputAddress: address})
	}
	loaded, err = l.loaded(ctx, s)
	return l, loaded, err
}

// loaded reads the last row of this source in each partition, and with it where the subject ends. Rows go in one after the
// other, or in groups of which all or none are there, so the one furthest on tells of all.
func (l *loader) loaded(ctx context.Context, s jetstream.Stream) (furthest int64, err error) {
	for i := range l.lanes {
		lane := &l.lanes[i]
		m, err := s.GetLastMsgForSubject(ctx, lane.Stored)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			lane.end = 0
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("read the last row on %s: %w", lane.Stored, err)
		}
		row, err := strconv.ParseInt(m.Header.Get(headerLoadRow), 10, 64)
		if err != nil || m.Header.Get(headerLoad) != l.id {
			return 0, fmt.Errorf("somebody else publishes on %s, the subject of this load: message %d has no %s %s", lane.Stored, m.Sequence, headerLoad, l.id)
		}
		lane.end = m.Sequence
		furthest = max(furthest, row)
	}
	return furthest, nil
}

// run publishes what next returns until [io.EOF]. The first row that next returns is row loaded+1 of the source. stored is
// told how many rows of the source the stream holds.
func (l *loader) run(ctx context.Context, loaded int64, next func() (*nats.Msg, error), stored func(rows int64)) error {
	for {
		group, eof, err := l.gather(loaded, next)
		if len(group) > 0 {
			if storeErr := l.store(ctx, group, loaded); storeErr != nil {
				return storeErr
			}
			loaded += int64(len(group))
			stored(loaded)
		}
		if err != nil || eof {
			return err
		}
	}
}

// lane returns that of row n.
func (l *loader) lane(body []byte, n int64) *lane {
	if len(l.lanes) == 1 {
		return &l.lanes[0]
	}
	return &l.lanes[l.laneOf(body, n)]
}

// gather takes the next group of rows.
func (l *loader) gather(loaded int64, next func() (*nats.Msg, error)) (group []*nats.Msg, eof bool, err error) {
	most, bytes := loadGroupRows, 0
	if !l.batch {
		most = 1
	}
	for len(group) < most && bytes < loadGroupBytes {
		m, err := next()
		if errors.Is(err, io.EOF) {
			return group, true, nil
		}
		if err != nil {
			return group, false, err
		}
		if m.Header == nil {
			m.Header = make(nats.Header, 2)
		}
		n := loaded + int64(len(group)) + 1
		m.Subject = l.lane(m.Data, n).Publish
		m.Header.Set(headerLoad, l.id)
		m.Header.Set(headerLoadRow, strconv.FormatInt(n, 10))
		bytes += len(m.Data)
		group = append(group, m)
	}
	return group, false, nil
}

// store appends one group, the first after row loaded, and tries again until it is stored, ctx ends, or the server can't
// take it.
func (l *loader) store(ctx context.Context, group []*nats.Msg, loaded int64) error {
	last := loaded + int64(len(group))
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, loadRetryMax) {
		first := l.lane(group[0].Data, loaded+1)
		group[0].Header.Set("Nats-Expected-Last-Subject-Sequence", strconv.FormatUint(first.end, 10))
		seq, err := consumer.Append(ctx, l.nc, group)
		if err == nil {
			for i, m := range group { // nothing comes between the messages of a group
				l.lane(m.Data, loaded+1+int64(i)).end = seq - uint64(len(group)-1-i)
			}
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// No answer may mean that it is stored: the stream knows.
		s, readErr := l.js.Stream(ctx, l.stream)
		if readErr == nil {
			now, readErr := l.loaded(ctx, s)
			switch {
			case readErr != nil:
			case now == last:
				return nil
			case now != loaded:
				return fmt.Errorf("load rows on %s: another load of the same source is running", first.Publish)
			case errors.Is(err, consumer.ErrRefused) && ctx.Err() == nil && !mayPass(err):
				return fmt.Errorf("load rows: %w", err)
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

// mayPass tells whether the server's refusal is about the moment: no leader, a conflict that the stream does not show.
func mayPass(err error) bool {
	text := err.Error()
	return strings.Contains(text, "no stream captures") || strings.Contains(text, "wrong last") || strings.Contains(text, "unavailable")
}
