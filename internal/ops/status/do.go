package status

import (
	"fmt"
	"slices"
	"strings"
)

// Places are the names of what a stage uses, for advice that can be typed as it stands.
type Places struct {
	Input, Result, Audit, Journal string // streams
	DeadLetter                    string // subject, or empty
	Flags                         string // what commands need to find them, as in "--job reviews"; empty means nothing but the settings
}

// advice of the states that wait, but for paused, whose advice depends on the reason,
// held and a late row. StateWorking and StateIdle have none.
var stateAdvice = map[State]string{
	StateStopping: "nothing: it ends by itself, and rows that have not begun stay in the input stream. A second signal stops it at once",
	StateEnded:    "if it should go on, start it again: it continues where it has ended",
	StateWaiting: "nothing: calls go on at the time that the provider has named. If it happens often, ask it for a higher limit, " +
		"or set STAGE_FALLBACKS and STAGE_FALLBACK_AFTER",
	StateStarved: "read what the provider says, in last_refusal: ask it for a higher limit, or find who else uses the key. " +
		"STAGE_FALLBACKS with STAGE_FALLBACK_AFTER calls another model meanwhile. No row fails of it, and nothing needs a restart",
	StateDrained:  "stage resume, when it should serve partitions again",
	StateStandby:  "nothing: it takes over when the owner ends. stage status shows all replicas",
	StateStarting: "wait: it reads what the last owner has left. If it takes longer than a minute, its log says what it waits for",
}

// Do returns what to do first in a state, where that does not depend on its reason.
func Do(s State) string { return stateAdvice[s] }

// advise returns what to do first about the state; empty means that there is nothing to do.
func (r *Report) advise() string {
	switch {
	case r.State == StatePaused:
		return Advice(r.Pool.PauseReason)
	case r.State == StateHeld:
		return heldAdvice(r.Why, r.Places)
	case r.State == StateWaiting && r.Row != nil:
		return fmt.Sprintf("%s shows its calls and the one in flight. STAGE_LLM_TIMEOUT and STAGE_RETRY_MAX_ATTEMPTS bound how long it can take, "+
			"STAGE_ROW_TIMEOUT how long it waits for capacity; STAGE_ORDER=key or none lets other rows pass", strings.TrimSpace(fmt.Sprintf("stage tail --row %d %s", *r.Row, r.Places.Flags)))
	}
	return stateAdvice[r.State]
}

// stalledPrefix begins the problem of a partition in which nothing moves for no known
// reason, see [Watch].
const stalledPrefix = "no progress for "

// losing are words of the reasons for which a stream may have lost messages. No other
// reason loses a row.
var losing = []string{
	"drops old results", "drops old records", "deletes the resume point", "loses its resume point", "messages a subject", "acknowledges messages before they are written",
	"deletes records once", "open are forgotten",
}

// heldAdvice returns what to do about a partition, an audit or a connection that is
// blocked, by the reason: mostly it ends in the words of the NATS server, which has one
// code for every message that a stream does not store.
//
// For a stream that is full the remedy is on the stream: the STAGE_ variables of its size
// are used when it is created, and change no stream that exists.
func heldAdvice(why string, p Places) string {
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(strings.ToLower(why), w) {
				return true
			}
		}
		return false
	}
	const itself = ". It goes on by itself; no row is lost"
	switch {
	case has(losing...): // the stage can't know which messages are gone already
		return strings.Join(append(editsIn(why), "change the stream as the reason says"), "; ") + ". Nothing is stored until then, and it goes on by itself if the stream still has its claims. " +
			"What the stream has dropped is lost: stage verify shows which results are missing"
	case len(editsIn(why)) > 0: // the reason knows better than its words tell: a stream that drops results "when it is full" need not be larger
		return strings.Join(editsIn(why), "; ") + ": change the stream back, as the reason says" + itself
	case strings.Contains(why, stalledPrefix):
		return fmt.Sprintf("look at the row that comes next (nats stream get %[1]s SEQUENCE) and at the consumer (nats consumer info %[1]s); "+
			"restart this replica, so that another takes over; and report it with the log: this should not happen", p.Input)
	case has("no space left", "disk is full", "disk full"):
		return "free space on the disk that the reason names, where the NATS server stores its streams; no call begins meanwhile" + itself
	case has("the store in "): // natsconn.Conn.Full, of the embedded server
		return "look at the disk that the reason names: it refuses writes. The stage starts its NATS server again by itself" + itself
	case has("insufficient storage", "insufficient resources", "resource limits exceeded", "maximum account", "storage resources"):
		return "raise max_file_store of the NATS server, or the limits of its account (nats account info), or delete streams that nobody needs" + itself
	case has("maximum bytes exceeded", "is full"):
		return fmt.Sprintf("nats stream edit %s --max-bytes=10GiB: give the stream more room than it has (nats stream info). The setting of its size is used only when the stream is created",
			p.streamOf(why)) + itself
	case has("maximum messages exceeded", "maximum messages per subject exceeded"):
		return fmt.Sprintf("nats stream edit %s --max-msgs=-1 --max-msgs-per-subject=-1: the stream holds as many messages as it may (nats stream info)", p.streamOf(why)) + itself
	case has("no stream captures the subject"):
		return fmt.Sprintf("nats stream info %s: its subjects must match the one that the reason names. If they do, the stream has no leader: nats server report jetstream",
			p.streamOf(why)) + itself
	case has("permissions violation", "not allowed", "permission"):
		return "allow the stage's NATS user the subject that the reason names: stage setup --print-permissions prints all that it needs" + itself
	case has("not connected", "connection refused", "no servers available", "connection closed", "connection to nats was lost", "disconnected", "reconnect"):
		return "start the NATS server, or correct the network between: nats server ping from here. The stage connects again by itself; no row is lost"
	case has("stream not found", "does not exist", "consumer not found"):
		return "create what is missing: stage setup, with the stage's settings" + itself
	case has("is paused"):
		return fmt.Sprintf("nats consumer resume %s, with the name of the consumer that the reason has", p.Input) + itself
	case has("timeout", "deadline exceeded", "no leader", "no responders", "no response"):
		return "look at the NATS servers: nats server report jetstream shows streams without a leader. Nothing needs a restart; no row is lost"
	case has(" is starting", "is stopped"):
		return stateAdvice[StateStarting]
	}
	return "change what the reason names; the log has more (blocked, retrying)" + itself
}

// editsIn returns the commands that a reason gives in parentheses, by which a stream is
// changed.
func editsIn(why string) (commands []string) {
	for _, part := range strings.Split(why, "(nats stream edit ")[1:] {
		if flags, _, closed := strings.Cut(part, ")"); closed && !slices.Contains(commands, "nats stream edit "+flags) {
			commands = append(commands, "nats stream edit "+flags)
		}
	}
	return commands
}

// streamOf is the stream that a reason is about.
func (p Places) streamOf(why string) string {
	switch {
	case strings.Contains(why, "dead letter"):
		return "STREAM, with the one that stores the subject " + p.DeadLetter
	case strings.Contains(why, "audit: "):
		return p.Audit
	case strings.Contains(why, "journal"):
		return p.Journal
	}
	return p.Result
}
