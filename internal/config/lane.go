package config

import "time"

// LaneConfig is the batch lane: rows that a provider's Batch API answers. See [Config.LaneOn].
type LaneConfig struct {
	Mode      string        `env:"LANE, default=live" oneof:"live batch" help:"live, or batch: rows go through the provider's Batch API, for half the price within a day; a row's Stage-Lane header chooses for itself"`
	Deadline  time.Duration `env:"LANE_DEADLINE, default=0" min:"0" help:"from a row's arrival in the stream: without a result by then it is called live; a row's Stage-Deadline header (a duration, or RFC 3339) is for itself; 0: none"`
	Rows      int           `env:"LANE_ROWS, default=10000" min:"1" max:"50000" help:"a batch goes when it holds so many rows, or the most that the provider takes"`
	Bytes     Size          `env:"LANE_BYTES, default=100MiB" min:"64KiB" max:"256MiB" help:"a batch goes when it holds so many bytes, or the most that the provider takes"`
	Wait      time.Duration `env:"LANE_WAIT, default=1m" min:"1ms" help:"a batch goes when its first row has waited so long"`
	Open      int           `env:"LANE_OPEN, default=10" min:"1" max:"1000" help:"most batches not yet ended, for each partition"`
	Poll      time.Duration `env:"LANE_POLL, default=30s" min:"1ms" help:"time between two looks at a batch, with jitter; what the provider asks for wins"`
	AdoptWait time.Duration `env:"LANE_ADOPT_WAIT, default=30s" min:"1ms" help:"after a crash between intent and record: how long the provider's list is watched for the batch until it counts as absent"`
	Stream    string        `env:"LANE_STREAM, default=LANE" help:"stream of the records of batches, on subjects lane.<name>.<partition>.<batch>"`
}

// LaneOn reports whether the stage has a batch lane: STAGE_LANE or one of its settings was given. Without, the headers
// that choose a lane mean nothing, and no stream is created for it.
func (c *Config) LaneOn() bool {
	return c.Lane.Mode == "batch"
}

// LaneRows is the most rows that may be in batches, for each partition; 0 without the lane.
func (c *Config) LaneRows() int {
	if !c.LaneOn() {
		return 0
	}
	return c.Lane.Open * c.Lane.Rows
}
