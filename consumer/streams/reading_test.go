package streams_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A message is read whatever a client has made of its headers, with bodies and without,
// alone and among others, always with the same headers.
func TestAReadingTellsMessagesFromStatuses(t *testing.T) {
	stored := []struct {
		name, header, body string
		want               nats.Header
	}{
		{"plain", "", "x", nil},
		{"empty", "NATS/1.0\r\nA: b\r\n\r\n", "", nats.Header{"A": {"b"}}},
		{"a status", "NATS/1.0\r\nStatus: 404\r\n\r\n", "", nats.Header{"Status": {"404"}}},
		{"any status", "NATS/1.0\r\nStatus: new\r\nDescription: d\r\n\r\n", "", nats.Header{"Status": {"new"}, "Description": {"d"}}},
		{"a status with a body", "NATS/1.0\r\nStatus: 409\r\n\r\n", "x", nats.Header{"Status": {"409"}}},
		{"what the server adds", "NATS/1.0\r\nNats-Sequence: 9\r\nNats-Msg-Size: 9\r\nNats-Time-Stamp: x\r\n\r\n", "x", nats.Header{"Nats-Sequence": {"9"}, "Nats-Msg-Size": {"9"}, "Nats-Time-Stamp": {"x"}}},
		{"no header line", "hello\r\n\r\n", "x", nil},
		{"no colon", "NATS/1.0\r\nhello\r\n\r\n", "", nil},
		{"no end", "NATS/1.0\r\nA: bc", "x", nil},
		{"something behind the end", "NATS/1.0\r\nA: b\r\n\r\nC: d\r\n\r\n", "x", nats.Header{"A": {"b"}}},
	}
	const unreadable = 6 // from here on; a direct get has no other headers to go by
	n := stagetest.StartNATS(t)
	if _, err := n.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}, AllowDirect: true}); err != nil {
		t.Fatal(err)
	}
	for _, m := range stored {
		n.PublishRaw("s."+strings.ReplaceAll(m.name, " ", "-"), m.header, m.body)
	}
	check := func(t *testing.T, i int, m *jetstream.RawStreamMsg, body string) {
		t.Helper()
		want := stored[i]
		if m == nil {
			t.Fatalf("%s: no message", want.name)
		}
		header := maps.Clone(m.Header)
		for name, values := range header { // what the server adds
			values = slices.DeleteFunc(slices.Clone(values), func(v string) bool { return strings.HasPrefix(name, "Nats-") && !slices.Contains(want.want[name], v) })
			if header[name] = values; len(values) == 0 {
				delete(header, name)
			}
		}
		if m.Sequence != uint64(i+1) || string(m.Data) != body || !maps.EqualFunc(header, want.want, slices.Equal) || m.Time.IsZero() {
			t.Errorf("%s: got message %d with headers %q and body %q; want %d, %q and %q", want.name, m.Sequence, m.Header, m.Data, i+1, want.want, body)
		}
	}
	for name, headersOnly := range map[string]bool{"bodies": false, "headers only": true} {
		t.Run(name, func(t *testing.T) {
			r, err := streams.Read(t.Context(), n.JS, "S", jetstream.ConsumerConfig{HeadersOnly: headersOnly, InactiveThreshold: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			i := 0
			for m, err := range r.All(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				body := stored[i].body
				if headersOnly {
					body = ""
				}
				check(t, i, m, body)
				i++
			}
			if i != len(stored) {
				t.Errorf("got %d messages, want %d", i, len(stored))
			}
		})
	}
	t.Run("by sequence", func(t *testing.T) {
		for i := range stored {
			m, err := streams.MessageAt(t.Context(), n.NC, "S", uint64(i+1))
			if err != nil {
				t.Fatal(err)
			}
			check(t, i, m, stored[i].body)
		}
	})
	t.Run("directly", func(t *testing.T) {
		for i, want := range stored {
			m, err := streams.DirectLast(t.Context(), n.NC, "S", "s."+strings.ReplaceAll(want.name, " ", "-"))
			if err != nil {
				t.Fatal(err)
			}
			if i < unreadable {
				check(t, i, m, want.body)
			} else if m != nil {
				t.Errorf("%s: got message %d", want.name, m.Sequence)
			}
		}
		if m, err := streams.DirectLast(t.Context(), n.NC, "S", "s.none"); m != nil || err != nil {
			t.Errorf("no message: got %v, %v", m, err)
		}
		if m, err := streams.DirectLast(t.Context(), n.NC, "NONE", "s.none"); m != nil || !errors.Is(err, nats.ErrNoResponders) {
			t.Errorf("no stream: got %v, %v", m, err)
		}
	})
}

// A message may be larger than a request for many asks for, and than the server takes
// today.
func TestAReadingReadsMessagesOfAnySize(t *testing.T) {
	n := stagetest.StartNATS(t)
	if _, err := n.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	sizes := []int{1, 1 << 20, 1, 1 << 19, 1 << 20}
	for range 4 {
		sizes = append(sizes, sizes...) // 25 MiB, of which one request asks for 8
	}
	for _, size := range sizes {
		if _, err := n.JS.Publish(t.Context(), "s", make([]byte, size-size/1000)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := streams.Read(t.Context(), n.JS, "S", jetstream.ConsumerConfig{InactiveThreshold: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.SetRequestBytes(1 << 18)
	i := 0
	for m, err := range r.All(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if want := sizes[i] - sizes[i]/1000; len(m.Data) != want {
			t.Fatalf("message %d has %d bytes, want %d", m.Sequence, len(m.Data), want)
		}
		i++
	}
	if i != len(sizes) {
		t.Errorf("got %d messages, want %d", i, len(sizes))
	}
}
