package usage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// valueBytesMax bounds the text of a value. Longer texts are cut off, so values that
	// begin alike are one.
	valueBytesMax = 256
	// rowsOfChunk is how many consecutive rows share a chunk of an index.
	rowsOfChunk = 1 << 12
)

// fields knows the value that a member has in each row. The events of the audit don't have
// it, so it is read from the input streams that they name, and from the results where a row
// is gone. It takes two bytes a row. It is not safe for concurrent use.
type fields struct {
	name    string // of the member
	cfg     *config.Config
	inputs  map[string]*index // by stream
	results map[string]*index // by stage

	values []string // the values that are distinguished; an index has places in this list
	places map[string]uint16
}

// index is the value of each row that was read.
type index struct {
	chunks      map[uint64]*[rowsOfChunk]uint16 // 0 means that a row was not found
	first, last uint64                          // all rows between these sequences were read
}

// The first values of the list.
const (
	notFound  = iota
	noValue   // the row has no such member, or is no JSON object
	furtherOf // beyond the values that are told apart
)

func newFields(cfg *config.Config, name string) *fields {
	return &fields{
		name: name, cfg: cfg, inputs: make(map[string]*index), results: make(map[string]*index),
		values: []string{"", "", otherGroup}, places: map[string]uint16{"": noValue},
	}
}

// of returns the value in the row of a call. It is empty where there is no such member, and
// for a call without a row. found is false if the row is no longer stored.
func (f *fields) of(ctx context.Context, js jetstream.JetStream, c *auditlog.Call) (value string, found bool, err error) {
	if c.Sequence == 0 { // a batched request
		return "", true, nil
	}
	stream := f.cfg.Input.Stream
	if parts := strings.Split(c.StateID, "/"); len(parts) == 4 { // name/stream/partition/sequence
		stream = parts[1]
	}
	at, err := f.inRow(ctx, js, stream, c.Sequence)
	if err == nil && at == notFound {
		at, err = f.inResult(ctx, js, c.Stage, c.Sequence)
	}
	return f.values[at], at != notFound, err
}

// inRow looks a row up in an input stream. The first time it reads all rows from there on.
func (f *fields) inRow(ctx context.Context, js jetstream.JetStream, stream string, seq uint64) (uint16, error) {
	x := f.inputs[stream]
	if x == nil {
		x = &index{chunks: make(map[uint64]*[rowsOfChunk]uint16), first: seq}
		f.inputs[stream] = x
		err := f.each(ctx, js, stored.ReadOptions{Stream: stream, Filters: []string{">"}, From: seq}, func(m *jetstream.RawStreamMsg) error {
			x.last = m.Sequence
			// A row without a body is an object of a bucket. Its result has the member.
			if len(m.Data) > 0 {
				x.set(m.Sequence, f.place(m.Data))
			}
			return nil
		})
		if err != nil {
			return notFound, err
		}
	}
	if at := x.get(seq); at != notFound || x.first <= seq && seq <= x.last {
		return at, nil
	}
	// The row came since, or was called late.
	m, err := streams.NextMessage(ctx, js.Conn(), stream, ">", seq)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return notFound, nil
	case err != nil || m == nil || m.Sequence != seq:
		return notFound, err
	}
	at := f.place(m.Data)
	x.set(seq, at)
	return at, nil
}

// inResult looks a row up in the results of a stage, whose bodies have its members, too. It
// reads them once.
func (f *fields) inResult(ctx context.Context, js jetstream.JetStream, stage string, seq uint64) (uint16, error) {
	x := f.results[stage]
	if x == nil {
		x = &index{chunks: make(map[uint64]*[rowsOfChunk]uint16)}
		f.results[stage] = x
		filter := f.cfg.Result.Subject + "." + stage + ".*.rows"
		err := f.each(ctx, js, stored.ReadOptions{Stream: f.cfg.Result.Stream, Filters: []string{filter}}, func(m *jetstream.RawStreamMsg) error {
			r, err := stored.NewResult(m)
			if err != nil {
				return nil //nolint:nilerr // it is no result, so no row is looked up in it
			}
			if err := r.Fetch(ctx, js.Conn()); err != nil {
				return err
			}
			x.set(r.Seq, f.place(r.Body))
			return nil
		})
		if err != nil {
			return notFound, err
		}
	}
	return x.get(seq), nil
}

// each calls add with each message that is stored now. A stream that does not exist has
// none.
func (f *fields) each(ctx context.Context, js jetstream.JetStream, o stored.ReadOptions, add func(*jetstream.RawStreamMsg) error) error {
	in, err := stored.Open(ctx, js, o)
	// An error of add about a missing stream is about another one, and is returned below.
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	return in.Each(ctx, add)
}

// place returns the place of the member's value in the list of values. The value of a
// string is its text, and any other value counts by its JSON.
func (f *fields) place(body []byte) uint16 {
	// This tells most rows without the member cheaply.
	if !bytes.Contains(body, []byte(f.name)) && bytes.IndexByte(body, '\\') < 0 {
		return noValue
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(body, &members) != nil {
		return noValue
	}
	value := members[f.name]
	var text string
	switch {
	case len(value) == 0 || string(value) == "null":
		return noValue
	case value[0] == '"':
		_ = json.Unmarshal(value, &text) // the object was valid
	default:
		var compact bytes.Buffer
		_ = json.Compact(&compact, value)
		text = compact.String()
	}
	text = excerpt.Clip(text, valueBytesMax)
	at, known := f.places[text]
	if !known {
		if len(f.values) >= groupsMax {
			return furtherOf
		}
		at = uint16(len(f.values)) //nolint:gosec // below groupsMax
		f.values, f.places[text] = append(f.values, text), at
	}
	return at
}

func (x *index) set(seq uint64, at uint16) {
	chunk := x.chunks[seq/rowsOfChunk]
	if chunk == nil {
		chunk = new([rowsOfChunk]uint16)
		x.chunks[seq/rowsOfChunk] = chunk
	}
	chunk[seq%rowsOfChunk] = at
}

func (x *index) get(seq uint64) uint16 {
	if chunk := x.chunks[seq/rowsOfChunk]; chunk != nil {
		return chunk[seq%rowsOfChunk]
	}
	return notFound
}

// MarshalJSON writes the group with the member's value under the name of the dimension,
// such as "field.customer". The value is null if the rows have no such member.
func (g Group) MarshalJSON() ([]byte, error) {
	type plain Group
	text, err := json.Marshal(plain(g))
	if err != nil || g.Field == nil {
		return text, err
	}
	value := []byte("null")
	if *g.Field != "" {
		if value, err = json.Marshal(*g.Field); err != nil {
			return nil, err
		}
	}
	name, err := json.Marshal(g.dimension)
	return slices.Concat([]byte{'{'}, name, []byte{':'}, value, []byte{','}, text[1:]), err
}
