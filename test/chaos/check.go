package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// row is one row of the input.
type row struct {
	seq       uint64 // stream sequence
	partition int
	n         int
	question  int
	subject   string
	body      []byte
}

// checker compares the results with the rows.
type checker struct {
	order   streams.Order
	rows    map[uint64]row
	embed   bool // answers are vectors
	notes   *notes
	seen    map[uint64]struct{}
	last    map[line]uint64 // row with a result
	left    map[int][]row   // by partition, from the first row on that has no result yet
	low     map[int]uint64  // that the last result of a partition told
	results int
}

// line is what results are in order within: a partition, or a key of one.
type line struct {
	partition int
	key       string
}

func newChecker(order streams.Order, rows []row, n *notes) *checker {
	c := &checker{
		order: order, rows: make(map[uint64]row, len(rows)), seen: make(map[uint64]struct{}, len(rows)),
		last: make(map[line]uint64), left: make(map[int][]row), low: make(map[int]uint64), notes: n,
	}
	for _, r := range rows {
		c.rows[r.seq] = r
		c.left[r.partition] = append(c.left[r.partition], r)
	}
	return c
}

func (c *checker) line(r row) line {
	if c.order == streams.OrderKey {
		return line{r.partition, r.key()}
	}
	return line{partition: r.partition}
}

// result checks the next result of the stream, which is in that partition.
func (c *checker) result(partition int, header nats.Header, body []byte) {
	c.results++
	seq, err := strconv.ParseUint(header.Get(streams.HeaderSourceSeq), 10, 64)
	r, known := c.rows[seq]
	if err != nil || !known || r.partition != partition {
		c.notes.violate("invented", "result %d is of no row of partition %d: %v", c.results, partition, header)
		return
	}
	if _, twice := c.seen[seq]; twice {
		c.notes.violate("doubled", "row %d has another result at place %d", seq, c.results)
	} else if last := c.last[c.line(r)]; seq < last && c.order != streams.OrderNone {
		c.notes.violate("disorder", "the result of row %d comes after that of %d", seq, last)
	}
	c.seen[seq] = struct{}{}
	c.last[c.line(r)] = max(c.last[c.line(r)], seq)
	c.checkHeaders(r, header)
	if err := r.check(header.Get(streams.HeaderStatus), body, c.embed); err != nil {
		c.notes.violate("bytes", "row %d: %v: %s: %.500s", seq, err, header.Get(streams.HeaderStatus), body)
	}
}

// key is that of the row: its subject, or none where it is not valid.
func (r row) key() string {
	if kindOf(r.n) == invalid {
		return ""
	}
	return r.subject
}

// checkHeaders checks what a result says beside its row: its key, and up to which row all
// have theirs.
func (c *checker) checkHeaders(r row, header nats.Header) {
	want := ""
	if c.order == streams.OrderKey {
		want = r.key()
	}
	if got := header.Get(streams.HeaderKey); got != want {
		c.notes.violate("key", "the result of row %d has the key %q, want %q", r.seq, got, want)
	}
	if c.order == streams.OrderStream {
		return
	}
	left := c.left[r.partition]
	for len(left) > 0 && c.has(left[0]) {
		left = left[1:]
	}
	c.left[r.partition] = left
	low, err := strconv.ParseUint(header.Get(streams.HeaderLow), 10, 64)
	if err != nil || low < c.low[r.partition] || len(left) > 0 && low >= left[0].seq {
		c.notes.violate("low", "the result of row %d says that all rows up to %q have theirs, after %d", r.seq, header.Get(streams.HeaderLow), c.low[r.partition])
	}
	c.low[r.partition] = max(c.low[r.partition], low)
}

func (c *checker) has(r row) bool {
	_, ok := c.seen[r.seq]
	return ok
}

// end finds what is missing.
func (c *checker) end(rows []row) {
	for _, r := range rows {
		if !c.has(r) {
			c.notes.violate("lost", "row %d (number %d) has no result", r.seq, r.n)
		}
	}
}

// check compares one result with its row: the row's own bytes come first, then the LLM's
// answer.
func (r row) check(status string, body []byte, embed bool) error {
	var got struct {
		Answer json.RawMessage `json:"llm_response"`
		Error  *struct {
			Reason string `json:"reason"`
		} `json:"llm_response_error"`
	}
	if err := json.Unmarshal(body, &got); err != nil {
		return err
	}
	reason := ""
	if got.Error != nil {
		reason = got.Error.Reason
	}
	want, wantReason, own := "success", "", bytes.TrimSuffix(r.body, []byte("}"))
	switch kindOf(r.n) {
	case refused:
		want, wantReason = "error", "api_call_failed"
	case invalid:
		want, wantReason, own = "error", "invalid_row", nil
	case ordinary:
	}
	switch {
	case status != want:
		return fmt.Errorf("status %q, want %q", status, want)
	case reason != wantReason:
		return fmt.Errorf("reason %q, want %q", reason, wantReason)
	case want == "success" && !r.isAnswered(got.Answer, embed), want == "error" && got.Answer != nil:
		return fmt.Errorf("answer %s is not that to %q", got.Answer, prompt(r.question))
	case !bytes.HasPrefix(body, own):
		return fmt.Errorf("the row's own bytes are not kept: want %s", own)
	}
	return nil
}

// isAnswered reports whether an answer is what the LLM answers to a row.
func (r row) isAnswered(answer json.RawMessage, embed bool) bool {
	asked := prompt(r.question)
	if embed {
		var vector []float32
		return json.Unmarshal(answer, &vector) == nil && slices.Equal(vector, llmtest.Vector(asked, embedDimensions))
	}
	var text string
	return json.Unmarshal(answer, &text) == nil && text == llmtest.Answer(asked)
}

// check reads both streams.
func (s *site) check(ctx context.Context, published int) (rows, results int, err error) {
	if s.plan.chain {
		return s.checkChain(ctx, published)
	}
	var all []row
	if err := s.read(ctx, inputStream, "rows.>", func(m jetstream.Msg, seq uint64) {
		n, _ := strconv.Atoi(strings.TrimPrefix(m.Headers().Get(nats.MsgIdHdr), "row-"))
		all = append(all, row{seq: seq, partition: s.partitionOf(m.Subject(), 1), n: n, question: s.plan.question(n), subject: m.Subject(), body: s.plan.rowBody(n)})
		if n != len(all) || !bytes.Equal(m.Data(), all[n-1].body) {
			s.notes.violate("input", "row %d at place %d of the input: %s", n, len(all), m.Data())
		}
	}); err != nil {
		return 0, 0, err
	}
	if len(all) != published {
		s.notes.violate("input", "%d rows in the input, %d published", len(all), published)
	}
	c := newChecker(s.plan.order, all, s.notes)
	c.embed = s.plan.embed
	err = s.read(ctx, resultStream, s.last().results(), func(m jetstream.Msg, _ uint64) {
		c.result(s.partitionOf(m.Subject(), 2), m.Headers(), m.Data())
	})
	c.end(all)
	if err == nil {
		err = s.checkLane(ctx, all)
	}
	return len(all), c.results, err
}

// partitionOf reads the partition at a token of a subject; -1: none of ours.
func (s *site) partitionOf(subject string, token int) int {
	if s.plan.partitions == 1 {
		return 0
	}
	tokens := strings.Split(subject, ".")
	if token >= len(tokens) {
		return -1
	}
	p, err := strconv.Atoi(tokens[token])
	if err != nil || p < 0 || p >= s.plan.partitions {
		return -1
	}
	return p
}

const (
	// readPatience bounds how long the servers may take to serve the next message.
	readPatience = time.Minute
	readBatch    = 1000
)

// read goes through the messages of a stream in their order.
func (s *site) read(ctx context.Context, stream, filter string, each func(m jetstream.Msg, seq uint64)) error {
	cfg := jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}, OptStartSeq: 1, DeliverPolicy: jetstream.DeliverByStartSequencePolicy}
	for end := time.Now().Add(readPatience); ; pause(ctx, tryAgain) {
		before := cfg.OptStartSeq
		err := s.readFrom(ctx, stream, &cfg, each)
		if err == nil {
			return nil
		}
		if cfg.OptStartSeq > before {
			end = time.Now().Add(readPatience)
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return fmt.Errorf("read %s: %w", stream, err)
		}
	}
}

// readFrom reads on until there is no more, and notes where it is.
func (s *site) readFrom(ctx context.Context, stream string, cfg *jetstream.OrderedConsumerConfig, each func(m jetstream.Msg, seq uint64)) error {
	c, err := s.js.OrderedConsumer(ctx, stream, *cfg)
	if err != nil {
		return err
	}
	messages, err := c.Messages(jetstream.PullMaxMessages(readBatch))
	if err != nil {
		return err
	}
	defer messages.Stop()
	for pending := c.CachedInfo().NumPending; pending > 0; {
		m, err := messages.Next(jetstream.NextMaxWait(apiTimeout))
		if err != nil {
			return err
		}
		md, err := m.Metadata()
		if err != nil {
			return err
		}
		if md.Sequence.Stream < cfg.OptStartSeq {
			continue
		}
		each(m, md.Sequence.Stream)
		cfg.OptStartSeq, pending = md.Sequence.Stream+1, md.NumPending
	}
	return nil
}
