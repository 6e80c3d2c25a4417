package streams_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// Which headers of a row go on to its result, and under which name. The client library
// takes each of the names.
func TestHeadersOfARowGoOnUnderANameThatCanBeSent(t *testing.T) {
	nc := stagetest.StartNATS(t).NC
	for _, c := range []struct {
		name string
		row  nats.Header
		want nats.Header
	}{
		{"usual", nats.Header{"Customer": {"7", "8"}, "traceparent": {"00"}}, nats.Header{"Customer": {"7", "8"}, "traceparent": {"00"}}},
		{"for the server", nats.Header{
			"Nats-Rollup": {"all"}, "Nats-TTL": {"1s"}, "Nats-Msg-Id": {"1"}, "Nats-Expected-Stream": {"X"}, "Nats-Incr": {"+1"},
			"Nats-Schedule": {"@every 1s"}, "Nats-Batch-Id": {"b"}, "Nats-Pin-Id": {"p"},
		}, nats.Header{}},
		{"of a stage", nats.Header{"Stage-Owner": {"x"}, "Stage-Model": {"m"}}, nats.Header{}},
		{"a status", nats.Header{"Status": {"404"}, "Description": {"d"}, "status": {"new"}}, nats.Header{"%53tatus": {"404"}, "Description": {"d"}, "status": {"new"}}},
		{"refused names", nats.Header{"user@tenant": {"1"}, "a/b": {"2"}, "Größe": {"3"}, "a b": {"4"}, "\x01\xff": {"5"}, `(")`: {"6"}}, nats.Header{
			"user%40tenant": {"1"}, "a%2Fb": {"2"}, "Gr%C3%B6%C3%9Fe": {"3"}, "a%20b": {"4"}, "%01%FF": {"5"}, "%28%22%29": {"6"},
		}},
		{"a name that is carried already", nats.Header{"user%40tenant": {"1"}, "50%": {"2"}}, nats.Header{"user%40tenant": {"1"}, "50%": {"2"}}},
		{"both names", nats.Header{"user%40tenant": {"own"}, "user@tenant": {"other"}}, nats.Header{"user%40tenant": {"own"}}},
		{"values", nats.Header{"A": {"", " b ", "c\rd", "é\xff\x00"}}, nats.Header{"A": {"", " b ", "c\rd", "é\xff\x00"}}},
	} {
		got := make(nats.Header)
		streams.Carry(got, c.row, streams.PassHeader)
		if !maps.EqualFunc(got, c.want, slices.Equal) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
		if err := nc.PublishMsg(&nats.Msg{Subject: "x", Header: got}); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		again := make(nats.Header)
		if streams.Carry(again, got, streams.PassHeader); !maps.EqualFunc(again, got, slices.Equal) {
			t.Errorf("%s: carried again: got %q, want %q", c.name, again, got)
		}
		for name := range c.want {
			if values := streams.CarriedValues(c.row, name); c.row[name] != nil && !slices.Equal(values, c.row[name]) {
				t.Errorf("%s: %s is %q", c.name, name, values)
			}
		}
	}
	for name := range map[string]int{"user@tenant": 0, "Status": 0, "plain": 0} {
		carried := nats.Header{streams.CarriedName(name): {"v"}}
		if got := streams.CarriedValues(carried, name); !slices.Equal(got, []string{"v"}) {
			t.Errorf("%s is not found in its copy: %q", name, got)
		}
	}
}

// No name, whatever its bytes, is refused once it is carried.
func FuzzCarriedName(f *testing.F) {
	for _, name := range []string{"Status", "user@tenant", "%", "Größe", "\x00", "a:b"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		carried := streams.CarriedName(name)
		if strings.ContainsFunc(carried, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("\"()/,:;<=>?@[\\]{}", r) }) {
			t.Errorf("%q is carried as %q", name, carried)
		}
		if again := streams.CarriedName(carried); again != carried {
			t.Errorf("%q is carried as %q, and that as %q", name, carried, again)
		}
	})
}
