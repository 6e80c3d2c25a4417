// Package lane has rows answered by a provider's Batch API: half the price, an answer
// within a day.
//
// Rows gather into a batch. Before the batch is submitted an intent is recorded: a token,
// the rows, the hashes of their requests. The token travels with the batch, so the next
// owner of the partition finds the batch at the provider and adopts it. A batch that the
// provider does not list for long enough is given up, and its rows go into another. Where
// it may exist all the same, it is cancelled should it turn up. Answers are matched by
// custom id, go through the executor like answers of live calls, and wait for their turn
// in the journal.
//
// The files follow the way of a batch. A [Lane] opens a term with a keeper (keeper.go),
// which owns a desk (desk.go) with all that the term knows:
//
//	takeover.go   the records of earlier terms become batches again
//	gather.go     rows join a batch
//	submit.go     the batch is sealed, its intent recorded, its lines uploaded, the batch created
//	find.go       a creation without an answer is looked for at the provider
//	watch.go      the provider works on the batch
//	refuse.go     the provider refuses the batch as a whole
//	collect.go    the results are read; trial.go judges lines that all fail, and unsettled.go
//	              decides about rows without an answer
//	sweep.go      files are deleted and records purged
//	finish.go     the end of a term
//
// The parts of the desk, and what all of them use:
//
//	batch.go      a batch with its rows; batchlist.go has those of the term, and index.go finds
//	              rows in them
//	places.go     where each row is, which moves a row from one place to another: intake.go has
//	              the rows that are in no batch yet, live.go those that are called live, and
//	              answers.go those whose answers the executor has
//	book.go       appends records, in the format of record.go; recorded.go reads them for others
//	lost.go       batches that were given up and may exist
//	standing.go   the account: why nothing is sent, and (capacity.go) what room there is
//	meaning.go    what the failure of a request means
//	loop.go       requests run beside the keeper; times.go says how long
//	mailbox.go    what others report to the keeper
//	events.go     audit events; status.go is what the status shows
//	lines.go      the lines of a batch; rowset.go has sets of rows
//
// A lane is made once and serves one term after the other:
//
//	l, err := lane.New(cfg)
//	err = l.Open(ctx, term) // claims the records, and takes over the batches
//	l.Add(request)          // a row joins; the lane recalls it with its answer
//	l.Kept(seq)             // its result is decided
//	l.Close()
package lane

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
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
	// Forgets says that the provider lives in this process: a batch that it does not know
	// is gone for good.
	Forgets bool
	// Account returns a fingerprint of the provider's address and key, which ReloadKey
	// may change.
	Account func() string
	// ProbeInterval is how long the lane pauses after an error of the account until it
	// tries again.
	ProbeInterval time.Duration
	// ReloadKey reads the key again. It is nil if the key does not change.
	ReloadKey func() error
	// Record stores an audit event, whose header is complete but for RunID and Stage, and
	// calls stored once, when it is stored. Again says that an earlier term has recorded
	// it, unless that term was killed too soon. Record may be nil if nobody wants events.
	Record func(e *auditlog.Batch, again bool, stored func())
	// Reserve reserves the estimated cost of a batch before it is submitted, in USD. The
	// estimate is 0 if it is not known. An error keeps the batch back until the next
	// probe. ReserveAgain does the same for a batch of an earlier term, and cannot
	// refuse. Settle replaces either by the amount that was billed for all answers, or by
	// 0 if nothing was, or nobody knows. All may be nil.
	Reserve      func(token string, usd float64) error
	ReserveAgain func(token string, usd float64)
	Settle       func(token string, usd float64)
	// Exhausted returns why no money may be spent at the moment, or nil if it may. The
	// func may be nil, too.
	Exhausted func() error
	// Halted returns who has asked that no batch is submitted, or nil. It is called again
	// each second. The func may be nil.
	Halted func() error
	// Paused is called when the lane pauses because of the account or the cost, and
	// nothing that is under way can change that. It must not block, and may be nil.
	Paused func(why error)
	// Read returns the usage and cost of a line, or nil if they are not known, and why
	// the line is no reply, or nil if it is one. It is called for each line, so that
	// lines that no row takes are counted, too. It must be safe for concurrent use, and
	// may be nil.
	Read func(model string, line *batchapi.Line) (*auditlog.Usage, *llm.Error)
	// Unused records a reply that no row takes, since its row went live before, and calls
	// stored once, when the event is stored. It may block while the audit does. It must
	// be safe for concurrent use, and may be nil.
	Unused func(u *Unused, stored func())
	// Collect opens no batch. The lane collects the batches of earlier terms, and rows
	// that need more are called live.
	Collect bool
	// FailFatal has rows fail, by live calls, where the provider refuses each line of
	// their batch. Otherwise the lane pauses.
	FailFatal bool
	// CancelOnStop reports whether a stop cancels the batches that the provider works on.
	// If it is nil, no stop does.
	CancelOnStop func() bool
	// Logger is where the lane logs. If it is nil, [slog.Default] is used.
	Logger *slog.Logger
	// Step is called at each step of the protocol, by the goroutine that takes it. Tests
	// end or suspend the process there. It may be nil.
	Step func(step string)

	present *atomic.Pointer[nats.Conn] // NC, or the connection that has taken its place
}

// Lane is the batch lane of one partition. It implements [consumer.Lane].
type Lane struct {
	cfg Config
	log *slog.Logger

	// mail passes what others report to the keeper.
	mail mailbox
	// inBatch finds rows of batches that are recorded.
	inBatch atomic.Pointer[index]
	// taken is the highest sequence that the consumer has taken in this term.
	taken  atomic.Uint64
	status atomic.Pointer[Status]

	close   func() // ends the term, and is nil while there is none
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

// Open implements [consumer.Lane]. It claims the records before it reads them. In the other
// order an earlier owner could add a batch in between, which this term would never see:
//
//	this term   reads the records
//	the other                        records the intent of batch b
//	this term                                                       claims
func (l *Lane) Open(ctx context.Context, of consumer.LaneTerm) error {
	l.mail.take(nil)
	l.inBatch.Store(nil)
	l.taken.Store(of.Low)
	k := newKeeper(l, of)
	claim := &Record{Kind: RecordClaim, Time: time.Now(), InputCreated: of.InputCreated}
	if err := k.book.claim(ctx, claim); err != nil {
		return err
	}
	records, err := k.book.read(ctx)
	if err != nil {
		return err
	}
	k.recover(records, time.Now())
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.abort = cancel
	l.close = func() {
		close(k.closing)
		l.running.Wait()
	}
	l.running.Go(func() {
		defer cancel()
		k.run(running)
	})
	return nil
}

// Add takes a row into the lane. The caller parks the row right after. Safe for
// concurrent use; it does not block.
func (l *Lane) Add(r Request) { l.mail.put(letter{kind: letterAdd, seq: r.Seq, body: &r}) }

// Again reports that the answer of an errand did not settle the row: its failure may
// pass, or it answers another request. The caller parks the row; the lane recalls it
// later. Safe for concurrent use; it does not block.
func (l *Lane) Again(seq uint64, e *Errand) {
	l.mail.put(letter{kind: letterAgain, seq: seq, body: e})
}

// Kept implements [consumer.Lane].
func (l *Lane) Kept(seq uint64) {
	l.taken.Store(max(l.taken.Load(), seq))
	l.mail.put(letter{kind: letterKept, seq: seq})
}

// Holds implements [consumer.Lane]. What it finds does not change, so it needs no lock;
// should the row's batch be given up meanwhile, the goroutine of the term finds that out
// by the letter and recalls the row.
func (l *Lane) Holds(row *consumer.Row) bool {
	l.taken.Store(max(l.taken.Load(), row.Seq))
	if !l.inBatch.Load().has(row.Seq) {
		return false
	}
	l.mail.put(letter{kind: letterHeld, seq: row.Seq})
	return true
}

// Stop implements [consumer.Lane].
func (l *Lane) Stop() { l.mail.put(letter{kind: letterStop}) }

// Close implements [consumer.Lane].
func (l *Lane) Close() {
	if l.close != nil {
		l.close()
		l.close = nil
	}
	l.inBatch.Store(nil)
	l.status.Store(nil)
}

// Use has the lane work over another connection, since the present one is closed for
// good. Safe for concurrent use.
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

// Status returns what there is to see of the lane. Safe for concurrent use; it does not
// block.
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
	Cost     float64   // estimate in USD at the batch's price, 0 if it is not known
	Deadline time.Time // when the row goes live, zero if never
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

// Errand says how a recalled row goes on ([consumer.Row.Errand]). A row without one joins
// the lane, or is answered by a reply that is kept.
type Errand struct {
	// Live has the row called live.
	Live bool
	// Line is the row's answer, and Key the beginning of the hash of the request that it
	// answers, see [Errand.Answers]. It is nil with Live.
	Line *batchapi.Line
	Key  string
	// BatchID is the provider's id of the batch, Token ours.
	BatchID, Token string
	// Tries counts the batches that the row was in before without an answer that counts.
	Tries int
}

// Answers reports whether the errand's line answers the request of this key. Only the
// beginning of a key is recorded with a batch.
func (e *Errand) Answers(key string) bool { return shortKey(e.Key) == shortKey(key) }

// shortKey is the beginning of a request's key: 8 bytes of its hash.
func shortKey(key string) uint64 {
	var b [8]byte
	if len(key) >= 16 {
		if _, err := hex.Decode(b[:], []byte(key[:16])); err == nil {
			return binary.BigEndian.Uint64(b[:])
		}
	}
	sum := sha256.Sum256([]byte(key))
	return binary.BigEndian.Uint64(sum[:8])
}

func keyText(short uint64) string {
	return hex.EncodeToString(binary.BigEndian.AppendUint64(nil, short))
}
