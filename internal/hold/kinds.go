package hold

import (
	"fmt"
	"strings"
)

// Kind is why rows wait, in one word. It is the label of llm_stage_holds.
type Kind string

// The kinds. The table below says what each means.
const (
	Ended    Kind = "ended"
	Stopping Kind = "stopping"

	Connection  Kind = "connection"
	Store       Kind = "store"
	Streams     Kind = "streams"
	Audit       Kind = "audit"
	Ownership   Kind = "ownership"
	Results     Kind = "results"
	DeadLetter  Kind = "dead_letter"
	Undelivered Kind = "undelivered"
	Unread      Kind = "unread"
	Media       Kind = "media"
	ObjectStore Kind = "object_store"
	Stalled     Kind = "stalled"

	Operator    Kind = "operator"
	CostCeiling Kind = "cost_ceiling"
	Credentials Kind = "credentials"
	Billing     Kind = "billing"
	Model       Kind = "model"
	Network     Kind = "network"
	Settings    Kind = "settings"
	Outage      Kind = "outage"
	Other       Kind = "other"

	Drained   Kind = "drained"
	Standby   Kind = "standby"
	Starting  Kind = "starting"
	HandOver  Kind = "hand_over"
	Uncertain Kind = "uncertain"
	Reading   Kind = "reading"

	RetryAfter Kind = "retry_after"
	Starved    Kind = "starved"
	Shortage   Kind = "shortage"
	Throttle   Kind = "throttle"
	Limit      Kind = "limit"
	Budget     Kind = "budget"
	Slots      Kind = "slots"
	Lane       Kind = "lane"
	Window     Kind = "window"
	Order      Kind = "order"

	Pending    Kind = "pending"
	SetAside   Kind = "set_aside"
	Turn       Kind = "turn"
	LookUp     Kind = "look_up"
	Shared     Kind = "shared"
	Call       Kind = "call"
	Retry      Kind = "retry"
	Capacity   Kind = "capacity"
	Doubt      Kind = "doubt"
	SingledOut Kind = "singled_out"
	Batch      Kind = "batch"
	Storing    Kind = "storing"
)

// Class is what several kinds have in common.
type Class string

// The classes.
const (
	// Over: the process takes no more rows. The stage is not ready.
	Over Class = "over"
	// Blocked: NATS, a stream or the audit does not store or deliver. The stage is not ready.
	Blocked Class = "blocked"
	// Paused: no call begins. On the stage it is not ready, and only probes are sent; on a
	// partition only an operator can pause, and the others go on.
	Paused Class = "paused"
	// Elsewhere: the partition is not, or not yet, or no longer served by this replica.
	Elsewhere Class = "elsewhere"
	// Limited: rows go, as fast as something allows.
	Limited Class = "limited"
	// Working: one row is on its way, and waits for a step of it.
	Working Class = "working"
)

// Shown is where a kind can be seen.
type Shown string

// The places where a kind can be seen.
const (
	// Listed: in the list of holds, and in the metric made of it, never as the answer about
	// one row. For example, that the lane submits nothing is why a row's kind is batch.
	Listed Shown = "list"
	// AboutRow: in the answer about one row alone. In a list it would come and go with
	// each call: for a moment all slots are in use, then the throttle waits, then neither.
	AboutRow Shown = "row"
	// Everywhere: both.
	Everywhere Shown = "both"
)

// Entry is a line of the table.
type Entry struct {
	Kind      Kind
	Class     Class
	Shown     Shown
	Means, Do string
}

const goesOn = "nothing: it goes on by itself"

// table has each kind once. What is before another is what an operator reads first. The
// page docs/holds.md is made of it.
var table = []Entry{
	{Ended, Over, Everywhere, "the stage has ended, and its process goes on without it", "if it should go on, start it again: it continues where it has ended"},
	{
		Stopping, Over, Everywhere, "the process stops: calls in flight end, and no other row begins",
		"nothing: it ends by itself, and rows that have not begun stay in the input stream. A second signal stops it at once",
	},

	{
		Connection, Blocked, Everywhere, "there is no connection to NATS",
		"start the NATS server, or correct the network between: nats server ping from here. The stage connects again by itself; no row is lost",
	},
	{
		Store, Blocked, Everywhere, "the embedded NATS server can't store, mostly because the disk is full",
		"look at the disk that the reason names: it is full, or refuses writes. The stage goes on by itself; no row is lost",
	},
	{Operator, Paused, Everywhere, "somebody asked for it (`stage pause`)", "stage resume ends it"},
	{CostCeiling, Paused, Everywhere, "the known cost has reached `STAGE_MAX_COST_USD`", "raise STAGE_MAX_COST_USD and restart, or leave the stage paused"},
	{
		Credentials, Paused, Everywhere, "the provider's key or the cloud's credential is missing, wrong or not allowed",
		"correct the key in its file or Secret, or the cloud's role: both are read again before each probe. A key from the environment needs a restart",
	},
	{Billing, Paused, Everywhere, "no credit is left at the provider, or a quota of money or days is used up", "look at the provider's console: add credit, or raise the quota"},
	{Model, Paused, Everywhere, "the provider does not know the model", "correct STAGE_LLM_MODEL, and restart"},
	{
		Network, Paused, Everywhere, "the provider's host is unknown, its server is not started, its certificate is not trusted, or it redirects",
		"start the server, or correct STAGE_LLM_BASE_URL, DNS, the certificate or egress rules; a restart only for a changed setting",
	},
	{
		Settings, Paused, Everywhere, "the provider refuses every row, so the settings are wrong",
		"compare the settings and the template with what the provider says, change what is wrong, and restart",
	},
	{
		Outage, Paused, Everywhere, "nobody gets an answer from the provider, or this machine is so short of something that no call is in flight",
		"look at the provider's status page; from here, at DNS, proxy and egress rules. Nothing needs a restart",
	},
	{Other, Paused, Everywhere, "the provider has answered with another error that no row can get past", "read what the provider says"},
	{Streams, Blocked, Everywhere, "a stream or consumer was changed so that a guarantee would break", "change it back, as the reason says; it goes on by itself"},
	{Audit, Blocked, Everywhere, "audit events can't be stored, and a result is stored after its events", "change what the reason names; it goes on by itself, and no row is lost"},
	{Ownership, Blocked, Everywhere, "the partition can't be claimed", "change what the reason names; it goes on by itself, and no row is lost"},
	{Results, Blocked, Everywhere, "results can't be stored", "change what the reason names; it goes on by itself, and no row is lost"},
	{
		DeadLetter, Blocked, Everywhere, "a failed row can't be stored as a dead letter, and its result is stored after it",
		"change what the reason names; it goes on by itself, and no row is lost",
	},
	{Undelivered, Blocked, Everywhere, "rows wait in the input stream, and the server delivers none", "change what the reason names; it goes on by itself, and no row is lost"},
	{Unread, Blocked, Everywhere, "a row that was set aside, or is back from a batch, can't be read again", "change what the reason names; it goes on by itself, and no row is lost"},
	{
		Media, Blocked, Everywhere, "the object store of a picture, document or sound can't be reached",
		"look at the bucket that the reason names: whether its stream has a leader (nats stream info OBJ_<bucket>), and whether the stage's user may read it. " +
			"It goes on by itself, and no row fails",
	},
	{
		ObjectStore, Blocked, Everywhere, "a result, a row or a kept reply that is larger than a message can't be put into the object store, or read from it (`STAGE_RESULT_BUCKET`)",
		"change what the reason names; it goes on by itself, and no row is lost",
	},
	{Stalled, Blocked, Everywhere, "rows wait, nothing moves, and no other reason is known", "restart this replica, so that another takes over; and report it with the log: this should not happen"},

	{Drained, Elsewhere, Everywhere, "an operator asked that other replicas serve the partitions", "stage resume, when it should serve partitions again"},
	{Standby, Elsewhere, Listed, "another replica serves the partition, or no row has come yet", "nothing: it takes over when the owner ends. stage status shows all replicas"},
	{
		Starting, Elsewhere, Everywhere, "the process has just begun: it looks at its streams, and has not asked for the partition yet",
		"wait. If it takes longer than a minute, its log says what it waits for",
	},
	{HandOver, Elsewhere, Everywhere, "the partition goes to another replica as soon as its calls in flight have ended", goesOn},
	{Uncertain, Elsewhere, Everywhere, "the process was suspended, and reads the log to see whether the partition is still its own", goesOn},
	{
		Reading, Elsewhere, Everywhere, "the partition is being claimed, or it was, and what its last owners have left is read, such as the replies that they have kept",
		"nothing: it goes on by itself. If it takes longer than a minute, the log says what it waits for",
	},

	{
		RetryAfter, Limited, Everywhere, "the provider asked to wait, or reported that no requests remain until its limit resets",
		"nothing: calls go on at the time that the provider has named. If it happens often, ask it for a higher limit, or set STAGE_FALLBACKS and STAGE_FALLBACK_AFTER",
	},
	{
		Starved, Limited, Listed, "the provider has refused every call for a while",
		"read what the provider says, in last_refusal: ask it for a higher limit, or find who else uses the key. " +
			"STAGE_FALLBACKS with STAGE_FALLBACK_AFTER calls another model meanwhile. No row fails of it, and nothing needs a restart",
	},
	{Shortage, Limited, Everywhere, "this machine is short of descriptors, ports or memory, so fewer calls are in flight", "raise what the reason names, or lower STAGE_POOL_SIZE"},
	{Throttle, Limited, AboutRow, "the throttle lets calls go one after the other, as fast as the provider has shown to accept them", "nothing; docs/throttle.md says how it decides"},
	{Limit, Limited, AboutRow, "a limit of the settings lets no further call go now", "raise STAGE_LLM_RPM, STAGE_LLM_TPM or STAGE_LLM_MAX_CONCURRENCY, if the provider allows more"},
	{Budget, Limited, AboutRow, "it is another process's turn in the shared budget", "raise STAGE_BUDGET_WEIGHT, or run fewer processes on the budget"},
	{Slots, Limited, AboutRow, "all slots of the pool are in use", "nothing; a larger STAGE_POOL_SIZE makes more calls at once, if the provider allows it"},
	{Lane, Limited, Listed, "the batch lane submits nothing", "change what the reason names; it goes on by itself, and no row is lost"},
	{Window, Limited, Everywhere, "the window is full, so no further row is taken", "nothing; a larger STAGE_WINDOW or STAGE_WINDOW_BYTES lets more rows wait behind a slow one"},
	{
		Order, Limited, Everywhere, "answered rows wait for an earlier one, so that results are in order",
		"stage tail --row N, with the row that it names, shows its calls. STAGE_ORDER=key or none lets other rows pass",
	},

	{Pending, Working, AboutRow, "the row is in the input stream, and was not taken yet", "nothing: rows are taken in the order of the stream"},
	{SetAside, Working, AboutRow, "the rows of its key have their share of the window, so only the row's place is kept", "nothing: it is read again when an earlier row of its key has its result"},
	{Turn, Working, AboutRow, "partitions and keys take turns, and it is not this row's turn", goesOn},
	{LookUp, Working, AboutRow, "whether an equal request was answered before is looked up (`STAGE_DEDUPE=stored`)", "nothing: it goes on without an answer after two seconds"},
	{Shared, Working, AboutRow, "another row with the same request is called, and its answer serves both", goesOn},
	{Call, Working, AboutRow, "its call is in flight", "nothing: STAGE_LLM_TIMEOUT bounds how long it can take"},
	{Retry, Working, AboutRow, "its last call failed, and the next one waits a little", "nothing: STAGE_RETRY_MAX_ATTEMPTS bounds how many calls are made"},
	{Capacity, Working, AboutRow, "its last call was refused for lack of capacity, and the next one waits", "nothing: a refusal never fails a row. STAGE_ROW_TIMEOUT bounds how long it waits"},
	{Doubt, Working, AboutRow, "its last call failed, and whether that is the row's fault or the provider's shows when another call ends", goesOn},
	{
		SingledOut, Working, AboutRow, "it alone is refused while other rows are accepted, so the next call waits longer each time",
		"look at what the provider says of this row: its model, its length or its content has a limit of its own",
	},
	{Batch, Working, AboutRow, "it is in the batch lane", "nothing: the provider answers within a day. stage lane ls shows the batches, and STAGE_LANE_DEADLINE bounds the wait"},
	{Storing, Working, AboutRow, "it is answered, and its events or its result are being stored", goesOn},
}

// Markdown returns the table as docs/holds.md has it.
func Markdown() string {
	var b strings.Builder
	b.WriteString("| kind | class | shown | rows wait because | what to do |\n| --- | --- | --- | --- | --- |\n")
	for _, e := range table {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", e.Kind, e.Class, e.Shown, e.Means, e.Do)
	}
	return b.String()
}
