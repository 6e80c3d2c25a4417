package stored_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stagetest"
)

// What is read: by subject, by where and when to begin, to the end or beyond it.
func TestAReaderReadsWhatItsOptionsSelect(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		b := stagetest.NewBench(t, nil)
		stagetest.Value(b.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}}))(t)
		publish := func(subjects ...string) {
			for _, subject := range subjects {
				stagetest.Value(b.JS.Publish(t.Context(), subject, []byte(subject)))(t)
				time.Sleep(time.Second)
			}
		}
		begin := time.Now()
		publish("s.a.1", "s.b.2", "s.c.3", "s.a.4")
		all := []string{"s.>"}
		for name, c := range map[string]struct {
			options stored.ReadOptions
			want    []string
		}{
			"all":                {stored.ReadOptions{Filters: all}, []string{"s.a.1", "s.b.2", "s.c.3", "s.a.4", "s.b.5", "s.c.6"}},
			"two filters":        {stored.ReadOptions{Filters: []string{"s.a.*", "s.b.*"}}, []string{"s.a.1", "s.b.2", "s.a.4", "s.b.5"}},
			"from a sequence":    {stored.ReadOptions{Filters: []string{"s.a.*"}, From: 2}, []string{"s.a.4"}},
			"since a time":       {stored.ReadOptions{Filters: all, Since: begin.Add(2500 * time.Millisecond)}, []string{"s.a.4", "s.b.5", "s.c.6"}},
			"new ones":           {stored.ReadOptions{Filters: all, NewOnly: true}, []string{"s.b.5", "s.c.6"}},
			"new ones, filtered": {stored.ReadOptions{Filters: []string{"s.a.*", "s.c.*"}, NewOnly: true}, []string{"s.c.6"}},
			"up to a sequence":   {stored.ReadOptions{Filters: all, Until: 3}, []string{"s.a.1", "s.b.2", "s.c.3"}},
		} {
			c.options.Stream = "S"
			followed := c.options
			followed.Follow = followed.Until == 0
			r := stagetest.Value(stored.Open(t.Context(), b.JS, followed))(t)
			defer r.Close()
			var got []string
			take := func() {
				for {
					m, err := r.NextBefore(t.Context(), time.After(time.Second))
					if errors.Is(err, stored.ErrNoMore) || err == nil && m == nil {
						return
					}
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					got = append(got, string(m.Data))
				}
			}
			take()
			defer func() {
				take()
				if !slices.Equal(got, c.want) {
					t.Errorf("%s: got %q, want %q", name, got, c.want)
				}
			}()
		}
		publish("s.b.5", "s.c.6")
		r := stagetest.Value(stored.Open(t.Context(), b.JS, stored.ReadOptions{Stream: "S", Filters: all, Follow: true}))(t)
		defer r.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // it waits as long as that for nothing
		defer cancel()
		n, err := 0, error(nil)
		for ; err == nil; n++ {
			_, err = r.Next(ctx)
		}
		if n != 7 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("followed for an hour: %d messages, then %v", n-1, err)
		}
	})
}

// A server skips messages when a consumer has both several filters and a time to begin at.
func TestAReaderOfSeveralFiltersSkipsNothingAfterATime(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		b := stagetest.NewBench(t, nil)
		begin := time.Now()
		for _, subject := range []string{"rows.a", "rows.x", "rows.a", "rows.a", "rows.b", "rows.a"} {
			b.Publish(&nats.Msg{Subject: subject})
			time.Sleep(time.Second)
		}
		for _, filters := range [][]string{{"rows.a", "rows.b"}, {"rows.b", "rows.a"}, {"rows.a", "rows.none"}} {
			r := stagetest.Value(stored.Open(t.Context(), b.JS, stored.ReadOptions{Stream: "ROWS", Filters: filters, Since: begin.Add(1500 * time.Millisecond)}))(t)
			var got []uint64
			for {
				m := stagetest.Value(r.Next(t.Context()))(t)
				if m == nil {
					break
				}
				got = append(got, m.Sequence)
			}
			r.Close()
			want := []uint64{3, 4, 5, 6}
			if filters[1] == "rows.none" {
				want = []uint64{3, 4, 6}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%q: got messages %d, want %d", filters, got, want)
			}
		}
	})
}

// Of a reader that is closed the server keeps nothing for long, as consumers may be
// limited; one whose caller takes long continues all the same.
func TestAReaderWhoseCallerTakesLongContinues(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		const messages = 2500 // more than one request asks for
		b := stagetest.NewBench(t, nil)
		for range messages {
			stagetest.Value(b.JS.PublishMsgAsync(&nats.Msg{Subject: "rows.a", Data: []byte("{}")}))(t)
		}
		<-b.JS.PublishAsyncComplete()
		consumers := func() int {
			stream := stagetest.Value(b.JS.Stream(t.Context(), "ROWS"))(t)
			return stream.CachedInfo().State.Consumers
		}
		before := consumers()
		r := stagetest.Value(stored.OpenReader(t.Context(), b.JS, "ROWS", "rows.>", messages, false))(t)
		for want := uint64(1); want <= messages; want++ {
			if want%700 == 0 {
				time.Sleep(10 * time.Minute)
			}
			if m, err := r.Next(t.Context()); err != nil || m == nil || m.Sequence != want {
				t.Fatalf("got message %v, error %v; want %d", m, err, want)
			}
		}
		r.Close()
		r = stagetest.Value(stored.OpenReader(t.Context(), b.JS, "ROWS", "rows.>", messages, false))(t)
		r.Close()
		time.Sleep(time.Minute)
		if n := consumers(); n != before {
			t.Errorf("a minute after the end there are %d consumers, want %d", n, before)
		}
	})
}

func TestAReaderContinuesAfterItsConsumerIsGone(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	const messages = 2500
	for range messages {
		stagetest.Value(b.JS.PublishMsgAsync(&nats.Msg{Subject: "rows.a", Data: []byte("{}")}))(t)
	}
	<-b.JS.PublishAsyncComplete()
	r := stagetest.Value(stored.OpenReader(t.Context(), b.JS, "ROWS", "rows.>", messages-10, true))(t)
	defer r.Close()
	for want := uint64(1); want <= messages-10; want++ {
		if want == 1200 { // within the second batch, of which the rest still comes
			stream := stagetest.Value(b.JS.Stream(t.Context(), "ROWS"))(t)
			deleted := 0
			for name := range stream.ConsumerNames(t.Context()).Name() { // there is none but the reader's
				stagetest.Must(t, b.JS.DeleteConsumer(t.Context(), "ROWS", name))
				deleted++
			}
			if deleted != 1 {
				t.Fatalf("deleted %d consumers, want that of the reader", deleted)
			}
		}
		if m, err := r.Next(t.Context()); err != nil || m == nil || m.Sequence != want {
			t.Fatalf("got message %v, error %v; want %d", m, err, want)
		}
	}
	if m, err := r.Next(t.Context()); m != nil || err != nil {
		t.Errorf("after the last: got %v, %v", m, err)
	}
	if _, err := stored.OpenReader(t.Context(), b.JS, "NONE", "rows.>", 1, true); err == nil {
		t.Error("want an error for a stream that does not exist")
	}
	empty := stagetest.Value(stored.OpenReader(t.Context(), b.JS, "AUDIT", "audit.>", 1, true))(t)
	defer empty.Close()
	if m, err := empty.Next(t.Context()); m != nil || err != nil {
		t.Errorf("an empty stream: got %v, %v", m, err)
	}
}

// A server that gives no answer is asked again, unless it says that the user may not ask.
func TestTheLastMessageIsAskedForAgain(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		b := stagetest.NewBench(t, nil)
		nc := b.Connect()
		streams.SetAPIPrefix(nc, streams.DomainPrefix("slow"))
		asked := 0
		stagetest.Value(nc.Subscribe(streams.APIPrefix(nc)+">", func(m *nats.Msg) {
			if asked++; asked == 3 {
				stagetest.Must(t, m.Respond([]byte(`{"message":{"subject":"s.a","seq":7}}`)))
			}
		}))(t)
		m, err := stored.LastMessage(t.Context(), nc, "S", "s.>")
		if err != nil || m.Sequence != 7 || asked != 3 {
			t.Errorf("message %+v and %v after %d requests, want message 7 after 3", m, err, asked)
		}
	})
}
