package config

import (
	"slices"
	"time"

	"github.com/llm-stage/stage/llm"
)

// The values of STAGE_LANE, and of a row's Stage-Lane header.
const (
	LaneLive  = "live"
	LaneBatch = "batch"
)

// laneCollect is the mode of a stage whose settings ask for no lane, but whose earlier
// processes had one and left batches open; see [Config.CollectLane]. STAGE_LANE can't
// have this value.
const laneCollect = "collect"

// LaneConfig is the batch lane: rows that a provider's Batch API answers. See
// [Config.LaneOn].
type LaneConfig struct {
	Mode      string        `env:"LANE, default=live" oneof:"live batch" help:"live, or batch: rows go through the provider's Batch API, for half the price within a day; a row's Stage-Lane header chooses for itself"`
	Deadline  time.Duration `env:"LANE_DEADLINE, default=0" min:"0" help:"from a row's arrival in the stream: without a result by then it is called live; a row's Stage-Deadline header (a duration, or RFC 3339) is for itself; 0: none"`
	Rows      int           `env:"LANE_ROWS, default=10000" min:"1" max:"50000" help:"a batch goes when it holds so many rows, or the most that the provider takes"`
	Bytes     Size          `env:"LANE_BYTES, default=100MiB" min:"64KiB" max:"256MiB" help:"a batch goes when it holds so many bytes, or the most that the provider takes" deprecated:"remove it; a batch goes at 100 MiB, and STAGE_LANE_ROWS makes smaller ones"`
	Wait      time.Duration `env:"LANE_WAIT, default=1m" min:"1ms" help:"a batch goes when its first row has waited so long"`
	Open      int           `env:"LANE_OPEN, default=10" min:"1" max:"1000" help:"most batches not yet ended, for each partition" deprecated:"remove it; a partition has at most 10 open batches, of STAGE_LANE_ROWS rows each"`
	Poll      time.Duration `env:"LANE_POLL, default=30s" min:"1ms" help:"time between two looks at a batch, with jitter; what the provider asks for wins" deprecated:"remove it; a batch is looked at each 30s, or as often as the provider asks for"`
	AdoptWait time.Duration `env:"LANE_ADOPT_WAIT, default=30s" min:"1ms" help:"after a crash between intent and record: how long the provider's list is watched for the batch until it counts as absent" deprecated:"remove it; a batch that may have been submitted is looked for during 30s"`
	Stream    string        `env:"LANE_STREAM, default=LANE" help:"stream of the records of batches, on subjects lane.<name>.<partition>.<batch>" deprecated:"let the batches end, then remove it; the records of batches are in the stream LANE"`
}

// lanePrefix starts the variables of the batch lane.
const lanePrefix = VariablePrefix + "LANE"

// laneRowsMax is the most rows in batches for which a partition has memory, see
// [Config.LaneRows]. Each takes about 200 bytes, so a million takes 200 MB.
const laneRowsMax = 1_000_000

// LaneOn reports whether the stage has a batch lane: STAGE_LANE or one of its settings
// was given, or batches of earlier processes are collected. A stage without a lane
// ignores the headers that choose one, and creates no stream for it.
func (c *Config) LaneOn() bool {
	return c.from.laneSet || c.Lane.Mode == LaneBatch || c.LaneCollects()
}

// CollectLane makes a stage whose settings ask for no lane collect the batches that
// earlier processes have recorded in a stream. No row joins a batch. rows is how many
// rows the earlier processes may have had in batches, and poll how often they looked;
// each is 0 if it is not known, and then the default holds.
func (c *Config) CollectLane(stream string, rows int, poll time.Duration) {
	c.Lane.Mode, c.Lane.Stream = laneCollect, stream
	if rows > 0 {
		c.Lane.Open, c.Lane.Rows = 1, rows
	}
	if poll > 0 {
		c.Lane.Poll = poll
	}
}

// LaneCollects reports whether the lane only collects batches of earlier processes:
// [Config.CollectLane] was called.
func (c *Config) LaneCollects() bool { return c.Lane.Mode == laneCollect }

// LaneRows returns the most rows that may be in batches, for each partition. It is 0
// without the lane. For example, 10 open batches of 10,000 rows each are 100,000 rows.
func (c *Config) LaneRows() int {
	if !c.LaneOn() {
		return 0
	}
	return c.Lane.Open * c.Lane.Rows
}

// HasBatchAPI reports whether the provider of that name has a Batch API.
func HasBatchAPI(provider string) bool {
	p, ok := llm.LookupProvider(provider)
	return ok && p.Batches
}

// checkLane checks that the lane can work: the provider has batches, the journal keeps
// the answers until their turn, and each row is one request.
func (c *checker) checkLane() {
	if !c.LaneOn() || !c.none("STAGE_LANE") {
		return
	}
	if c.none("STAGE_LLM_PROVIDER") && !HasBatchAPI(c.LLM.Provider) {
		with := slices.DeleteFunc(llm.Providers(), func(p string) bool { return !HasBatchAPI(p) })
		c.add("STAGE_LANE", "%s has no Batch API: choose %s as STAGE_LLM_PROVIDER, "+
			"or unset STAGE_LANE and all STAGE_LANE_*", c.LLM.Provider, orList(with))
	}
	if c.none("STAGE_JOURNAL") && !c.Journal.Enabled {
		c.add("STAGE_JOURNAL", "the batch lane keeps answers there until their turn: "+
			"set it to true, or unset STAGE_LANE and all STAGE_LANE_*")
	}
	if c.FansOut() && c.none("STAGE_FOREACH") {
		c.add("STAGE_FOREACH", "the batch lane answers whole rows: "+
			"unset this, or unset STAGE_LANE and all STAGE_LANE_*")
	}
	if rows := c.LaneRows(); c.none("STAGE_LANE_OPEN", "STAGE_LANE_ROWS") &&
		rows > laneRowsMax {
		c.add("STAGE_LANE_OPEN", "%d batches of %d rows (STAGE_LANE_ROWS) are %d rows, "+
			"each of which has a place in memory: lower one of the two, to %d rows or fewer",
			c.Lane.Open, c.Lane.Rows, rows, laneRowsMax)
	}
}

// laneSubjects returns what the stream of the lane captures, or "" without the lane.
func (c *Config) laneSubjects() string {
	if !c.LaneOn() {
		return ""
	}
	return "lane.>"
}

// CallLive takes the batch lane out of the settings, so that each row is called live.
func (c *Config) CallLive() { c.Lane.Mode, c.from.laneSet = LaneLive, false }
