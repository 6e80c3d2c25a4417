package stage

import (
	"testing"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/ops/status"
)

// A replica without a partition does not know what waits: "rows_left": 0 in its log, while the servers of the cluster that
// have 2,000 rows are gone, would say that all is done.
func TestOnlyAnOwnerSaysHowManyRowsAreLeft(t *testing.T) {
	for _, tt := range []struct {
		name string
		role consumer.Role
		left func() int64
		want int64
	}{
		{"the owner", consumer.Owner, nil, 7},
		{"a standby", consumer.Standby, nil, -1},
		{"a job before its claim", consumer.Starting, func() int64 { return 40 }, 40},
		{"a job that has not counted its file", consumer.Owner, func() int64 { return -1 }, 7},
	} {
		var r status.Report
		p := status.PartitionReport{Role: string(tt.role)}
		if tt.role == consumer.Owner {
			r.Rows.Pending, p.WindowRows = 4, 3
		}
		r.Partitions = []status.PartitionReport{p}
		if got := rowsLeft(&r, tt.left); got != tt.want {
			t.Errorf("%s: %d rows left, want %d", tt.name, got, tt.want)
		}
	}
}
