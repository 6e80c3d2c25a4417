package stage_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

const customers = 20

// publishKeyed publishes rows from up to until, each on its customer's subject.
func (s *site) publishKeyed(from, until int) {
	s.t.Helper()
	for n := from; n <= until; n++ {
		if _, err := s.js.Publish(s.t.Context(), fmt.Sprintf("rows.c%d", n%customers), []byte(`{"n":`+strconv.Itoa(n)+`}`)); err != nil {
			s.t.Fatal(err)
		}
	}
}

// keyed checks that each of n rows has one result on these subjects, and that those of a customer are in order.
func (s *site) keyed(n int, subjects ...string) {
	s.t.Helper()
	last := make(map[int]int)
	seen := make(map[int]bool)
	for _, subject := range subjects {
		for _, m := range s.read("RESULTS", subject) {
			var row int
			stagetest.Value(fmt.Sscanf(string(m.Body), `{"n":%d,`, &row))(s.t)
			if seen[row] {
				s.t.Errorf("row %d has two results", row)
			}
			if seen[row] = true; row <= last[row%customers] {
				s.t.Errorf("the result of row %d comes after that of row %d of the same customer", row, last[row%customers])
			}
			last[row%customers] = row
		}
	}
	if len(seen) != n {
		s.t.Errorf("%d rows have results, want %d", len(seen), n)
	}
}

// active returns how many partitions a replica owns.
func active(r *replica) int {
	_, body := r.get("/metrics")
	return strings.Count(linesOf(body, "llm_stage_active{"), "} 1")
}

// TestOnePartitionBecomesMany follows docs/scale.md: the old stage stops, a stream of partitions sources the
// rows after its last result, and a stage of another name continues there. Producers notice nothing.
func TestOnePartitionBecomesMany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rows = 180
		s := newSite(t, llmtest.Config{Latency: 200 * time.Millisecond})
		s.newInput()
		s.publishKeyed(1, 60)
		old := s.start(nil)
		s.until("some results", func() bool { return s.stored() > 30 })
		s.publishKeyed(61, 120)
		old.stop()
		done := s.results(0)
		s.configured(jetstream.StreamConfig{Name: "ROWS4", Sources: []*jetstream.StreamSource{{
			Name: "ROWS", OptStartSeq: done[len(done)-1].Row + 1,
			SubjectTransforms: []jetstream.SubjectTransformConfig{{Source: "rows.*", Destination: "rows.{{partition(4,1)}}.{{wildcard(1)}}"}},
		}}})
		many := s.start(vars{
			"STAGE_NAME": "many", "STAGE_INPUT_STREAM": "ROWS4", "STAGE_INPUT_SUBJECT": "rows.{partition}.>", "STAGE_PARTITIONS": "4",
		})
		s.publishKeyed(121, rows)
		s.until("all results", func() bool {
			return s.stored()+len(s.read("RESULTS", "results.many.*.rows")) >= rows
		})
		many.stop()
		s.keyed(rows, "results.stage.0.rows", "results.many.*.rows")
	})
}
