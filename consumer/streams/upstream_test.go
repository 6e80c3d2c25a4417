package streams

import (
	"testing"

	"github.com/nats-io/nats.go"
)

func TestARowIsAResultOnlyIfItsHeadersAgree(t *testing.T) {
	result := func(change ...string) nats.Header {
		h := nats.Header{HeaderStateID: {"map/ROWS/0/41"}, HeaderSourceStream: {"ROWS"}, HeaderSourceSeq: {"41"}, HeaderStatus: {"success"}}
		for i := 0; i < len(change); i += 2 {
			h.Set(change[i], change[i+1])
		}
		return h
	}
	for _, c := range []struct {
		name               string
		header             nats.Header
		stage, stream, seq string
	}{
		{"no headers", nil, "", "", ""},
		{"a plain row", nats.Header{"Customer": {"c17"}}, "", "", ""},
		{"an origin alone", nats.Header{HeaderOriginStream: {"ROWS"}, HeaderOriginSeq: {"7"}}, "", "", ""},
		{"a source alone", nats.Header{HeaderSourceStream: {"ROWS"}, HeaderSourceSeq: {"7"}}, "", "", ""},
		{"of a first stage", result(), "map", "ROWS", "41"},
		{"of a later stage", result(HeaderOriginStream, "CHUNKS", HeaderOriginSeq, "7"), "map", "CHUNKS", "7"},
		{"half an origin", result(HeaderOriginSeq, "7"), "map", "ROWS", "41"},
		{"an origin that is no sequence", result(HeaderOriginStream, "CHUNKS", HeaderOriginSeq, "x"), "map", "ROWS", "41"},
		{"an origin of 0", result(HeaderOriginStream, "CHUNKS", HeaderOriginSeq, "0"), "map", "ROWS", "41"},
		{"another source", result(HeaderSourceSeq, "42"), "", "", ""},
		{"another stream", result(HeaderSourceStream, "CHUNKS"), "", "", ""},
		{"no partition", result(HeaderStateID, "map/ROWS/41"), "", "", ""},
		{"a partition below 0", result(HeaderStateID, "map/ROWS/-1/41"), "", "", ""},
		{"of an element", result(HeaderStateID, "map/ROWS/0/41#2"), "", "", ""},
		{"no name of a stage", result(HeaderStateID, "Map_1/ROWS/0/41"), "", "", ""},
		{"no state id", result(HeaderStateID, "x"), "", "", ""},
	} {
		if got := Upstream(c.header); got != c.stage {
			t.Errorf("%s: got stage %q, want %q", c.name, got, c.stage)
		}
		if stream, seq := Origin(c.header); stream != c.stream || seq != c.seq {
			t.Errorf("%s: got origin %q %q, want %q %q", c.name, stream, seq, c.stream, c.seq)
		}
	}
}

func TestARowWithoutStageHeadersCostsNothingToTell(t *testing.T) {
	header := nats.Header{"Customer": {"c17"}}
	if n := testing.AllocsPerRun(100, func() { Origin(header) }); n > 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}

func TestACopyOfAResultLiesOutsideOfItsLog(t *testing.T) {
	header := nats.Header{HeaderStateID: {"map/ROWS/3/41"}, HeaderSourceStream: {"ROWS"}, HeaderSourceSeq: {"41"}}
	for _, c := range []struct {
		filter, subject string
		header          nats.Header
		stage, copied   string // empty: none
	}{
		{"results.map.*.rows", "results.map.3.rows", header, "map", "results.map.redriven-b.rows"},
		{"results.map.3.rows", "results.map.3.rows", header, "map", ""},
		{"team.x.map.*.rows", "team.x.map.3.rows", header, "map", "team.x.map.redriven-b.rows"},
		{"results.map.*.rows", "results.map.redriven-b.rows", header, "", "results.map.redriven-b.rows"},
		{"results.*.3.rows", "results.map.3.rows", header, "map", ""},
		{"results.map.*.rows", "results.map.3.rows", nil, "", "results.map.redriven-b.rows"},
		{"results.*.*.rows", "results.other.3.rows", header, "", "results.other.redriven-b.rows"},
		{"dead.*", "dead.map", header, "", ""},
		{"rows", "rows", nil, "", ""},
	} {
		if got := InLog(c.subject, c.header); got != c.stage {
			t.Errorf("%s: in the log of %q, want %q", c.subject, got, c.stage)
		}
		copied, ok := CopySubject(c.filter, c.subject, "b")
		if !ok {
			copied = ""
		}
		if copied != c.copied {
			t.Errorf("%s in %s: copied to %q, want %q", c.subject, c.filter, copied, c.copied)
		}
	}
}
