package chain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

// Source is a message that a stage makes a result of: a row of the input, or a result of
// the stage before.
type Source struct {
	N         int
	Partition int
	Key       string // by which it is in order; the same for all rows where the order is that of the stream
	Origin    uint64 // stream sequence of the first row of the chain
	Failed    bool   // it is a result, and says that its row failed
	Body      []byte
}

// Checker compares the results of one stage with the rows that they are made of. Make it
// with [NewChecker].
type Checker struct {
	// Results are the results so far by their stream sequences: the sources of the next
	// stage.
	Results map[uint64]Source

	pipeline Pipeline
	stage    int
	sources  map[uint64]Source
	violate  func(what, format string, args ...any)
	done     map[uint64]struct{}
	last     map[line]uint64
}

// line is what results are in order within: a partition, or a key of one.
type line struct {
	partition int
	key       string
}

// NewChecker returns a checker of a stage whose rows are those sources, by their stream
// sequences. violate gets what must not be.
func NewChecker(p Pipeline, stage int, sources map[uint64]Source, violate func(what, format string, args ...any)) *Checker {
	return &Checker{
		Results: make(map[uint64]Source, len(sources)), pipeline: p, stage: stage, sources: sources, violate: violate,
		done: make(map[uint64]struct{}, len(sources)), last: make(map[line]uint64),
	}
}

// Result checks the next result of the stage, which has that stream sequence and lies in
// that partition.
func (c *Checker) Result(seq uint64, partition int, header nats.Header, body []byte) {
	name := names[c.stage]
	of, err := strconv.ParseUint(header.Get(streams.HeaderSourceSeq), 10, 64)
	src, known := c.sources[of]
	stream, _ := c.pipeline.Input(c.stage)
	if err != nil || !known || src.Partition != partition || header.Get(streams.HeaderSourceStream) != stream {
		c.violate("invented", "%s: result %d of partition %d is of no row: %v", name, seq, partition, header)
		return
	}
	if _, twice := c.done[of]; twice {
		c.violate("doubled", "%s: row %d (number %d) has another result: %d", name, of, src.N, seq)
	}
	c.done[of] = struct{}{}
	if in := (line{partition, src.Key}); !c.keyless(src.N) {
		if last := c.last[in]; of < last {
			c.violate("disorder", "%s: the result of row %d comes after that of %d of %q", name, of, last, src.Key)
		}
		c.last[in] = max(c.last[in], of)
	}
	failed := header.Get(streams.HeaderStatus) == "error"
	c.Results[seq] = Source{N: src.N, Partition: partition, Key: src.Key, Origin: src.Origin, Failed: failed, Body: slices.Clone(body)}
	c.checkOrigin(seq, src, header)
	if err := c.check(src, failed, body); err != nil {
		c.violate("bytes", "%s: result %d of row %d (number %d): %v: %.700s", name, seq, of, src.N, err, body)
	}
}

// keyless reports whether a row may have lost its key: one that is not valid is in order
// among those without a key.
func (c *Checker) keyless(n int) bool {
	return c.pipeline.ByKey && (n%invalidEvery == 7 || c.pipeline.elements(n) < 0)
}

// checkOrigin checks that a result names the first row of the chain, and that one of the
// first stage does not.
func (c *Checker) checkOrigin(seq uint64, src Source, header nats.Header) {
	stream, origin := "", ""
	if c.stage > A {
		stream, origin = "ROWS", strconv.FormatUint(src.Origin, 10)
	}
	if gotStream, got := header.Get(streams.HeaderOriginStream), header.Get(streams.HeaderOriginSeq); gotStream != stream || got != origin {
		c.violate("origin", "%s: result %d of number %d has the origin %q %q, want %q %q", names[c.stage], seq, src.N, gotStream, got, stream, origin)
	}
}

// End finds the rows without a result.
func (c *Checker) End() {
	for seq, src := range c.sources {
		if _, ok := c.done[seq]; !ok {
			c.violate("lost", "%s: row %d (number %d) has no result", names[c.stage], seq, src.N)
		}
	}
}

// check compares a result with what its row must become: the bytes of the row come first,
// then the reply.
func (c *Checker) check(src Source, failed bool, body []byte) error {
	want := c.pipeline.Row(src.N).Outcomes[c.stage]
	if want.Passed {
		if !failed || !bytes.Equal(body, src.Body) {
			return fmt.Errorf("want the row as it is, which had failed: %.300s", src.Body)
		}
		return nil
	}
	if failed != (want.Reason != "") {
		return fmt.Errorf("failed %t, want the reason %q", failed, want.Reason)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		return err
	}
	own := bytes.TrimSuffix(src.Body, []byte("}"))
	if bytes.HasPrefix(own, []byte("{")) && !bytes.HasPrefix(body, own) {
		return fmt.Errorf("the row's own bytes are not kept: want %.300s", own)
	}
	if failed {
		return checkError(members[fields[c.stage]+"_error"], want)
	}
	return checkReply(members[fields[c.stage]], want)
}

func checkError(got json.RawMessage, want Outcome) error {
	var found struct {
		Reason        string
		Failed, Total int
		Items         []struct {
			Index  int
			Reason string
		}
	}
	if err := json.Unmarshal(got, &found); err != nil {
		return fmt.Errorf("error %q: %w", got, err)
	}
	if found.Reason != want.Reason || found.Total != want.Total || found.Total > 0 && found.Failed != want.Failed() {
		return fmt.Errorf("reason %s, failed %d of %d, want %s, %d of %d", found.Reason, found.Failed, found.Total, want.Reason, want.Failed(), want.Total)
	}
	at := 0
	for i, p := range want.Parts {
		if p.Reason == "" {
			continue
		}
		if at >= len(found.Items) || found.Items[at].Index != i || found.Items[at].Reason != p.Reason {
			return fmt.Errorf("failed element %d is not at place %d of the items: %s", i, at, got)
		}
		at++
	}
	if at != len(found.Items) {
		return fmt.Errorf("%d items, want %d", len(found.Items), at)
	}
	return nil
}

func checkReply(got json.RawMessage, want Outcome) error {
	if want.Parts == nil {
		var text string
		if err := json.Unmarshal(got, &text); err != nil || text != want.Text {
			return fmt.Errorf("reply %s, want %q", got, want.Text)
		}
		return nil
	}
	var parts []json.RawMessage
	if err := json.Unmarshal(got, &parts); err != nil || len(parts) != len(want.Parts) {
		return fmt.Errorf("replies %s, want %d of them", got, len(want.Parts))
	}
	for i, p := range want.Parts {
		var text string
		var failure struct{ Error struct{ Reason string } }
		err := json.Unmarshal(parts[i], &text)
		if p.Reason != "" {
			err = json.Unmarshal(parts[i], &failure)
		}
		if err != nil || text != p.Text || failure.Error.Reason != p.Reason {
			return fmt.Errorf("element %d is %s, want %q %s", i, parts[i], p.Text, p.Reason)
		}
	}
	return nil
}
