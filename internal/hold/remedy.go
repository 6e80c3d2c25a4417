package hold

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Places are the names of what a stage uses, for advice that can be typed as it stands.
type Places struct {
	Input, Result, Audit, Journal string // streams
	Bucket                        string // stream of the bucket of large results
	DeadLetter                    string // subject, or empty
	Flags                         string // what commands need to find them, as in "--job reviews"; empty means nothing but the settings
}

// Advise sets what to do, unless the owner of the hold has said it already.
func (h *Hold) Advise(p Places) {
	switch {
	case h.Do != "":
	case h.Class() == Blocked:
		h.Do = h.remedy(p)
	case h.Kind == Order:
		show := strings.TrimSpace(fmt.Sprintf("stage tail --row %s %s", strings.TrimPrefix(h.By, "row "), p.Flags))
		h.Do = show + " shows its calls and the one in flight. STAGE_LLM_TIMEOUT and STAGE_RETRY_MAX_ATTEMPTS bound how long it can take, " +
			"STAGE_ROW_TIMEOUT how long it waits for capacity; STAGE_ORDER=key or none lets other rows pass"
	case h.Kind == Window && h.By == LaneRows:
		h.Do = "nothing: rows are taken again as batches end. A larger STAGE_LANE_ROWS lets more rows wait for batches"
	default:
		h.Do = Find(h.Kind).Do
	}
}

// losing are words of the reasons for which a stream may have lost messages. No other
// reason loses a row.
var losing = []string{
	"drops old results", "drops old records", "deletes the resume point", "loses its resume point", "messages a subject", "acknowledges messages before they are written",
	"deletes records once", "open are forgotten", "deletes a body", "results name objects that are gone", "drops old objects",
}

// itself ends the advice about what nobody needs to restart.
const itself = ". It goes on by itself; no row is lost"

// remedy returns what to do about a connection, a stream or a partition that is blocked.
// It goes by the kind, and then by the reason, because most reasons end in the words of
// the NATS server, which has one code for every message that a stream does not store.
func (h *Hold) remedy(p Places) string {
	edits := editsIn(h.Why)
	switch {
	case h.says(losing...): // the stage can't know which messages are gone already
		return strings.Join(append(edits, "change the stream as the reason says"), "; ") + ". Nothing is stored until then, and it goes on by itself if the stream still has its claims. " +
			"What the stream has dropped is lost: stage verify shows which results are missing"
	case len(edits) > 0: // the reason knows better than its words say: a stream that drops results "when it is full" need not be larger
		return strings.Join(edits, "; ") + ": change the stream back, as the reason says" + itself
	case h.Kind == Stalled:
		return fmt.Sprintf("look at the row that comes next (nats stream get %[1]s SEQUENCE) and at the consumer (nats consumer info %[1]s); %[2]s", p.Input, Find(Stalled).Do)
	case h.Kind == Connection:
		return Find(Connection).Do
	}
	return cmp.Or(h.remedyOfStream(p), h.remedyOfServer(p), "change what the reason names; the log has more (blocked, retrying)"+itself)
}

// remedyOfStream returns what to do where a stream or the disk below it has no room, or
// empty.
//
// For a stream that is full the remedy is on the stream: the STAGE_ variables of its size
// are used when it is created, and change no stream that exists.
func (h *Hold) remedyOfStream(p Places) string {
	switch {
	case h.says("no space left", "disk is full", "disk full"):
		return "free space on the disk that the reason names, where the NATS server stores its streams; no call begins meanwhile" + itself
	case h.Kind == Store, h.says("the store in "): // of the embedded server
		return "look at the disk that the reason names: it refuses writes. The stage starts its NATS server again by itself" + itself
	case h.says("insufficient storage", "insufficient resources", "resource limits exceeded", "maximum account", "storage resources"):
		return "raise max_file_store of the NATS server, or the limits of its account (nats account info), or delete streams that nobody needs" + itself
	case h.says("maximum bytes exceeded", "is full"):
		return fmt.Sprintf("nats stream edit %s --max-bytes=10GiB: give the stream more room than it has (nats stream info). The setting of its size is used only when the stream is created",
			h.stream(p)) + itself
	case h.says("maximum messages exceeded", "maximum messages per subject exceeded"):
		return fmt.Sprintf("nats stream edit %s --max-msgs=-1 --max-msgs-per-subject=-1: the stream holds as many messages as it may (nats stream info)", h.stream(p)) + itself
	}
	return ""
}

// remedyOfServer returns what to do where the NATS server refuses or does not answer, or
// empty.
func (h *Hold) remedyOfServer(p Places) string {
	switch {
	case h.says("no stream captures the subject"):
		return fmt.Sprintf("nats stream info %s: its subjects must match the one that the reason names. If they do, the stream has no leader: nats server report jetstream",
			h.stream(p)) + itself
	case h.says("permissions violation", "not allowed", "permission"):
		return "allow the stage's NATS user the subject that the reason names: stage setup --print-permissions prints all that it needs" + itself
	case h.says("not connected", "connection refused", "no servers available", "connection closed", "connection to nats was lost", "disconnected", "reconnect"):
		return Find(Connection).Do
	case h.says("stream not found", "does not exist", "consumer not found"):
		return "create what is missing: stage setup, with the stage's settings" + itself
	case h.says("is paused"):
		return fmt.Sprintf("nats consumer resume %s, with the name of the consumer that the reason has", p.Input) + itself
	case h.says("timeout", "deadline exceeded", "no leader", "no responders", "no response"):
		return "look at the NATS servers: nats server report jetstream shows streams without a leader. Nothing needs a restart; no row is lost"
	}
	return ""
}

// says reports whether the reason has any of these words.
func (h *Hold) says(words ...string) bool {
	why := strings.ToLower(h.Why)
	return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(why, word) })
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

// stream is the stream that the hold is about.
func (h *Hold) stream(p Places) string {
	switch {
	case h.Kind == DeadLetter:
		return "STREAM, with the one that stores the subject " + p.DeadLetter
	case h.Kind == Audit:
		return p.Audit
	case h.Kind == ObjectStore:
		return p.Bucket
	case h.says("journal"):
		return p.Journal
	}
	return p.Result
}
