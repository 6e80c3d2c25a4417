// Package consumer is the JetStream side of a stage: it takes rows in stream order, hands
// them to an executor, and appends their results to the results stream in the same order,
// each exactly once.
//
// The results stream is the only authority. Every append is conditional on the exact end
// of the partition's log, and that end names the row to go on with; so whoever appends,
// appends the next row. All else (the pin, the acks) saves time and money, and
// correctness never depends on it.
//
//	partition := streams.DurableConfig{Name: "stage", InputStream: "ROWS", …}
//	c, err := consumer.New(nc, consumer.Config{DurableConfig: partition, Executor: exec, …})
//	if err != nil { … }
//	err = c.Run(soft, hard) // until soft ends: drain and hand over; hard: stop at once
//
// One Consumer serves one partition. Any number of processes may run one for the same
// partition: one owns it, the others stand by. A term of ownership has these steps: stand
// by until the pin is ours, read the end of the log, claim it, reset the durable consumer
// to the row after it, take rows, append their results, ack, and hand over at the end.
//
// A row goes this way:
//
//	ROWS ─pull─> intake ─> window ─> Executor ─Reply─> mailbox ─> window ─> emitter ─> RESULTS
//	                        ▲  │                                    │                     │
//	                returns │  ▼                                    ▼                     ▼
//	                        away                                 journal                 acks
//
// A row is away when only its place is in memory: other rows of its key wait in such
// numbers that the window would be full of them, or it is in a batch. The journal keeps
// replies that wait for an earlier row. The next owner reads a kept reply before it
// starts the row.
//
// Each state has one goroutine that owns it, so only hand-over points have locks:
//
//	goroutine           owns                                  the others reach it by
//	of Consumer.Run     the term with all its parts; between  mailbox, steering, questions,
//	                    terms the rows that are carried over  the lane's desk
//	the emitter         the end of the log, while it appends  the outlet's two channels
//	the dropper         which results are old                 nobody: it reports a problem
//	a transfer          one body that it stores or reads      the transfers' channel
//	of the executor     a row, from Start to Reply            the row's signals; gate,
//	                                                          pulse and storable
//
// The types are in files of their names: survey, standby, term with its parts (intake,
// ownership, window, returns, lane, journal, bodies, emitter, acks), and carried. The log
// (resultLog) is in claim.go, and what each of its messages says of the rows before it
// (logMark) in mark.go. What happens to a row, step by step, is in rows.go; what a
// take-over and a hand-over do is in takeover.go and handover.go.
//
// What other programs may rely on: New, Run, Executor and Row.Reply, as the example uses
// them, and what is stored in the streams. The rest serves this program and may change
// with any release.
package consumer

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/recorder"
	"github.com/llm-stage/stage/consumer/spread"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/nats-io/nats.go"
)

// Config of one partition. Name, the streams and subjects, Executor, Recorder and Logger
// are required.
type Config struct {
	// DurableConfig names stage, partition and streams. Its WindowRows bounds the rows
	// taken of the partition and not yet emitted. A standby takes over within two
	// PinnedTTL.
	streams.DurableConfig
	// RunID of this process, for its run events.
	RunID string
	// ResultSubject is the prefix of the subjects of results.
	ResultSubject string
	// ResultBucket is the bucket of the object store for results that are larger than a
	// message of the results stream. If it is empty such a result is an error, see
	// [Fitter].
	ResultBucket string
	// ResultMaxAge is how old results may get before the owner of the partition drops
	// them. It looks for such results ten times in that time, and at least once a minute.
	// Zero means that all are kept.
	ResultMaxAge time.Duration
	// DeadLetterSubject gets the originals of failed rows, or empty.
	DeadLetterSubject string
	// WindowBytes bounds the bytes taken and not yet emitted. A row that is larger enters
	// when the window is empty. Default 256 MiB.
	WindowBytes int64
	// OrderKey describes the key in the claim, where the Order is [streams.OrderKey]. For
	// example, "subject" or "field customer".
	OrderKey string
	// Key returns the key of a row as [streams.KeyHeader] writes it, where the Order is
	// [streams.OrderKey]. It is called each time that a row comes, so it must return the
	// same for the same row. The goroutine of [Consumer.Run] calls it.
	Key func(*Row) string
	// Streams looks at the settings of the streams while the partition is served: at each
	// claim, and whenever it runs. A setting that can't serve ends the term, and the
	// partition waits until the stream is changed. Nil means that nobody looks.
	Streams *streams.Inspector
	// Moves says that somebody calls [Consumer.Use] with another connection when the
	// present one is closed for good. Without Moves, Run ends with an error then.
	Moves bool
	// NewInput accepts an input stream that was re-created since the last claim.
	NewInput bool
	// Spread decides which partitions this process should serve, and when to give one up.
	// Nil means that it should always serve all of them.
	Spread *spread.Spread
	// Journal keeps replies that wait for an earlier row, so that a crash does not pay for
	// them again. A journal that is full, gone or forbidden is not used (see
	// [Status.JournalProblem]).
	Journal bool
	// JournalStream is the stream that holds the journal.
	JournalStream string
	// JournalAfter is how long a reply waits for its turn before the journal keeps it.
	// Zero keeps a reply as soon as its call events are stored.
	JournalAfter time.Duration
	// LaneLeft is called at the start and before each claim if the last owner had a lane
	// and this process has none. It returns an error if batches are open, and the
	// partition is not claimed then. It may be nil.
	LaneLeft func(ctx context.Context, left *streams.ClaimedLane) error
	// ClaimedLane describes the lane in claims. It may be nil.
	ClaimedLane *streams.ClaimedLane
	// Lane answers rows outside of the window, at most LaneRows at a time. It requires
	// Journal. Nil means that there is no lane.
	Lane Lane

	Executor Executor
	Recorder *recorder.Recorder
	Observer Observer // may be nil
	Tracer   Tracer   // may be nil
	Logger   *slog.Logger
	// Explain puts an error into words for the log and for [Status.Problem]; see
	// [streams.Explain]. Nil means the error's own text.
	Explain func(error) string

	// hook is called at each step of the protocol. Tests crash or suspend the process
	// there.
	hook func(step string)
}

// Observer is called when something happens, for metrics. Its methods must not block.
type Observer interface {
	// RowEmitted is called for each result stored: how long it was in the stage, and how
	// long it was finished.
	RowEmitted(partition int, failed bool, sinceTaken, sinceFinished time.Duration)
	// TermEnded is called when a term of ownership ends: "stopped", "released" to another
	// replica, "fenced" or "error".
	TermEnded(partition int, how string)
}

// Role is what a Consumer is doing.
type Role string

// Roles.
const (
	Starting Role = "starting"
	Standby  Role = "standby"
	Owner    Role = "owner"
	Stopped  Role = "stopped"
)

// Status is a snapshot for gauges and pages.
type Status struct {
	Partition int
	Role      Role
	// Owner is the current term; empty when there is none.
	Owner string
	// Claim is the sequence of the term's claim in the results stream; 0 when there is
	// none. For a moment two replicas may both report that they own the partition: the
	// one with the higher claim does.
	Claim uint64
	// Taking says that it is this process's turn to serve the partition, and that it has
	// not claimed it yet.
	Taking bool
	// Paused says that the rows wait because somebody asked for it, see [Consumer.Pause].
	Paused bool
	// Parked counts the rows that are in the batch lane, or wait behind one that is, with
	// their replies in the journal.
	Parked int
	// SetAside counts the rows that are taken but not in memory, so that a key whose rows
	// wait leaves room for the others.
	SetAside int
	// Window counts the rows taken and not emitted, but for those that are parked or set
	// aside.
	Window int
	// Buffered counts the answered rows of the window.
	Buffered int
	// BufferedBytes is the size of the window.
	BufferedBytes int64
	// Head is the oldest row that is taken and not emitted, also one that is parked or set
	// aside. It is 0 where there is none.
	Head uint64
	// HeadSince is when Head became the oldest.
	HeadSince time.Time
	// Pending rows wait in the input stream. Only the owner reports them.
	Pending uint64
	// HighWaterMark is the low-water mark, under the name that it had before there were
	// orders by key: every row up to it is emitted. In stream order it is also the last
	// row emitted.
	HighWaterMark uint64
	// Ahead counts the rows above the low-water mark that are emitted. It is always 0 in
	// stream order.
	Ahead int
	// KeysWaiting counts the keys with answered rows that wait for an earlier row. It is
	// always 0 unless the order is by key.
	KeysWaiting int
	// WaitedFor is the row that others have waited for longest, or 0.
	WaitedFor uint64
	// WaitedForKey is the key of WaitedFor.
	WaitedForKey string
	// WaitedForSince is when WaitedFor was taken. It is zero while that row is away.
	WaitedForSince time.Time
	// Emitted counts the results that this process has stored.
	Emitted uint64
	// Failed counts the errors among Emitted.
	Failed uint64
	// Skipped counts rows that came again after they were emitted.
	Skipped uint64
	// Problem is what blocks the partition; empty when nothing does.
	Problem string
	// Holds are the reasons why the rows of the partition wait, as far as this consumer
	// knows.
	Holds []hold.Hold
	// JournalProblem is why replies are not kept at the moment. It is empty when they are
	// kept, and without a journal.
	JournalProblem string
	// DropProblem is why results that are older than [Config.ResultMaxAge] stay; empty
	// when nothing keeps them. No row waits for it.
	DropProblem string

	term termStatus
}

// Consumer serves one partition. Create it with [New].
type Consumer struct {
	*shared // with its rows
	*connection

	cfg       Config
	order     order
	results   *resultLog
	messages  *messages
	log       *slog.Logger
	problems  problems
	steer     steering
	carried   carried
	questions chan question // about rows, see RowHold

	// fencedPin is the pin of the last term, or attempt at one, if that was fenced; else
	// empty. The server may still know it, see [standby.wait].
	fencedPin string
	// started says that all was well once, whether it was this process's turn or not:
	// from then on a missing or misconfigured stream is a problem that may be fixed while
	// it waits.
	started bool

	mu     sync.Mutex
	status Status
}

// New checks the configuration and returns a Consumer; [Consumer.Run] does the work. It
// makes no request.
func New(nc *nats.Conn, cfg Config) (*Consumer, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	js, err := streams.JetStream(nc)
	if err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	log := cfg.Logger.With(slog.Int("partition", cfg.Partition))
	filter := streams.LogFilter(cfg.ResultSubject, cfg.Name, cfg.Partition)
	c := &Consumer{
		cfg: cfg,
		connection: &connection{
			nc: nc, js: js,
			published: []string{streams.APISubjects, filter, cmp.Or(cfg.DeadLetterSubject, filter)},
		},
		order: order{name: cfg.Order, keyName: cfg.OrderKey},
		log:   log,
		shared: &shared{
			mail: newMailbox(), gate: new(gate), pulse: newPulse(time.Now(), cfg.PinnedTTL),
			storable: new(storable), recorder: cfg.Recorder,
		},
		steer:     steering{changed: make(chan struct{}, 1), shares: cfg.Spread, partition: cfg.Partition},
		questions: make(chan question),
		problems:  problems{log: log, explain: cfg.Explain, why: make(map[string]problem)},
		carried:   carried{rows: make(map[uint64]*Row)},
		status:    Status{Partition: cfg.Partition, Role: Starting},
	}
	subject := streams.ResultSubject(cfg.ResultSubject, cfg.Name, cfg.Partition)
	c.messages = &messages{connection: c.connection, cfg: &c.cfg, order: c.order, subject: subject}
	c.resumer, _ = cfg.Executor.(Resumer)
	c.results = &resultLog{
		connection: c.connection, cfg: &c.cfg, order: c.order, filter: filter, resultSubject: subject,
		claimSubject: streams.ClaimSubject(cfg.ResultSubject, cfg.Name, cfg.Partition),
	}
	return c, nil
}

// validate returns everything that is wrong with the configuration, or nil.
func (cfg *Config) validate() error {
	var found []error
	for _, required := range []struct{ name, value string }{
		{"Name", cfg.Name},
		{"InputStream", cfg.InputStream},
		{"InputSubject", cfg.InputSubject},
		{"ResultStream", cfg.ResultStream},
		{"ResultSubject", cfg.ResultSubject},
	} {
		if required.value == "" {
			found = append(found, fmt.Errorf("consumer: %s is empty", required.name))
		}
	}
	if cfg.Executor == nil || cfg.Recorder == nil || cfg.Logger == nil {
		found = append(found, errors.New("consumer: Executor, Recorder and Logger are required"))
	}
	if cfg.Order == streams.OrderKey && cfg.Key == nil {
		found = append(found, errors.New("consumer: Key is required where Order is key"))
	}
	if cfg.Lane != nil && (!cfg.Journal || cfg.LaneRows < 1) {
		found = append(found, errors.New("consumer: Journal and LaneRows are required where there is a Lane"))
	}
	if strings.Contains(cfg.InputSubject, streams.PartitionToken) {
		found = append(found, fmt.Errorf("consumer: InputSubject %q must name one partition", cfg.InputSubject))
	}
	return errors.Join(found...)
}

// setDefaults fills in what may be left out.
func (cfg *Config) setDefaults() {
	cfg.DurableConfig = cfg.WithDefaults()
	cfg.WindowBytes = cmp.Or(cfg.WindowBytes, 256<<20)
	if cfg.Order != streams.OrderKey {
		cfg.OrderKey = ""
	}
	if cfg.Explain == nil {
		cfg.Explain = error.Error
	}
}

// Status returns a snapshot. Safe for concurrent use.
func (c *Consumer) Status() Status {
	c.mu.Lock()
	s := c.status
	c.mu.Unlock()
	s.Paused, s.Holds = c.steer.paused.Load(), s.holds(&c.problems)
	var audit string
	if why := c.cfg.Recorder.Problem(); why != "" {
		audit = "audit: " + why
	}
	found := []string{c.storable.problem(), c.problems.String(), audit}
	s.Problem = strings.Join(slices.DeleteFunc(found, func(why string) bool { return why == "" }), "; ")
	return s
}

// Unkept returns how many replies a crash would pay for again now. It is 0 unless each
// reply must be kept at once ([Config.Journal] with JournalAfter zero). An executor that
// counts them against its slots pays again for no more calls than it has slots: of 16
// slots with 3 replies unkept, 13 are free. [Resumer] wakes it when there are fewer. Safe
// for concurrent use.
func (c *Consumer) Unkept() int {
	if !c.cfg.Journal || c.cfg.JournalAfter > 0 {
		return 0
	}
	return c.mail.lossy()
}

// Use has the consumer work over another connection, once the present one is closed for
// good: the term that it served ends with it, and the next one begins over nc. The rows
// stay, with the replies that are there. Safe for concurrent use.
func (c *Consumer) Use(nc *nats.Conn) { c.next.Store(nc) }

// SetFull says why nothing can be stored, so that the rows of the partition wait as after
// [Consumer.Pause]. A nil reason lets them continue. It returns at once, and is safe for
// concurrent use.
func (c *Consumer) SetFull(why error) {
	if why == nil {
		c.storable.full.Store(nil)
	} else {
		c.storable.full.Store(&why)
	}
	c.mail.wake()
}

func (c *Consumer) setStatus(change func(*Status)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.status)
}

// Run serves the partition, term after term. When soft ends it takes no more rows, waits
// until the executor has answered or handed back every row, emits what is contiguous,
// acks, and hands the partition over. When hard ends it leaves everything where it is. It
// returns nil after either, and an error only where trying again can't help: an input
// stream re-created ([ErrInputRecreated]), a claim of a newer format, a connection that
// was closed for ever where nobody brings another ([Config.Moves]). What a person can fix
// from outside (a lost resume point, [ErrResumePointLost], or a stream or durable that
// can't serve) is an error only at the start, before all was well once; later it is
// waited for, and [Status.Problem] reports it.
func (c *Consumer) Run(soft, hard context.Context) error {
	defer c.setStatus(func(s *Status) {
		s.standBy()
		s.Role = Stopped
	})
	defer c.carried.abandonAll()
	backoff := storeRetryFirst
	for soft.Err() == nil {
		began := time.Now()
		err := c.serve(soft, hard)
		c.cfg.Spread.Own(c.cfg.Partition, c.servedAfter(err))
		switch {
		case err == nil || hard.Err() != nil:
			return nil
		case isFatal(err, c.started):
			return err
		case errors.Is(err, errReleased):
			continue
		case errors.Is(err, ErrFenced):
			c.log.Info("standing by", slog.Any("reason", err))
			if c.fencedPin != "" {
				backoff = storeRetryFirst // the pin, if it is still ours, would run out meanwhile
			}
		default:
			c.problems.set(problemOwnership, err)
		}
		if time.Since(began) > storeRetryMost {
			backoff = storeRetryFirst
		}
		select {
		case <-soft.Done():
		case <-hard.Done():
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, storeRetryMost)
	}
	return nil
}

// Check reports what a person must fix before this process can serve the partition, and
// nothing else: [Consumer.Run] tries again where that may help. A process that serves
// several partitions checks all of them before it runs any: of two orders, one that was
// begun in one partition and refused in another would leave none in which both can go on.
func (c *Consumer) Check(ctx context.Context) error {
	if !c.nc.IsConnected() {
		return nil
	}
	durable, err := c.openDurable(ctx)
	if err == nil {
		err = c.checkStart(ctx, durable)
	}
	if err != nil && isFatal(err, false) {
		return err
	}
	return nil
}

// serve runs one term of ownership.
func (c *Consumer) serve(soft, hard context.Context) error {
	c.setStatus((*Status).standBy)
	if err := c.await(soft, c.cfg.Moves, &c.problems); err != nil || soft.Err() != nil {
		return err
	}
	lost := c.nc.StatusChanged(nats.DISCONNECTED, nats.RECONNECTING, nats.CLOSED)
	defer c.nc.RemoveStatusListener(lost)
	if !c.nc.IsConnected() {
		return errConnectionLost // since it was looked at, so nothing would report it
	}

	if err := c.cfg.Streams.Look(hard); err != nil {
		return err
	}
	durable, err := c.openDurable(hard)
	if err != nil {
		return err
	}
	if err := c.checkStart(hard, durable); err != nil {
		return err
	}
	pin, err := (&standby{c: c, durable: durable, lost: lost}).wait(soft)
	if soft.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	c.setStatus(func(s *Status) { s.Taking = true })
	t, err := c.begin(hard, soft, lost, durable, pin)
	if err != nil {
		if errors.Is(err, ErrFenced) {
			c.fencedPin = pin
		}
		if soft.Err() != nil {
			return nil
		}
		return err
	}
	c.cfg.Spread.Own(c.cfg.Partition, spread.Served)
	c.problems.clear(problemOwnership)
	return c.runTerm(soft, hard, lost, t)
}

// runTerm runs a term that has begun until it ends, and reports how it ended.
func (c *Consumer) runTerm(soft, hard context.Context, lost <-chan nats.Status, t *term) error {
	err := t.run(soft, hard, lost)
	if errors.Is(err, errReleased) {
		t.dropHandedBack()
	}
	if errors.Is(err, ErrFenced) {
		c.fencedPin = t.in.pull.pin
	}
	t.carryOver()
	t.close() // the emitter reports problems until it has ended
	c.setRefused(false)
	c.problems.forget(problemResults, problemDeadLetter, problemUndelivered, problemUnread, problemPut, problemGet)
	how := "error"
	switch {
	case err == nil:
		how = "stopped"
	case errors.Is(err, errReleased):
		how = "released"
	case errors.Is(err, ErrFenced):
		how = "fenced"
		c.recordRun("fenced", t.owner, err.Error())
	}
	if c.cfg.Observer != nil {
		c.cfg.Observer.TermEnded(c.cfg.Partition, how)
	}
	c.log.Info("term ended", slog.String("owner", t.owner), slog.String("how", how),
		slog.Uint64("high_water_mark", t.own.end.low))
	return err
}

// servedAfter is how a process serves a partition after a term, or an attempt at one, that
// ended with err. One that lost the connection is the first to continue when it is back:
// the replies that it waits for arrive in its memory.
func (c *Consumer) servedAfter(err error) spread.Service {
	if err != nil && !errors.Is(err, ErrFenced) && !c.nc.IsConnected() {
		return spread.ServedUntilLost
	}
	return spread.NotServed
}

// openDurable finds or creates the durable consumer and remembers the largest message
// that the results stream takes.
func (c *Consumer) openDurable(ctx context.Context) (*streams.Durable, error) {
	durable, err := streams.OpenDurable(ctx, c.nc, c.cfg.DurableConfig)
	if err != nil {
		return nil, err
	}
	c.messages.maxMessage.Store(int32(durable.MessageBytesMax))
	return durable, nil
}

// standBy clears what belongs to a term: without one there is no window and no head.
func (s *Status) standBy() {
	*s = Status{
		Partition: s.Partition, Role: Standby, HighWaterMark: s.HighWaterMark,
		Emitted: s.Emitted, Failed: s.Failed, Skipped: s.Skipped, JournalProblem: s.JournalProblem,
	}
}

func (c *Consumer) recordRun(phase, owner, reason string) {
	c.cfg.Recorder.RecordRun(&auditlog.Run{
		Header: c.eventHeader(time.Now()), Phase: auditlog.Phase(phase), Owner: owner, Reason: reason,
	})
}

func (c *Consumer) eventHeader(now time.Time) auditlog.Header {
	return auditlog.Header{
		Time: now, RunID: c.cfg.RunID, Stage: c.cfg.Name, Partition: auditlog.Partition(c.cfg.Partition),
	}
}

// rowEvent is the event of an answered row, but for its indexes.
func (c *Consumer) rowEvent(row *Row, owner string, now time.Time) auditlog.Row {
	e := row.reply.Event
	e.Header = c.eventHeader(now)
	e.StateID, e.Owner, e.Sequence, e.Status = row.StateID, owner, row.Seq, statusOf(row.reply)
	e.EarlierCalls, e.HeadersLeftOut = row.earlierCalls(owner), row.form.bare
	e.Key = nil // a kept reply may have a key of another order
	if c.order.byKey() {
		e.Key = &row.Key
	}
	return e
}

// at calls the hook at a step of the protocol.
func (c *Consumer) at(step string) {
	if c.cfg.hook != nil {
		c.cfg.hook(step)
	}
}

// newOwner returns a unique name for a term, which shows where it ran.
func (c *Consumer) newOwner() string { return c.cfg.RunID + "." + rand.Text()[:8] }
