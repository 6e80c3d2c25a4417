// Package prove collects from the streams what proves the result of one row to somebody
// who has only a root of the log: see [proof.File]. The result and the steps to the root
// are in prove.go, the row's events in audit.go.
package prove

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go/jetstream"
)

// StepsMax is how many messages may lie between a result and its root.
const StepsMax = 100_000

// Options select what is proven.
type Options struct {
	Row uint64
	// Partition is the row's partition. With -1 the row is looked for in all partitions.
	Partition int
	// Roots are earlier ends of the logs. The proof leads to the first of them that is not
	// before the result. Without roots it leads to the present end.
	Roots []proof.Root
}

// Row returns the proof of a row. If the row has several results, for example because the
// input was created again, it proves the last one. An error names what is missing.
func Row(ctx context.Context, js jetstream.JetStream, cfg *config.Config, o Options) (*proof.File, error) {
	p := &prover{js: js, cfg: cfg, o: o}
	partitions, err := stored.Partitions(ctx, js, cfg)
	if err != nil {
		return nil, err
	}
	for n := range partitions {
		if o.Partition >= 0 && n != o.Partition {
			continue
		}
		found, err := p.find(ctx, n)
		if err != nil || found {
			if err != nil {
				return nil, err
			}
			break
		}
	}
	if p.file == nil {
		return nil, fmt.Errorf("row %d has no result in stream %s", o.Row, cfg.Result.Stream)
	}
	if err := p.follow(ctx); err != nil {
		return nil, err
	}
	return p.file, p.audit(ctx)
}

// prover makes one proof.
type prover struct {
	js      jetstream.JetStream
	cfg     *config.Config
	o       Options
	file    *proof.File                 // once the result is found
	message *jetstream.RawStreamMsg     // the result
	stones  map[uint64]*proof.Tombstone // of the partition, by the place of the result
}

// readStones reads the tombstones of a partition.
func (p *prover) readStones(ctx context.Context, partition int) error {
	p.stones = make(map[uint64]*proof.Tombstone)
	return p.each(ctx, stored.ReadOptions{Stream: p.cfg.Result.Stream, Filters: []string{stored.ErasedSubject(p.cfg, strconv.Itoa(partition), "*")}}, func(m *jetstream.RawStreamMsg) error {
		t, err := proof.ParseTombstone(m.Data)
		if err != nil {
			return fmt.Errorf("message %d of stream %s: %w", m.Sequence, p.cfg.Result.Stream, err)
		}
		p.stones[t.Sequence] = t
		if t.Row == p.o.Row {
			return fmt.Errorf("row %d was erased at %s by %s: of its result only the tombstone is left, message %d of stream %s", t.Row, t.At.Format("2006-01-02 15:04:05Z07:00"), t.Who, m.Sequence, p.cfg.Result.Stream)
		}
		return nil
	})
}

// each calls f with each message that is selected, until f returns errEnough or an error.
func (p *prover) each(ctx context.Context, o stored.ReadOptions, f func(*jetstream.RawStreamMsg) error) error {
	err := stored.Each(ctx, p.js, o, f)
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// errEnough ends a reading that needs no further message.
var errEnough = errors.New("enough")

// find looks for the result in a partition, and for the value of the chain before it.
func (p *prover) find(ctx context.Context, partition int) (found bool, err error) {
	if err := p.readStones(ctx, partition); err != nil {
		return false, err
	}
	var before proof.Hash
	var at, result uint64
	first := true
	last, known := proof.Hash{}, true
	row := strconv.FormatUint(p.o.Row, 10)
	err = p.each(ctx, stored.ReadOptions{Stream: p.cfg.Result.Stream, Filters: []string{stored.LogSubject(p.cfg, partition, ">")}, HeadersOnly: true}, func(m *jetstream.RawStreamMsg) error {
		for place := at + 1; len(p.stones) > 0 && place < m.Sequence && !first; place++ {
			if t := p.stones[place]; t != nil {
				last, known = t.Chain, true
			}
		}
		if m.Subject == streams.ResultSubject(p.cfg.Result.Subject, p.cfg.Name, partition) && m.Header.Get(streams.HeaderSourceSeq) == row {
			result, before, found = m.Sequence, last, true
			if !known {
				return fmt.Errorf("row %d: an older version of the stage has stored the message before its result, which has no %s: it can't be proven", p.o.Row, proof.HeaderChain)
			}
		}
		value, ok, err := proof.ChainOf(m.Header)
		if err != nil {
			return fmt.Errorf("message %d of stream %s: %w", m.Sequence, p.cfg.Result.Stream, err)
		}
		last, known, first, at = value, ok, false, m.Sequence
		return nil
	})
	if err != nil || !found {
		return false, err
	}
	p.message, err = streams.MessageAt(ctx, p.js.Conn(), p.cfg.Result.Stream, result)
	if err == nil && p.message == nil {
		err = errors.New("it was removed just now")
	}
	if err != nil {
		return false, fmt.Errorf("read the result of row %d, at %d of stream %s: %w", p.o.Row, result, p.cfg.Result.Stream, err)
	}
	return true, p.open(ctx, partition, before)
}

// open begins the proof with the result.
func (p *prover) open(ctx context.Context, partition int, before proof.Hash) (err error) {
	m := p.message
	headers := make(map[string][]string, len(m.Header))
	for name, values := range m.Header {
		if !streams.ForServer(name) {
			if !utf8.ValidString(name + strings.Join(values, "")) {
				return fmt.Errorf("row %d: its result has the header %q with bytes that are no UTF-8, which a file of JSON can't hold: it can't be proven without the streams", p.o.Row, name)
			}
			headers[name] = values
		}
	}
	p.file = &proof.File{
		Format: proof.FileFormat, Stage: p.cfg.Name, Partition: partition, Row: p.o.Row,
		Previous: before, Message: proof.Message{Headers: headers, Body: m.Data}, Steps: []proof.Record{},
	}
	if ref, is := objects.RefOf(m.Header); is && len(m.Data) == 0 {
		if p.file.Message.Body, err = ref.Get(ctx, p.js.Conn(), ref.Bytes); err != nil {
			return fmt.Errorf("read the result of row %d: %w", p.o.Row, err)
		}
	}
	value, ok, err := proof.ChainOf(m.Header)
	switch {
	case err != nil:
		return fmt.Errorf("message %d of stream %s: %w", m.Sequence, p.cfg.Result.Stream, err)
	case !ok:
		return fmt.Errorf("row %d: an older version of the stage has stored its result, which has no %s: it can't be proven", p.o.Row, proof.HeaderChain)
	case before.Next(proof.RecordOf(proof.Result, m.Header, p.file.Message.Body)) != value:
		return fmt.Errorf("row %d: its result, at %d of stream %s, does not follow the message before it: the beginning of the log is gone, or one of them was changed; stage verify says which", p.o.Row, m.Sequence, p.cfg.Result.Stream)
	}
	p.file.Root = proof.Root{Partition: partition, Sequence: m.Sequence, Row: p.o.Row, Chain: value}
	return nil
}

// follow adds the messages behind the result, up to the root.
func (p *prover) follow(ctx context.Context) error {
	f := p.file
	until := uint64(0)
	for _, r := range p.o.Roots {
		if r.Partition == f.Partition && r.Sequence >= p.message.Sequence && (until == 0 || r.Sequence < until) {
			until = r.Sequence
		}
	}
	if p.o.Roots != nil && until == 0 {
		return fmt.Errorf("--root: none of the roots is at or behind the result of row %d, which is at %d of stream %s, partition %d: give a later one", p.o.Row, p.message.Sequence, p.cfg.Result.Stream, f.Partition)
	}
	if until == p.message.Sequence {
		return p.reaches(until)
	}
	err := p.each(ctx, stored.ReadOptions{Stream: p.cfg.Result.Stream, Filters: []string{stored.LogSubject(p.cfg, f.Partition, ">")}, From: p.message.Sequence + 1, Until: until}, func(m *jetstream.RawStreamMsg) error {
		if err := p.erasedUpTo(m.Sequence); err != nil {
			return err
		}
		kind := proof.Claim
		if m.Subject == streams.ResultSubject(p.cfg.Result.Subject, p.cfg.Name, f.Partition) {
			kind = proof.Result
		}
		row, _ := strconv.ParseUint(m.Header.Get(streams.HeaderSourceSeq), 10, 64)
		value, _, _ := proof.ChainOf(m.Header) // one that is missing is no step
		return p.add(m.Sequence, row, proof.RecordOf(kind, m.Header, m.Data), value)
	})
	if err == nil && until > 0 {
		err = p.erasedUpTo(until + 1)
	}
	if err != nil {
		return err
	}
	return p.reaches(until)
}

// erasedUpTo adds the erased results between the root so far and a place.
func (p *prover) erasedUpTo(at uint64) error {
	for place := p.file.Root.Sequence + 1; len(p.stones) > 0 && place < at; place++ {
		if t := p.stones[place]; t != nil {
			if err := p.add(place, t.Row, t.Record(), t.Chain); err != nil {
				return err
			}
		}
	}
	return nil
}

// add adds one message, which is the root so far.
func (p *prover) add(at, row uint64, record proof.Record, value proof.Hash) error {
	f := p.file
	if f.Root.Chain.Next(record) != value {
		return fmt.Errorf("message %d of stream %s does not follow message %d: stage verify says what was changed", at, p.cfg.Result.Stream, f.Root.Sequence)
	}
	if len(f.Steps) == StepsMax {
		return fmt.Errorf("more than %d messages lie between row %d and the root: give a root that is nearer with --root; stage verify prints one each time", StepsMax, p.o.Row)
	}
	f.Steps = append(f.Steps, record)
	f.Root = proof.Root{Partition: f.Partition, Sequence: at, Row: row, Chain: value}
	return nil
}

// reaches returns an error unless the proof leads to the given root at this place.
func (p *prover) reaches(until uint64) error {
	if p.o.Roots == nil {
		return nil
	}
	for _, r := range p.o.Roots {
		if r.Sequence == until && r == p.file.Root {
			return nil
		}
	}
	return fmt.Errorf("--root: the root at %d is not on the chain of partition %d: stage verify --root says what became of it", until, p.file.Partition)
}
