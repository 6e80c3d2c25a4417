package consumer_test

import (
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

func TestTheStreamOfTheLaneLosesNoRecord(t *testing.T) {
	good := jetstream.StreamConfig{Name: "LANE", Subjects: []string{"lane.>"}, AllowDirect: true, Storage: jetstream.MemoryStorage}
	for _, tt := range []struct {
		name   string
		change func(*jetstream.StreamConfig)
		want   string
	}{
		{"good", func(*jetstream.StreamConfig) {}, ""},
		{"bounded, refuses new records", func(c *jetstream.StreamConfig) { c.MaxBytes, c.Discard = 1<<20, jetstream.DiscardNew }, ""},
		{"other subject", func(c *jetstream.StreamConfig) { c.Subjects = []string{"lane.other.>"} }, "does not capture lane.stage.>"},
		{"no direct gets", func(c *jetstream.StreamConfig) { c.AllowDirect = false }, "set allow_direct to true"},
		{"work queue", func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy }, "set retention to limits"},
		{"max age", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }, "has max age 1h0m0s"},
		{"drops old records", func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 20 }, "set discard to new"},
		{"one record a subject", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 }, "set max messages per subject to -1"},
		{"no purge", func(c *jetstream.StreamConfig) { c.DenyPurge = true }, "set deny_purge to false"},
	} {
		virtual(t, func(t *testing.T) {
			b := bare(t)
			cfg := good
			tt.change(&cfg)
			stagetest.Value(b.js.CreateStream(t.Context(), cfg))(t)
			s := stageStreams()
			s.LaneStream = "LANE"
			err := streams.Ensure(t.Context(), b.nc, s)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
			}
		})
	}
}

func TestTheStreamOfTheLaneIsCreatedForALane(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		if _, err := b.js.Stream(t.Context(), "LANE"); err == nil {
			t.Error("without a lane there is a stream LANE")
		}
		s := stageStreams()
		s.LaneStream, s.Memory = "LANE", true
		for range 2 { // what it has created satisfies it
			stagetest.Must(t, streams.Ensure(t.Context(), b.nc, s))
		}
		stream := b.stream("LANE")
		if c := stream.CachedInfo().Config; c.Storage != jetstream.MemoryStorage || c.Discard != jetstream.DiscardNew || !c.AllowDirect {
			t.Errorf("got %+v", c)
		}
		s.LaneStream, s.Create = "BATCHES", false
		if err := streams.Ensure(t.Context(), b.nc, s); err == nil || !strings.Contains(err.Error(), "stream BATCHES does not exist") {
			t.Errorf("got %v", err)
		}
	})
}

func TestADurableGetsRoomForTheLane(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.createDurable()
		cfg := durableConfig()
		cfg.LaneRows, cfg.Create = 1000, false
		if _, err := streams.OpenDurable(t.Context(), b.nc, cfg); err == nil || !strings.Contains(err.Error(), "the stage takes 1064: raise it, or lower LaneRows") {
			t.Errorf("not allowed to change it: got %v", err)
		}
		cfg.Create = true
		stagetest.Value(streams.OpenDurable(t.Context(), b.nc, cfg))(t)
		if got := b.durable().Config.MaxAckPending; got != 1064 {
			t.Errorf("got room for %d rows, want 1064", got)
		}
		cfg.LaneRows = 0
		stagetest.Value(streams.OpenDurable(t.Context(), b.nc, cfg))(t)
		if got := b.durable().Config.MaxAckPending; got != 64 {
			t.Errorf("without a lane: got room for %d rows, want 64", got)
		}
	})
}

// Stages that start at the same moment may want other limits, which is no error where a stream exists already.
func TestStagesThatStartTogetherCreateTheSameStreams(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := bare(t)
		var starting errgroup.Group
		for i := range 8 {
			s := stageStreams()
			s.Memory, s.ResultMaxBytes, s.AuditMaxBytes = true, int64(i+1)<<20, int64(i+1)<<20
			starting.Go(func() error { return streams.Ensure(t.Context(), b.nc, s) })
		}
		if err := starting.Wait(); err != nil {
			t.Error(err)
		}
	})
}
