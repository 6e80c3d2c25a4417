package consumer_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestStreamsThatCannotKeepTheGuaranteesAreRefused(t *testing.T) {
	results := func(change func(*jetstream.StreamConfig)) jetstream.StreamConfig {
		cfg := jetstream.StreamConfig{Name: "RESULTS", Subjects: []string{"results.>"}}
		change(&cfg)
		return cfg
	}
	for name, c := range map[string]struct {
		have   []jetstream.StreamConfig
		change func(*streams.Config)
		want   []string // in the error; nil: none
	}{
		"nothing there yet": {},
		"everything there": {have: []jetstream.StreamConfig{
			{Name: "ROWS", Subjects: []string{"rows.>"}},
			results(func(*jetstream.StreamConfig) {}),
			{Name: "AUDIT", Subjects: []string{"audit.>"}},
			{Name: "JOURNAL", Subjects: []string{"journal.>"}, AllowDirect: true},
		}, change: func(s *streams.Config) { s.Create = false }},
		"one stream for all": {have: []jetstream.StreamConfig{
			{Name: "ALL", Subjects: []string{">"}, NoAck: true, Retention: jetstream.LimitsPolicy},
		}, change: func(s *streams.Config) {
			s.InputStream, s.ResultStream, s.AuditStream, s.JournalStream = "ALL", "ALL", "ALL", "ALL"
		}, want: []string{"set no_ack to false"}},
		"just the subjects needed": {have: []jetstream.StreamConfig{
			results(func(c *jetstream.StreamConfig) {
				c.Subjects = []string{"results.stage.*.rows", "results.stage.*.claim"}
			}),
		}},
		"missing, and not to be created": {
			change: func(s *streams.Config) { s.Create = false },
			want:   []string{"InputStream: stream ROWS does not exist", "ResultStream: stream RESULTS", "AuditStream: stream AUDIT", "Create=true"},
		},
		"every problem at once": {
			have: []jetstream.StreamConfig{results(func(c *jetstream.StreamConfig) {
				c.MaxAge, c.MaxMsgs, c.MaxMsgsPerSubject = time.Hour, 10, 1
			})},
			want: []string{"max age 1h0m0s", "set discard to new", "max messages per subject to -1"},
		},
		"interest retention":    {have: []jetstream.StreamConfig{results(func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy })}, want: []string{"set retention to limits"}},
		"work queue retention":  {have: []jetstream.StreamConfig{results(func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy })}, want: []string{"set retention to limits"}},
		"drops old by bytes":    {have: []jetstream.StreamConfig{results(func(c *jetstream.StreamConfig) { c.MaxBytes = 1000 })}, want: []string{"set discard to new"}},
		"refuses new by bytes":  {have: []jetstream.StreamConfig{results(func(c *jetstream.StreamConfig) { c.MaxBytes, c.Discard = 1000, jetstream.DiscardNew })}},
		"async persistence":     {have: []jetstream.StreamConfig{results(func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode })}, want: []string{"set persist mode to default"}},
		"counters":              {have: []jetstream.StreamConfig{results(func(c *jetstream.StreamConfig) { c.AllowMsgCounter = true })}, want: []string{"holds counters only"}},
		"results go elsewhere":  {have: []jetstream.StreamConfig{results(func(c *jetstream.StreamConfig) { c.Subjects = []string{"other.>"} })}, want: []string{"does not capture results.stage.0.rows", "ResultSubject", "(nats stream edit RESULTS --subjects='other.>' --subjects='results.>')"}},
		"no room for the claim": {have: []jetstream.StreamConfig{results(func(c *jetstream.StreamConfig) { c.Subjects = []string{"results.*.*.rows"} })}, want: []string{"does not capture results.stage.0.claim", "(nats stream edit RESULTS --subjects='results.>')"}},
		"the second partition is missing": {
			have:   []jetstream.StreamConfig{results(func(c *jetstream.StreamConfig) { c.Subjects = []string{"results.stage.0.*"} })},
			change: func(s *streams.Config) { s.Partitions, s.InputSubject = 2, "rows.{partition}" },
			want:   []string{"does not capture results.stage.1.rows"},
		},
		"an audit by kinds": {have: []jetstream.StreamConfig{{Name: "AUDIT", Subjects: []string{"audit.*.*.call", "audit.*.*.row", "audit.*.*.run"}}}},
		"an audit by kinds that lacks that of the lane": {
			have:   []jetstream.StreamConfig{{Name: "AUDIT", Subjects: []string{"audit.*.*.call", "audit.*.*.row", "audit.*.*.run"}}},
			change: func(s *streams.Config) { s.LaneStream = "LANE" },
			want:   []string{"AuditSubject", "does not capture audit.stage.0.batch"},
		},
		"transformed": {
			have: []jetstream.StreamConfig{results(func(c *jetstream.StreamConfig) {
				c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "results.>", Destination: "out.>"}
			})},
			want: []string{"remove the transform"},
		},
		"another stream captures the results": {
			have: []jetstream.StreamConfig{{Name: "OTHER", Subjects: []string{"results.>"}}},
			want: []string{"ResultStream: create stream RESULTS on subject results.>", "overlap", "stream OTHER: set ResultStream to that stream if it is meant, else change ResultSubject"},
		},
		"another stream captures a part of the journal": {
			have: []jetstream.StreamConfig{{Name: "DIARY", Subjects: []string{"journal.*.1.>"}}},
			want: []string{"JournalStream: create stream JOURNAL", "stream DIARY: set it to that stream if it is meant, else take the subject out of it"},
		},
		"no such rows":               {have: []jetstream.StreamConfig{{Name: "ROWS", Subjects: []string{"lines.>"}}}, want: []string{"no row on rows.>", "InputSubject", "(nats stream edit ROWS --subjects='lines.>' --subjects='rows.>')"}},
		"its own results":            {have: []jetstream.StreamConfig{results(func(*jetstream.StreamConfig) {})}, change: func(s *streams.Config) { s.InputStream, s.InputSubject = "RESULTS", "results.>" }, want: []string{"own results.stage.> back to it"}},
		"another's results":          {have: []jetstream.StreamConfig{results(func(*jetstream.StreamConfig) {})}, change: func(s *streams.Config) { s.InputStream, s.InputSubject = "RESULTS", "results.first.*.rows" }},
		"journal unreadable":         {have: []jetstream.StreamConfig{{Name: "JOURNAL", Subjects: []string{"journal.>"}}}, want: []string{"JournalStream", "set allow_direct to true"}},
		"no stream for dead letters": {change: func(s *streams.Config) { s.DeadLetterSubject = "dead" }, want: []string{"DeadLetterSubject: no stream captures the subject dead"}},
		"a stream for dead letters": {
			have:   []jetstream.StreamConfig{{Name: "DEAD", Subjects: []string{"dead"}}},
			change: func(s *streams.Config) { s.DeadLetterSubject = "dead" },
		},
	} {
		runVirtual(t, name, func(t *testing.T) {
			b := bare(t)
			for _, cfg := range c.have {
				stagetest.Value(b.js.CreateStream(t.Context(), cfg))(t)
			}
			s := stageStreams()
			if c.change != nil {
				c.change(&s)
			}
			err := streams.Ensure(t.Context(), b.nc, s)
			if (err != nil) != (c.want != nil) {
				t.Fatalf("err %v, want %v", err, c.want)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("err %v\nwant %q in it", err, want)
				}
			}
		})
	}
}

// A denied request is answered by silence, so each has its own time-out, and one is enough to report.
func TestADeniedRequestEndsTheStartAndIsNamed(t *testing.T) {
	for _, c := range []struct{ deny, want string }{
		{"$JS.API.STREAM.INFO.>", `InputStream: look at stream ROWS: the server denied it: Permissions Violation for Publish to "$JS.API.STREAM.INFO.ROWS": grant the NATS user that permission, or log in as another user`},
		{"$JS.API.STREAM.INFO.AUDIT", `AuditStream: look at stream AUDIT: the server denied it: Permissions Violation for Publish to "$JS.API.STREAM.INFO.AUDIT": grant the NATS user that permission, or log in as another user`},
		{"$JS.API.STREAM.CREATE.RESULTS", `ResultStream: create stream RESULTS on subject results.>: the server denied it: Permissions Violation for Publish to "$JS.API.STREAM.CREATE.RESULTS": grant the NATS user that permission, or log in as another user`},
		{"$JS.API.STREAM.NAMES", `DeadLetterSubject: look for the stream of subject dead: the server denied it: Permissions Violation for Publish to "$JS.API.STREAM.NAMES": grant the NATS user that permission, or log in as another user`},
	} {
		runVirtual(t, c.deny, func(t *testing.T) {
			b := bareWith(t, users(c.deny), nats.UserInfo("stage", "stage"))
			s := stageStreams()
			s.DeadLetterSubject = "dead"
			began := time.Now()
			err := streams.Ensure(t.Context(), b.nc, s)
			took := time.Since(began).Round(time.Second)
			if err == nil || !strings.HasPrefix(err.Error(), c.want) || took > 5*time.Second {
				t.Errorf("after %v: %v\nwant %s", took, err, c.want)
			}
		})
	}
}

func TestExistingStreamsAreNeverAltered(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		before := map[string]string{}
		for _, name := range []string{"ROWS", "RESULTS", "AUDIT", "JOURNAL"} {
			before[name] = describe(b.stream(name).CachedInfo().Config)
		}
		s := stageStreams()
		s.Replicas, s.AuditMaxAge, s.AuditMaxBytes, s.ResultMaxBytes, s.JournalMaxBytes, s.Memory = 3, time.Hour, 1, 2, 3, true
		stagetest.Must(t, streams.Ensure(t.Context(), b.nc, s))
		for name, want := range before {
			if got := describe(b.stream(name).CachedInfo().Config); got != want {
				t.Errorf("stream %s: %s\nwas %s", name, got, want)
			}
		}
	})
}

func TestADurableThatWouldServeOtherRowsIsRefused(t *testing.T) {
	good := jetstream.ConsumerConfig{
		Durable: "stage-0", FilterSubject: "rows.>", AckPolicy: jetstream.AckAllPolicy, MaxAckPending: 64, MaxDeliver: -1, AckWait: 24 * time.Hour,
		PriorityPolicy: jetstream.PriorityPolicyPinned, PriorityGroups: []string{"stage"}, PinnedTTL: time.Second,
	}
	for name, c := range map[string]struct {
		change func(*jetstream.ConsumerConfig)
		create bool
		want   string // empty: it serves
	}{
		"as made":             {create: true},
		"as made by a person": {},
		"explicit acks":       {change: func(c *jetstream.ConsumerConfig) { c.AckPolicy = jetstream.AckExplicitPolicy }},
		"other window and time-outs": {create: true, change: func(c *jetstream.ConsumerConfig) {
			c.MaxAckPending, c.AckWait, c.PinnedTTL = 3, time.Second, 5*time.Second
		}},
		"ack wait in steps":        {create: true, change: func(c *jetstream.ConsumerConfig) { c.MaxDeliver, c.BackOff = 5, []time.Duration{time.Second} }},
		"a small window, not ours": {change: func(c *jetstream.ConsumerConfig) { c.MaxAckPending = 3 }, want: "delivers at most 3 rows ahead (max ack pending), the stage takes 64: raise it, or lower WindowRows"},
		"another filter":           {create: true, change: func(c *jetstream.ConsumerConfig) { c.FilterSubject = "rows.b" }, want: `filters "rows.b", the stage wants "rows.>"`},
		"two filters": {create: true, change: func(c *jetstream.ConsumerConfig) {
			c.FilterSubject, c.FilterSubjects = "", []string{"rows.a", "rows.b"}
		}, want: "choose another Name"},
		"new rows only": {create: true, change: func(c *jetstream.ConsumerConfig) { c.DeliverPolicy = jetstream.DeliverNewPolicy }, want: "has deliver policy new, the stage needs all"},
		"no acks": {create: true, change: func(c *jetstream.ConsumerConfig) {
			c.AckPolicy, c.PriorityPolicy, c.PriorityGroups, c.PinnedTTL, c.MaxAckPending = jetstream.AckNonePolicy, 0, nil, 0, 0
		}, want: "has ack policy AckNone"},
		"not pinned":         {create: true, change: func(c *jetstream.ConsumerConfig) { c.PriorityPolicy, c.PriorityGroups, c.PinnedTTL = 0, nil, 0 }, want: `is not pinned to the group "stage"`},
		"headers only":       {create: true, change: func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true }, want: "delivers headers only"},
		"few rows a request": {create: true, change: func(c *jetstream.ConsumerConfig) { c.MaxRequestBatch = 10 }, want: "limits requests (batch 10"},
		"begins in the middle": {create: true, change: func(c *jetstream.ConsumerConfig) {
			c.DeliverPolicy, c.OptStartSeq = jetstream.DeliverByStartSequencePolicy, 5
		}, want: "begins at sequence 5, the results go on after 0"},
	} {
		runOnTestbed(t, name, func(t *testing.T, b *testbed) {
			cfg := good
			if c.change != nil {
				c.change(&cfg)
			}
			stagetest.Value(b.js.CreateConsumer(t.Context(), "ROWS", cfg))(t)
			b.load(20)
			stage := b.config("run", quick())
			stage.Create = c.create
			r := b.startWith(stage)
			if c.want == "" {
				b.finish(r, 20)
				if c.create {
					if got := b.durable().Config; got.MaxAckPending != 64 || got.AckWait != 24*time.Hour || got.PinnedTTL != time.Second || len(got.BackOff) > 0 {
						t.Errorf("window %d, ack wait %v, pin %v, steps %v", got.MaxAckPending, got.AckWait, got.PinnedTTL, got.BackOff)
					}
				}
				return
			}
			if err := <-r.done; err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("err %v, want %q in it", err, c.want)
			}
			r.soft()
			r.hard()
		})
	}
}

func TestAMissingDurableIsNotCreatedIfCreateIsOff(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		cfg := b.config("run", quick())
		cfg.Create = false
		r := b.startWith(cfg)
		if err := <-r.done; err == nil || !strings.Contains(err.Error(), "consumer stage-0 of stream ROWS does not exist: create it, or set Create=true") {
			t.Errorf("err %v", err)
		}
		r.soft()
		r.hard()
	})
}

func describe(cfg jetstream.StreamConfig) string {
	text, err := json.Marshal(cfg)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
