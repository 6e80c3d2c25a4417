// Package answers compares prompts, models and settings by their answers to the same rows
// of a file.
//
// Each way to answer the rows is a column. A column is a stage of its own, as a job has
// one: executor, pool, throttle, retries and schema are those of the job that may follow.
// The stages share a server in a temporary directory, the cost ceiling, the slots of the
// pool and the store of replies, where the job finds what was paid for here.
//
//	report, err := answers.Run(soft, hard,
//		answers.Config{Rows: rows, Columns: columns, Replies: conn, Logger: log})
//	report.WriteTable(os.Stdout, 0)
//
// report.go reads the answers, equal.go compares them, and table.go and page.go print them.
package answers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/files/load"
	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/media"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Bounds of a comparison. Together they bound the calls: each answer is one call, and its
// retries.
const (
	// RowsMax is the most rows that are compared.
	RowsMax = 200
	// ColumnsMax is the most columns.
	ColumnsMax = 8
	// rowBytesMax bounds the rows, which are all in memory.
	rowBytesMax = 64 << 20
)

const (
	// resultPoll is how long a reader waits for a result before it looks whether the stage
	// has ended.
	resultPoll = 250 * time.Millisecond
	// readTimeout bounds reading the results after a stop.
	readTimeout = 5 * time.Second
	// loadID is the name of the load, and begins the name of each stage.
	loadID = "try"
)

// errAnswered ends a stage once all rows are answered. To the stage that is a stop without
// a reason.
var errAnswered = fmt.Errorf("all rows are answered: %w", context.Canceled)

// Column is one way to answer the rows.
type Column struct {
	Name     string            // shown above its answers
	Settings map[string]string // how it differs from the other columns, by variable
	Config   *config.Config    // valid for calls; not changed
}

// Config says what is compared.
type Config struct {
	Input   string // name of the file, for the report
	Rows    []rowfile.Row
	Seed    *uint64      // of the sample, or nil if the rows are the first of the file
	Files   *media.Files // that rows may name as pictures, documents and sounds, or nil
	Columns []Column
	Expect  *Expected // nil if no answer is known beforehand
	// Replies is where replies are kept, for the job that follows. The caller closes it. If
	// it is nil, they are lost when Run returns.
	Replies *natsconn.Conn
	Mock    call.MockLLM // see [call.Open]
	Console io.Writer    // where OTEL_TRACES_EXPORTER=console prints, or nil for standard error
	Logger  *slog.Logger
	// Answered is called with how many answers there are so far, from several goroutines.
	// It may be nil.
	Answered func(n int64)
}

// Check reports what can't be compared.
func (c *Config) Check() error {
	bytes := 0
	for _, row := range c.Rows {
		bytes += len(row.Body)
	}
	switch {
	case len(c.Rows) == 0:
		return fmt.Errorf("%s has no rows", rowfile.InputName(c.Input))
	case len(c.Rows) > RowsMax:
		return fmt.Errorf("%d rows: --call answers at most %d; stage process answers all of them", len(c.Rows), RowsMax)
	case bytes > rowBytesMax:
		return fmt.Errorf("the %d rows have %d bytes, and --call takes at most %d: give a smaller -n", len(c.Rows), bytes, rowBytesMax)
	case len(c.Columns) > ColumnsMax:
		return fmt.Errorf("%d columns: --call compares at most %d; each template goes with each model and each --column", len(c.Columns), ColumnsMax)
	}
	for i, column := range c.Columns {
		switch cfg := column.Config; {
		case cfg.Embeds():
			return fmt.Errorf("%s: STAGE_TASK=embed: --call compares answers that people can read, and a vector is none: set it to chat", column.Name)
		case cfg.FansOut():
			return fmt.Errorf("%s: STAGE_FOREACH: --call compares one answer a row, and such a row has one for each element: unset it, and ask about one element in the template", column.Name)
		}
		same := func(other Column) bool { return sameSettings(column.Config, other.Config) }
		if slices.ContainsFunc(c.Columns[:i], same) {
			return fmt.Errorf("%s: another column has the same settings: equal requests share one answer, so the two would not differ", column.Name)
		}
	}
	return c.Expect.check(c.Rows)
}

// sameSettings reports whether two columns would send the same requests.
func sameSettings(a, b *config.Config) bool { return maps.Equal(a.Settings(), b.Settings()) }

// Run answers the rows in each column, and reports what came back. When soft ends, calls in
// flight end and no further one begins; when hard ends, they are cut off. It blocks until
// all that it started has ended.
//
// The report is nil if no call could be made. Otherwise it has all answers that there are,
// also where the error says that some are missing: the cause of soft, a [*stage.FatalError]
// of a column, or a [*MissingError].
func Run(soft, hard context.Context, c Config) (*Report, error) {
	if err := c.Check(); err != nil {
		return nil, config.Invalid(err)
	}
	dir, err := os.MkdirTemp("", "llm-stage-try-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	r := &run{Config: &c}
	defer r.close()
	if err := r.open(soft, dir); err != nil {
		if soft.Err() != nil {
			err = context.Cause(soft)
		}
		return nil, err
	}
	r.answer(soft, hard)
	return r.report(soft, hard)
}

// run is one comparison.
type run struct {
	*Config
	conn     *natsconn.Conn // of the temporary server
	side     *stage.SideBySide
	sides    []*column
	answered atomic.Int64
	closers  []func()
}

// column is a column while its stage runs.
type column struct {
	*Column
	cfg    *config.Config // of its stage
	prompt *executor.Prompt
	stage  *stage.Stage
	ended  error // what ended the stage, or nil if all rows are answered or it was stopped

	mu    sync.Mutex
	calls map[uint64][]call.Outcome // by row
}

// open starts the temporary server and makes a stage for each column.
func (r *run) open(ctx context.Context, dir string) error {
	first := r.Columns[0].Config
	defaults, err := config.Source{}.Load(ctx, config.NeedNothing)
	if err != nil {
		return err
	}
	if r.conn, err = natsconn.StartServer(ctx, tuned(first, defaults, 0, 1), dir, load.RowBytesMax, r.Logger); err != nil {
		return err
	}
	r.closers = append(r.closers, r.conn.Close, stopping.Background(ctx, func(ctx context.Context) { r.conn.Keep(ctx, r.Logger) }))
	replies := cmp.Or(r.Replies, r.conn)
	if err := executor.CreateStore(ctx, replies.NC(), stores(first), r.Logger); err != nil {
		return replies.Explain(err)
	}
	if r.side, err = stage.NewSideBySide(first, replies); err != nil {
		return err
	}
	for i := range r.Columns {
		if err := r.addColumn(ctx, i, defaults); err != nil {
			return err
		}
	}
	l, loaded, err := load.New(ctx, r.conn.NC(), r.sides[0].cfg, loadID, "")
	if err != nil {
		return err
	}
	left := r.Rows
	return l.Run(ctx, loaded, func() (*nats.Msg, error) {
		if len(left) == 0 {
			return nil, io.EOF
		}
		m := load.Message(left[0], load.RowBytesMax-load.MessageOverhead)
		left = left[1:]
		return m, nil
	}, func(int64) {})
}

// addColumn makes the stage of a column, and its streams.
func (r *run) addColumn(ctx context.Context, i int, defaults *config.Config) error {
	side := &column{Column: &r.Columns[i], cfg: tuned(r.Columns[i].Config, defaults, i, len(r.Columns)), calls: make(map[uint64][]call.Outcome)}
	var err error
	if side.prompt, err = executor.LoadPrompt(side.cfg); err != nil {
		return config.Invalid(fmt.Errorf("%s: %w", side.Name, err))
	}
	side.prompt.Media.Files = r.Files
	targets, err := call.Open(side.cfg, nil, r.Mock) //nolint:contextcheck // what an identity reads at start bounds itself
	if err != nil {
		return fmt.Errorf("%s: %w", side.Name, err)
	}
	r.closers = append(r.closers, targets.Close)
	side.stage, err = stage.New(side.cfg, r.conn, targets, r.Logger, stage.Options{
		ExitOnFatal: true, Console: r.Console, Files: r.Files, Side: r.side, Called: side.called,
	})
	if err == nil {
		err = side.stage.Prepare(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", side.Name, err)
	}
	r.sides = append(r.sides, side)
	return nil
}

// close closes what open has opened, the last first. The stages have ended.
func (r *run) close() {
	for _, closePart := range slices.Backward(r.closers) {
		closePart()
	}
}

// stores returns the settings, with the store of replies switched on.
func stores(cfg *config.Config) *config.Config {
	own := *cfg
	own.Rows.Dedupe = "stored"
	return &own
}

// tuned returns the settings of the stage of column i of n. Those of streams are the
// defaults, since the temporary server has no other streams. Limits per minute are divided
// among the columns: with 600 calls a minute, each of two columns makes 300. So together
// they stay within what a job would send.
func tuned(cfg, defaults *config.Config, i, n int) *config.Config {
	own := stores(cfg)
	own.Name = fmt.Sprintf("%s-%d", loadID, i+1)
	own.NATS, own.Input, own.Result, own.Audit, own.Streams = defaults.NATS, defaults.Input, defaults.Result, defaults.Audit, defaults.Streams
	own.Budget, own.Window, own.Control = defaults.Budget, defaults.Window, defaults.Control
	own.Audit.Payloads = "none"  // nobody reads them
	own.Data.Sync.Always = false // nothing has to outlive the process
	own.Data.Sync.Interval = time.Minute
	own.Journal.Enabled = false
	own.Order = defaults.Order
	own.Order.Mode = streams.OrderNone // an answer waits for no other
	own.CallLive()
	share := func(limit int) int {
		if limit == 0 {
			return 0
		}
		return max(1, limit/n)
	}
	own.LLM.RPM, own.LLM.TPM = share(cfg.LLM.RPM), share(cfg.LLM.TPM)
	return own
}

// called notes a call. Several goroutines call it.
func (c *column) called(o call.Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o.Exchange = nil // its bodies would take memory until the report
	c.calls[o.Event.Sequence] = append(c.calls[o.Event.Sequence], o)
}

// answer runs the stages until each has answered all rows, or can't.
func (r *run) answer(soft, hard context.Context) {
	var running sync.WaitGroup
	for _, side := range r.sides {
		running.Go(func() {
			work, finish := context.WithCancelCause(soft)
			awaited := make(chan error, 1)
			go func() {
				err := r.await(work, side)
				if work.Err() != nil { // it was stopped
					err = nil
				}
				finish(cmp.Or(err, errAnswered))
				awaited <- err
			}()
			err := side.stage.Run(work, hard)
			finish(err)
			side.ended = cmp.Or(err, <-awaited)
		})
	}
	running.Wait()
}

// await waits until the column has a result of each row.
func (r *run) await(ctx context.Context, side *column) error {
	seen := make(map[uint64]bool)
	return r.eachResult(ctx, side, true, func(result stored.Result) bool {
		if !seen[result.Seq] && r.Answered != nil {
			r.Answered(r.answered.Add(1))
		}
		seen[result.Seq] = true
		return len(seen) < len(r.Rows)
	})
}

// eachResult calls f with each result of a column until it returns false. With follow it
// waits for further ones.
func (r *run) eachResult(ctx context.Context, side *column, follow bool, f func(stored.Result) bool) error {
	js, err := streams.JetStream(r.conn.NC())
	if err != nil {
		return err
	}
	return eachResult(ctx, js, side.cfg, follow, f)
}

func eachResult(ctx context.Context, js jetstream.JetStream, cfg *config.Config, follow bool, f func(stored.Result) bool) error {
	results, err := stored.OpenResults(ctx, js, cfg, 0, follow)
	if err != nil {
		return err
	}
	defer results.Close()
	for {
		result, err := stored.NextResult(ctx, results, resultPoll)
		switch {
		case errors.Is(err, stored.ErrNoMore) && follow && ctx.Err() == nil:
		case errors.Is(err, stored.ErrNoMore):
			return nil
		case err != nil:
			return err
		case !f(result):
			return nil
		}
	}
}
