// Package lane has rows answered by a provider's Batch API: half the price, an answer within a day.
//
// Rows gather into a batch. Before it is submitted an intent is recorded: a token, the rows, the hashes of their
// requests. The token travels with the batch, so whoever takes the partition over finds it at the provider and adopts
// it; it is given up only when it is surely absent. Answers are matched by custom id, go through the executor like
// those of live calls, and wait for their turn in the journal.
package lane

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Config is what a lane needs. All of it is required unless stated otherwise.
type Config struct {
	NC *nats.Conn
	// Name of the stage, and the partition served.
	Name      string
	Partition int
	// Settings say when a batch goes, how many, and in which stream they are recorded.
	Settings config.LaneConfig
	// Provider names the one that API speaks to.
	Provider string
	API      batchapi.API
	// Forgets says that the provider lives in this process: a batch that it does not know is gone for good.
	Forgets bool
	// Account returns a fingerprint of the provider's address and key, which ReloadKey may change.
	Account func() string
	// ProbeInterval is how long the lane pauses after an error of the account until it tries again.
	ProbeInterval time.Duration
	// ReloadKey reads the key again; nil: it does not change.
	ReloadKey func() error
	// Record stores an audit event, whose header is complete but for RunID and Stage, and calls stored once, when it is
	// stored. Again says that an earlier term has recorded it, unless it was killed too soon. Nil: nobody wants them.
	Record func(e *auditlog.Batch, again bool, stored func())
	// Reserve reserves what a batch may cost before it is submitted, in USD, 0: unknown. An error holds the batch back until
	// the next probe. Hold is Reserve for a batch of an earlier term, and Settle replaces either by what all answers of the
	// batch were billed, 0: nothing, or it is unknown. Nil: nobody counts.
	Reserve func(token string, usd float64) error
	Hold    func(token string, usd float64)
	Settle  func(token string, usd float64)
	// Exhausted returns why no money may be spent at the moment; nil: it may.
	Exhausted func() error
	// Halted returns who has asked that no batch is submitted; nil: nobody. It is asked again each second.
	Halted func() error
	// Paused is told when the lane pauses because of the account or the cost, and nothing that is under way can change that.
	// It must not block. Nil: nobody is.
	Paused func(why error)
	// Read returns what the answer of a line used and costs (nil: not known), and why it is no reply (nil: it is one). It is
	// called for each line, so that those are counted, too, that no row takes. Safe for concurrent use. Nil: nothing is known
	// of any line.
	Read func(model string, line *batchapi.Line) (*auditlog.Usage, *llm.Error)
	// Unused records a reply that no row takes, since its row went live before, and calls stored once, when the event is
	// stored. It may block while the audit does. Safe for concurrent use. Nil: nobody wants them.
	Unused func(u *Unused, stored func())
	// Collect opens no batch: those of earlier terms are collected, and their rows that need more are called live.
	Collect bool
	// FailFatal has rows fail, by live calls, where the provider refuses each line of their batch. False: the lane pauses.
	FailFatal bool
	// CancelOnStop has a stop cancel the batches that the provider works on. Nil: it does not.
	CancelOnStop func() bool
	// Logger is used for what the lane does; nil: [slog.Default].
	Logger *slog.Logger
	// Step is called at each step of the protocol, by the goroutine that takes it, for tests that end or suspend the
	// process there; nil: nothing is.
	Step func(step string)

	present *atomic.Pointer[nats.Conn] // NC, or the connection that has taken its place
}

// Lane is the batch lane of one partition. It implements [consumer.Lane].
type Lane struct {
	cfg Config
	log *slog.Logger

	// mail passes what others report to the goroutine of the term.
	mail mailbox
	// inBatch finds rows of batches that are recorded.
	inBatch atomic.Pointer[index]
	// taken is the highest sequence that the consumer has taken in this term.
	taken  atomic.Uint64
	status atomic.Pointer[Status]

	close   func() // ends the term; nil: there is none
	abort   func() // ends it at once
	running sync.WaitGroup
}

var _ consumer.Lane = (*Lane)(nil)

// New returns a lane, which does nothing before [Lane.Open].
func New(cfg Config) (*Lane, error) {
	switch {
	case cfg.NC == nil, cfg.API == nil, cfg.Account == nil:
		return nil, errors.New("lane: NC, API and Account are required")
	case cfg.Settings.Rows < 1, cfg.Settings.Open < 1, cfg.Settings.Stream == "", cfg.ProbeInterval <= 0:
		return nil, errors.New("lane: Rows, Open, Stream and ProbeInterval are required")
	}
	cfg.present = new(atomic.Pointer[nats.Conn])
	cfg.present.Store(cfg.NC)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	l := &Lane{cfg: cfg, log: cfg.Logger.With(slog.Int("partition", cfg.Partition))}
	l.mail.signal = make(chan struct{}, 1)
	return l, nil
}

// Use has the lane work over another connection, since the present one is closed for good. Safe for concurrent use.
func (l *Lane) Use(nc *nats.Conn) { l.cfg.present.Store(nc) }

// conn is the present connection.
func (c *Config) conn() *nats.Conn { return c.present.Load() }

// jetStream returns a client over the present connection.
func (c *Config) jetStream() jetstream.JetStream {
	js, err := streams.JetStream(c.conn())
	if err != nil {
		panic(fmt.Sprintf("lane: %v", err)) // options alone could be wrong, and there are none
	}
	return js
}

// Status returns what there is to see of the lane. Safe for concurrent use; it does not block.
func (l *Lane) Status() Status {
	if s := l.status.Load(); s != nil {
		return *s
	}
	return Status{}
}

func (l *Lane) step(name string) {
	if l.cfg.Step != nil {
		l.cfg.Step(name)
	}
}

// Request is a row that joins the lane.
type Request struct {
	Seq      uint64
	Key      string // of the request, see [call.Target.Key]
	Prepared *llm.Prepared
	Tokens   int64     // estimate of what the call may use
	Cost     float64   // estimate in USD at the batch's price; 0: unknown
	Deadline time.Time // when the row goes live; zero: never
}

// Unused is a reply in a batch that no row takes. It was billed all the same.
type Unused struct {
	Seq   uint64 // of its row
	Owner string // the term that has read it
	// BatchID is the provider's id of the batch.
	BatchID string
	Model   string
	Line    batchapi.Line
}

// Errand is what a recalled row is to do ([consumer.Row.Errand]). Nil: join the lane, or be answered by what is kept.
type Errand struct {
	// Live: be called live.
	Live bool
	// Line is the row's answer, and Key the beginning of the hash of the request that it answers, see [Errand.Answers]; nil
	// with Live.
	Line *batchapi.Line
	Key  string
	// BatchID is the provider's id of the batch, Token ours.
	BatchID, Token string
	// Tries counts the batches that the row was in before without an answer that counts.
	Tries int
}

// Answers reports whether the errand's line answers the request of this key. Only the beginning of a key is recorded
// with a batch.
func (e *Errand) Answers(key string) bool { return shortKey(e.Key) == shortKey(key) }
