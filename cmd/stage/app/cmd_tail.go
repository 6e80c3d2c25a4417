package app

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

// tailOptions are the flags of tail.
type tailOptions struct {
	kinds  []auditlog.Kind
	row    uint64
	failed bool
	since  time.Time
	json   bool
}

func newTailCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "tail",
		Short:   "follow the audit: one line for each call, row and turn of the run",
		GroupID: groupStreams,
		Args:    cobra.NoArgs,
		Long: "tail prints audit events as they are stored, until interrupted. With --row it tells the whole story of one row and\n" +
			"ends: queued, each call, which row it waited for, finished.",
		Example: "  stage tail --nats-url nats://localhost:4222\n" +
			"  stage tail --kind call --failed --since 1h\n" +
			"  stage tail --row 4711 --data-dir stage-data/reviews.jsonl-1a2b3c4d",
	}
	kinds := cmd.Flags().StringSlice("kind", nil, "events of these kinds: call, row, run; default: all")
	row := cmd.Flags().Uint64("row", 0, "the story of the row with this sequence in the input stream")
	failed := cmd.Flags().Bool("failed", false, "only what did not succeed")
	since := cmd.Flags().String("since", "", "begin at a time (2006-01-02T15:04:05Z) or so long ago (1h); default: now")
	asJSON := cmd.Flags().Bool("json", false, "print the events as they are stored, one a line")
	flags := newConfigFlags(cmd, env, configFlagsOptions{Groups: []string{"Stage", "NATS", "Embedded server", "Streams and subjects"}})
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := flags.Load(cmd.Context(), NeedNothing)
		if err != nil {
			return err
		}
		o := tailOptions{row: *row, failed: *failed, json: *asJSON}
		if o.kinds, err = auditKinds(*kinds); err != nil {
			return exitWith(exitUsage, err)
		}
		if o.since, err = sinceTime(*since, time.Now()); err != nil {
			return exitWith(exitUsage, err)
		}
		soft, _, stop := env.Contexts(cmd.Context())
		defer stop()
		return tail(soft, env, cfg, o)
	}
	return cmd
}

func auditKinds(names []string) (kinds []auditlog.Kind, err error) {
	for _, name := range names {
		kind := auditlog.Kind(name)
		if !slices.Contains([]auditlog.Kind{auditlog.KindCall, auditlog.KindRow, auditlog.KindRun}, kind) {
			return nil, fmt.Errorf("--kind %q: it is call, row or run", name)
		}
		kinds = append(kinds, kind)
	}
	return kinds, nil
}

// sinceTime reads a time or how long ago; zero for "".
func sinceTime(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, fmt.Errorf("--since %q: give a time such as 2006-01-02T15:04:05Z, or how long ago, such as 1h", text)
	}
	return t, nil
}

// tail prints events until ctx ends, which is how it is meant to end, or the story of a row is told.
func tail(ctx context.Context, env *Env, cfg *Config, o tailOptions) error {
	conn, err := connectReader(ctx, cfg, cfg.Data.Dir, false, newLogger(env.Stderr, cfg.Process.LogLevel, cfg.Process.LogFormat))
	if err != nil {
		return err
	}
	defer conn.close()
	js, err := jetstream.New(conn.nc)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(env.Stdout)
	q := auditQuery{Kinds: o.kinds, Since: o.since, NewOnly: o.since.IsZero(), Follow: true}
	story := &rowStory{seq: o.row}
	if o.row != 0 {
		q = auditQuery{Since: o.since}
	}
	err = readAudit(ctx, js, cfg, q, func(raw []byte, e *auditlog.Event) error {
		if e == nil {
			return nil // of a later version
		}
		if o.row != 0 {
			story.note(e)
			if !concerns(e, o.row) {
				return nil
			}
		}
		if o.failed && !didFail(e) {
			return nil
		}
		if o.json {
			if err := writeLine(out, raw); err != nil {
				return err
			}
		} else {
			printEvent(out, e, colourOf(env))
		}
		return out.Flush()
	})
	if o.row != 0 && err == nil && !o.json {
		story.end(out)
	}
	if ctx.Err() != nil {
		err = nil
	}
	return errors.Join(conn.explain(err), out.Flush())
}

// concerns tells whether an event is about the row.
func concerns(e *auditlog.Event, seq uint64) bool {
	return e.Call != nil && e.Call.Sequence == seq || e.Row != nil && e.Row.Sequence == seq
}

func didFail(e *auditlog.Event) bool {
	switch {
	case e.Call != nil:
		return e.Call.Status != auditlog.CallSuccess
	case e.Row != nil:
		return e.Row.Status != auditlog.RowSuccess
	}
	return e.Run.Phase == auditlog.PhasePause || e.Run.Phase == auditlog.PhaseFenced
}

// colourOf says whether to colour what goes to standard output.
func colourOf(env *Env) bool { return isTerminal(env.Stdout) && env.Environ["NO_COLOR"] == "" }

// printEvent prints one event on one line; what did not succeed stands out.
func printEvent(w io.Writer, e *auditlog.Event, colour bool) {
	line := eventLine(e)
	if colour && didFail(e) {
		line = "\x1b[33m" + line + "\x1b[0m"
	}
	say(w, "%s", line)
}

func eventLine(e *auditlog.Event) string {
	at := e.Time.Format("15:04:05.000")
	switch {
	case e.Call != nil:
		return strings.TrimRight(fmt.Sprintf("%s  call  row %-8s call %-3d %-22s %-15s %4s %8s  %s  delay %s  %s", at, rowText(e.Call.Sequence), e.Call.CallIndex,
			e.Call.Provider+" "+e.Call.Model, e.Call.Status, statusText(e.Call.StatusCode), round(e.Call.Latency), tokensText(e.Call.Usage), round(e.Call.DispatchDelay), e.Call.Error), " ")
	case e.Row != nil:
		r := e.Row
		return strings.TrimRight(fmt.Sprintf("%s  row   row %-8d %-8s after %s, %d attempts, %d capacity retries, from %s  %s  %s", at, r.Sequence,
			r.Status, round(r.FinishedAt.Sub(r.QueuedAt)), r.Attempts, r.CapacityRetries, orDash(r.Source), tokensText(r.Usage), r.Reason), " ")
	}
	return strings.TrimRight(fmt.Sprintf("%s  run   %s partition %s %s %s", at, e.Run.Phase, e.Partition, e.Run.Owner, e.Run.Reason), " ")
}

func rowText(seq uint64) string {
	if seq == 0 {
		return "-"
	}
	return fmt.Sprint(seq)
}

func statusText(code int) string {
	if code == 0 {
		return "-"
	}
	return fmt.Sprint(code)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func tokensText(u *auditlog.Usage) string {
	if u == nil {
		return "tokens -"
	}
	return fmt.Sprintf("tokens %d+%d", u.PromptTokens, u.CompletionTokens)
}

func round(d time.Duration) time.Duration {
	if d > time.Second {
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(100 * time.Microsecond)
}

// rowStory finds out which row another one waited for: the earlier one that finished last.
type rowStory struct {
	seq     uint64
	row     *auditlog.Row
	partner *auditlog.Row // the earlier row of the same partition that finished last
}

func (s *rowStory) note(e *auditlog.Event) {
	r := e.Row
	switch {
	case r == nil || r.Sequence > s.seq || s.row != nil && r.Partition != s.row.Partition:
	case r.Sequence == s.seq:
		s.row = r
	case s.partner == nil || r.FinishedAt.After(s.partner.FinishedAt):
		s.partner = r
	}
}

func (s *rowStory) end(w io.Writer) {
	switch {
	case s.row == nil:
		say(w, "row %d has no row event yet: it is not finished, or the audit no longer holds it", s.seq)
	case s.partner != nil && s.partner.FinishedAt.After(s.row.FinishedAt):
		say(w, "row %d waited %s for row %d, then it could be emitted", s.seq, round(s.partner.FinishedAt.Sub(s.row.FinishedAt)), s.partner.Sequence)
	default:
		say(w, "row %d waited for no earlier row", s.seq)
	}
}
