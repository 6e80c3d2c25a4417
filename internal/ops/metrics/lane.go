package metrics

import (
	"time"

	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/prometheus/client_golang/prometheus"
)

// laneGauges are the batches of a process. It has them only where it has a batch lane.
type laneGauges struct{ batches, rows, paused, oldest, adopted, lapsed *prometheus.Desc }

func newLaneGauges(desc func(name, help string, labels ...string) *prometheus.Desc) laneGauges {
	return laneGauges{
		batches: desc("llm_stage_lane_batches", "Batches that are not done, by state: intent, looking, running, collecting or settling.", "state"),
		rows:    desc("llm_stage_lane_rows", "Rows of the batch lane, by state: gathering, waiting, submitted, answered or live.", "state"),
		paused:  desc("llm_stage_lane_paused", "1 while no batch is submitted because of the key or the credit, else 0."),
		oldest:  desc("llm_stage_lane_oldest_batch_seconds", "Age of the oldest batch that is not done; 0: there is none."),
		adopted: desc("llm_stage_lane_adopted_batches_total", "Batches that were found at the provider after a crash between their submission and its record."),
		lapsed:  desc("llm_stage_lane_lapsed_rows_total", "Rows that expired or were cancelled at the provider without an answer, and are sent again."),
	}
}

// collect passes on the sums over all partitions.
func (d laneGauges) collect(metrics chan<- prometheus.Metric, lanes []status.Lane) {
	sum := status.SumLanes(lanes, time.Now())
	batches := make(map[status.LaneState]int)
	for i := range lanes {
		for state, n := range lanes[i].Counts() {
			batches[state] += n
		}
	}
	value := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	}
	for _, state := range status.LaneBatchStates {
		value(d.batches, prometheus.GaugeValue, float64(batches[state]), string(state))
	}
	for _, state := range status.LaneRowStates {
		value(d.rows, prometheus.GaugeValue, float64(sum.Rows[state]), string(state))
	}
	value(d.paused, prometheus.GaugeValue, oneIf(sum.Paused != "" || sum.PartlyPaused != ""))
	value(d.oldest, prometheus.GaugeValue, sum.OldestS)
	value(d.adopted, prometheus.CounterValue, float64(sum.Adopted))
	value(d.lapsed, prometheus.CounterValue, float64(sum.Lapsed))
}
