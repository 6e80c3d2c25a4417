// Package control carries orders to the replicas of a stage over core NATS: pause,
// resume, probe, drain. An operator's command sends an order ([Send], send.go). Each replica
// that it is for carries it out, and answers what it did ([Serve], serve.go).
//
// If a replica obeys at all (STAGE_CONTROL), it obeys everyone who may publish on the
// subject: nobody can check who the order says has asked. An order is bounded and checked
// before anything is done. It is carried out once however often it comes, and not at all
// when it comes late: a client may keep a message while it has no connection, and a
// replica may be suspended.
package control

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/internal/excerpt"
)

// Subject is where orders to a stage are published.
func Subject(name string) string { return "llm-stage." + name + ".control" }

const (
	// Format is the version of orders and answers.
	Format = 1
	// ValidFor is how old an order may be, or how far in the future, by the clocks of two
	// machines.
	ValidFor = time.Minute

	orderBytesMax    = 64 << 10
	replicasMax      = 256
	textBytesMax     = 200 // of each word about who asked
	outcomeBytesMax  = 2000
	partitionHighest = 1023
)

// Verb is what an order asks for.
type Verb string

// The verbs.
const (
	Pause Verb = "pause" // no call begins, or none for a row of the partition
	// Resume ends all that operators have asked for, or what they have asked for the
	// partition. A paused stage probes.
	Resume Verb = "resume"
	Probe  Verb = "probe" // the next probe of a pause goes at once
	Drain  Verb = "drain" // all partitions are handed over, or the one that is named
)

// Verbs are all verbs.
var Verbs = []Verb{Pause, Resume, Probe, Drain}

// Order is what somebody asks of replicas.
type Order struct {
	Format int       `json:"format"`
	ID     string    `json:"id"` // of this order, however often it comes
	Time   time.Time `json:"time"`
	Verb   Verb      `json:"verb"`
	// Partition is the partition that it is about. Nil stands for all that a replica has.
	Partition *int `json:"partition,omitempty"`
	// Replicas are the run ids of the replicas that it is for. Without any it is for all.
	Replicas []string `json:"replicas,omitempty"`
	By       By       `json:"by"`
}

// By says who asks, in the order's own words: nobody can check it.
type By struct {
	User    string `json:"user,omitempty"`
	Host    string `json:"host,omitempty"`
	Program string `json:"program,omitempty"` // and its arguments
	PID     int    `json:"pid,omitempty"`
	// NATSUser is the user that the program has logged in as. ClientID and Server are the
	// connection, as the server numbers and names it, so that its log or its monitoring
	// shows who that was.
	NATSUser string `json:"nats_user,omitempty"`
	ClientID uint64 `json:"client_id,omitempty"`
	Server   string `json:"server,omitempty"`
}

// String returns a short form, as in "alice@laptop".
func (b By) String() string {
	who := cmp.Or(b.User, "somebody")
	if b.Host != "" {
		who += "@" + b.Host
	}
	return who
}

// Detail returns all that is known of who asks.
func (b By) Detail() string {
	text := b.String()
	var more []string
	if b.Program != "" {
		more = append(more, fmt.Sprintf("%s, pid %d", b.Program, b.PID))
	}
	if b.NATSUser != "" {
		more = append(more, "NATS user "+b.NATSUser)
	}
	if b.ClientID != 0 {
		more = append(more, fmt.Sprintf("client %d of server %s", b.ClientID, cmp.Or(b.Server, "without a name")))
	}
	if more == nil {
		return text
	}
	return text + " (" + strings.Join(more, "; ") + ")"
}

// Outcome is what became of an order at one replica.
type Outcome string

// The outcomes.
const (
	Done    Outcome = "done"
	Nothing Outcome = "nothing" // it was so already, or is not this replica's business
	Refused Outcome = "refused"
)

// Answer is what a replica did.
type Answer struct {
	Format  int     `json:"format"`
	Order   string  `json:"order"`
	Replica string  `json:"replica"`
	Host    string  `json:"host"`
	Outcome Outcome `json:"outcome"`
	Text    string  `json:"text"`
}

// String names what is asked for, as in "drain partition 3".
func (o *Order) String() string {
	if o.Partition != nil {
		return fmt.Sprintf("%s partition %d", o.Verb, *o.Partition)
	}
	return string(o.Verb)
}

// isFor reports whether the order is for a replica.
func (o *Order) isFor(replica string) bool {
	return len(o.Replicas) == 0 || slices.Contains(o.Replicas, replica)
}

var orderID = regexp.MustCompile(`^[A-Za-z0-9]{8,64}$`)

// errForeign says that a message is no order at all.
var errForeign = errors.New("no order of this program")

// read reads an order. The error says what is wrong with it. The error wraps errForeign if
// the message is no order at all, and then nobody needs an answer to it.
func read(body []byte, now time.Time) (o Order, err error) {
	if len(body) > orderBytesMax {
		return o, fmt.Errorf("%w: %d bytes", errForeign, len(body))
	}
	if err := json.Unmarshal(body, &o); err != nil {
		return Order{}, fmt.Errorf("%w: %s", errForeign, excerpt.Clip(err.Error(), textBytesMax))
	}
	for _, text := range []*string{&o.By.User, &o.By.Host, &o.By.Program, &o.By.NATSUser, &o.By.Server} {
		*text = excerpt.Clip(*text, textBytesMax)
	}
	switch age := now.Sub(o.Time); {
	case !orderID.MatchString(o.ID):
		return o, fmt.Errorf("%w: it has no id", errForeign)
	case o.Format != Format:
		return o, fmt.Errorf("the order has format %d, this version knows %d: use the stage program of the same version", o.Format, Format)
	case !slices.Contains(Verbs, o.Verb):
		return o, fmt.Errorf("unknown order %q", excerpt.Clip(string(o.Verb), textBytesMax))
	case len(o.Replicas) > replicasMax:
		return o, fmt.Errorf("the order names %d replicas, at most %d may be named", len(o.Replicas), replicasMax)
	case o.Partition != nil && (*o.Partition < 0 || *o.Partition > partitionHighest):
		return o, fmt.Errorf("there is no partition %d", *o.Partition)
	case age > ValidFor, age < -ValidFor:
		return o, fmt.Errorf("the order was given at %s and came at %s: it is late, or the clocks differ by more than %v; nothing was done",
			o.Time.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339), ValidFor)
	}
	return o, nil
}
