package load

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// customers returns rows of seven customers, n in all; the load is cut off after row cut, if that
// is not 0.
func customers(n, skip, cut int) func() (*nats.Msg, error) {
	i := skip
	return func() (*nats.Msg, error) {
		switch i++; {
		case cut > 0 && i > cut:
			return nil, errCut
		case i > n:
			return nil, io.EOF
		}
		return &nats.Msg{Data: fmt.Appendf(nil, `{"n":%d,"customer":"c%d"}`, i, i%7)}, nil
	}
}

var errCut = errors.New("cut off")

// TestLoadSpreadsRowsOverPartitionsEachOnce loads a file that is cut off twice, into streams of
// several shapes.
func TestLoadSpreadsRowsOverPartitionsEachOnce(t *testing.T) {
	const rows, partitions = 500, 5
	transform := &jetstream.SubjectTransformConfig{Source: "rows.*", Destination: "rows.{{partition(5,1)}}.{{wildcard(1)}}"}
	tests := []struct {
		name   string
		stream *jetstream.StreamConfig // or nil for the one that the stage creates
		key    string
	}{
		{"created by the stage", nil, ""},
		{"by key", nil, "customer"},
		{"on keys alone", &jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"rows.*"}, SubjectTransform: transform, AllowAtomicPublish: true}, "customer"},
		{"without batches", &jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"rows.*"}, SubjectTransform: transform}, ""},
		{"without a transform", &jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"rows.>"}, AllowAtomicPublish: true}, "customer"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := stagetest.NewBench(t, nil)
			cfg := stagetest.Config(t, "STAGE_PARTITIONS", "5", "STAGE_INPUT_SUBJECT", "rows.{partition}.>")
			b.Drop("ROWS")
			if tt.stream != nil {
				stagetest.Value(b.JS.CreateStream(t.Context(), *tt.stream))(t)
			}
			stagetest.Must(t, streams.Ensure(t.Context(), b.NC, stored.Streams(cfg)))
			for i, cut := range []int{170, 403, 0, 0} {
				l, loaded, err := New(t.Context(), b.NC, cfg, "file", tt.key)
				if err != nil {
					t.Fatal(err)
				}
				l.group = 100
				if want := []int64{0, 170, 403, rows}[i]; loaded != want {
					t.Errorf("load %d begins after row %d, want %d", i, loaded, want)
				}
				err = l.Run(t.Context(), loaded, customers(rows, int(loaded), cut), func(int64) {})
				if cut > 0 != errors.Is(err, errCut) {
					t.Fatal(err)
				}
			}
			checkLanes(t, b, tt.key != "", rows, partitions)
		})
	}
}

// checkLanes checks that each row is in one partition, in order there, and the rows of a customer
// all in one.
func checkLanes(t *testing.T, b *stagetest.Bench, byCustomer bool, rows, partitions int) {
	t.Helper()
	home := make(map[string]int)
	seen := 0
	for p := range partitions {
		last := 0
		here := 0
		for from := uint64(1); ; here++ {
			m := stagetest.Value(streams.NextMessage(t.Context(), b.NC, "ROWS", fmt.Sprintf("rows.%d.>", p), from))(t)
			if m == nil {
				break
			}
			from = m.Sequence + 1
			var n, customer int
			stagetest.Value(fmt.Sscanf(string(m.Data), `{"n":%d,"customer":"c%d"}`, &n, &customer))(t)
			if n <= last {
				t.Fatalf("partition %d: row %d after row %d", p, n, last)
			}
			last = n
			name := fmt.Sprint(customer)
			if at, known := home[name]; byCustomer && known && at != p {
				t.Fatalf("rows of customer %d are in partitions %d and %d", customer, at, p)
			}
			home[name] = p
		}
		if !byCustomer && here != rows/partitions {
			t.Errorf("partition %d has %d rows, want %d", p, here, rows/partitions)
		}
		seen += here
	}
	if seen != rows {
		t.Errorf("%d rows are in the partitions, want %d", seen, rows)
	}
}

func TestLoadRefusesAStreamWithAnotherNumberOfPartitions(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Drop("ROWS")
	if _, err := b.JS.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "ROWS", Subjects: []string{"rows.*"},
		SubjectTransform: &jetstream.SubjectTransformConfig{Source: "rows.*", Destination: "rows.{{partition(3,1)}}.{{wildcard(1)}}"},
	}); err != nil {
		t.Fatal(err)
	}
	cfg := stagetest.Config(t, "STAGE_PARTITIONS", "5", "STAGE_INPUT_SUBJECT", "rows.{partition}.>")
	err := config.Explained(streams.Ensure(t.Context(), b.NC, stored.Streams(cfg)))
	if err == nil || !strings.Contains(err.Error(), "3 partitions") || !strings.Contains(err.Error(), "STAGE_PARTITIONS=5") {
		t.Errorf("got %v", err)
	}
}

// Of two loaders, the one that wrote the newest record continues, even if the other one had more
// rows on the way than it was about to store itself. The other one ends.
func TestOneOfTwoLoadsGoesOn(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Drop("ROWS")
	cfg := stagetest.Config(t, "STAGE_PARTITIONS", "5", "STAGE_INPUT_SUBJECT", "rows.{partition}.>")
	stagetest.Must(t, streams.Ensure(t.Context(), b.NC, stored.Streams(cfg)))
	open := func() *Loader {
		l, loaded, err := New(t.Context(), b.NC, cfg, "file", "customer")
		if err != nil || loaded != 0 {
			t.Fatalf("%d rows loaded, error %v", loaded, err)
		}
		return l
	}
	first := open()
	source := customers(800, 0, 0)
	stagetest.Must(t, first.record(t.Context(), 0, groupRows))
	group, _, err := first.gather(0, source)
	if err != nil || len(group) != groupRows {
		t.Fatalf("%d rows in a group, error %v", len(group), err)
	}
	second := open()
	second.group = 200 // its source is slow
	stagetest.Must(t, second.record(t.Context(), 0, groupRows))
	if _, err := first.store(t.Context(), group, 0); err != nil { // was on its way
		t.Fatal(err)
	}
	if err := second.Run(t.Context(), 0, customers(800, 0, 0), func(int64) {}); err != nil {
		t.Errorf("the loader with the newest record: %v", err)
	}
	if err := first.Run(t.Context(), groupRows, source, func(int64) {}); !errors.Is(err, errRivalLoad) {
		t.Errorf("the other loader: %v", err)
	}
	checkLanes(t, b, true, 800, 5)
}

// TestTwoLoadsOfOneSourceLoadItOnce runs them at once.
func TestTwoLoadsOfOneSourceLoadItOnce(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Drop("ROWS")
	cfg := stagetest.Config(t, "STAGE_PARTITIONS", "5", "STAGE_INPUT_SUBJECT", "rows.{partition}.>")
	stagetest.Must(t, streams.Ensure(t.Context(), b.NC, stored.Streams(cfg)))
	ended := make(chan error, 2)
	for range 2 {
		go func() {
			l, loaded, err := New(t.Context(), b.NC, cfg, "file", "customer")
			if err == nil {
				err = l.Run(t.Context(), loaded, customers(800, int(loaded), 0), func(int64) {})
			}
			ended <- err
		}()
	}
	errs := []error{<-ended, <-ended}
	if !slices.Contains(errs, nil) {
		t.Errorf("neither came to its end: %v", errs)
	}
	for _, err := range errs {
		if err != nil && !strings.Contains(err.Error(), "another load of the same source") {
			t.Errorf("a load ended with %v", err)
		}
	}
	checkLanes(t, b, true, 800, 5)
}
