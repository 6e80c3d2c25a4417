package status

import (
	"strings"
	"testing"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/hold"
)

// The state, why, since when and what to do follow from the first hold that counts. Each
// state but those in which all is well says what to do.
func TestStatusIsOneWordForAllThatIsGoingOn(t *testing.T) {
	one := func(h hold.Hold) hold.List { return hold.List{h} }
	on := func(kind hold.Kind, why string) hold.List {
		return one(hold.Hold{Scope: hold.Stage, Kind: kind, Why: why, Since: epoch})
	}
	partition := func(kind hold.Kind) hold.List { return one(hold.OfPartition(0, kind)) }
	owner, standby := PartitionReport{Role: string(consumer.Owner)}, PartitionReport{Role: string(consumer.Standby)}
	starting, stopped := PartitionReport{Role: string(consumer.Starting)}, PartitionReport{Role: string(consumer.Stopped)}
	busy := rowsReport{Open: 1}
	for name, tt := range map[string]struct {
		holds      hold.List
		rows       rowsReport
		partitions []PartitionReport
		want       State
		why        string
	}{
		"nothing to do":            {nil, rowsReport{}, []PartitionReport{owner}, StateIdle, ""},
		"rows in the window":       {nil, busy, []PartitionReport{owner}, StateWorking, ""},
		"one partition of two":     {partition(hold.Standby), busy, []PartitionReport{standby, owner}, StateWorking, ""},
		"another owns all":         {partition(hold.Standby), rowsReport{}, []PartitionReport{standby}, StateStandby, "another replica owns the partitions, or no row has come yet"},
		"no row has come":          {nil, rowsReport{}, []PartitionReport{{Role: string(consumer.Standby), Vacant: true}}, StateIdle, ""},
		"no owner yet":             {partition(hold.Starting), rowsReport{}, []PartitionReport{starting}, StateStarting, ""},
		"one is not owned yet":     {partition(hold.Starting), rowsReport{}, []PartitionReport{starting, owner}, StateHeld, "reason"},
		"the start is blocked":     {append(partition(hold.Ownership), hold.OfPartition(0, hold.Starting)), rowsReport{}, []PartitionReport{starting}, StateHeld, "reason"},
		"all stopped":              {partition(hold.Stopping), rowsReport{}, []PartitionReport{stopped}, StateEnded, ""},
		"stopping":                 {on(hold.Stopping, "waiting"), rowsReport{}, []PartitionReport{owner, stopped}, StateStopping, "waiting"},
		"stopping while paused":    {append(on(hold.Stopping, "waiting"), on(hold.Billing, "no credit")...), rowsReport{}, []PartitionReport{owner}, StateStopping, "waiting"},
		"all stopped after a stop": {on(hold.Stopping, "waiting"), rowsReport{}, []PartitionReport{stopped}, StateEnded, ""},
		"ended beside others":      {on(hold.Ended, "no stream"), rowsReport{}, []PartitionReport{stopped}, StateEnded, "no stream"},
		"audit full":               {on(hold.Audit, "full"), rowsReport{}, []PartitionReport{owner}, StateHeld, "reason"},
		"bad key":                  {on(hold.Credentials, "bad key"), busy, []PartitionReport{owner}, StatePaused, "bad key"},
		"bad key, and no NATS":     {append(on(hold.Connection, "refused"), on(hold.Credentials, "bad key")...), busy, []PartitionReport{owner}, StatePaused, "bad key"},
		"a partition is paused":    {partition(hold.Operator), busy, []PartitionReport{owner}, StateWorking, ""},
		"handed over":              {append(on(hold.Drained, "drained by alice"), partition(hold.Standby)...), rowsReport{}, []PartitionReport{standby}, StateDrained, "drained by alice"},
		"asked to wait":            {one(hold.Hold{Scope: hold.Server, Kind: hold.RetryAfter, Why: "asked"}), busy, []PartitionReport{owner}, StateWaiting, "asked"},
		"only rejections":          {one(hold.Hold{Scope: hold.Server, Kind: hold.Starved, Why: "rejected", Since: epoch}), busy, []PartitionReport{owner}, StateStarved, "rejected"},
		"the window is full":       {partition(hold.Window), busy, []PartitionReport{owner}, StateWorking, ""},
	} {
		r := Report{Reason: "reason", Rows: tt.rows, Partitions: tt.partitions, Holds: tt.holds}
		r.Judge()
		if r.State != tt.want || r.Why != tt.why {
			t.Errorf("%s: got %s %q, want %s %q", name, r.State, r.Why, tt.want, tt.why)
		}
		if well := r.State == StateWorking || r.State == StateIdle; (r.Do == "") != well {
			t.Errorf("%s: to do: %q", name, r.Do)
		}
		if since := r.Since != nil; since != (len(tt.holds) > 0 && tt.why != "" && !r.Holds[0].Since.IsZero()) {
			t.Errorf("%s: since %v", name, r.Since)
		}
	}
	for _, kind := range PauseReasons {
		r := Report{Partitions: []PartitionReport{owner}, Holds: on(kind, "why")}
		if r.Judge(); r.State != StatePaused || r.Do == "" || r.Do != hold.Find(kind).Do {
			t.Errorf("paused because of %s: %s, to do: %q", kind, r.State, r.Do)
		}
	}
	full := Report{Partitions: []PartitionReport{owner}, Holds: on(hold.Results, "maximum bytes exceeded"), Places: hold.Places{Result: "OUT"}}
	if full.Judge(); !strings.Contains(full.Do, "nats stream edit OUT") {
		t.Errorf("to do about a full stream: %q", full.Do)
	}
}
