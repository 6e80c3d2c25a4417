package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/llm-stage/stage/internal/batch"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
	"github.com/spf13/cobra"
)

const (
	// askTimeout is how long the commands on deferred batches wait for an answer that
	// needs no call.
	askTimeout = 30 * time.Second
	// getWait is how long one request waits for the end of a batch. A stage allows ten
	// minutes, but the reply of one that is killed meanwhile never comes: with 10 s the
	// next request follows after at most getWait + askTimeout = 40 s.
	getWait = 10 * time.Second
)

// noDeferred is the error where the id of a deferred batch is missing.
const noDeferred = "name a batch by its id: stage batch ls lists them"

// submitBatch leaves the request of a file with a stage, and prints the id of the batch.
// The id is chosen before the request is sent. So a command that got no answer can name
// the batch that may be stored, and a second command with that id submits no second batch.
func submitBatch(
	ctx context.Context, env *Env, cfg *config.Config, file string, keep, timeout time.Duration,
) error {
	var id string
	request, err := readBatchFile(ctx, env, file, func(text []byte) (err error) {
		id, err = batch.CheckSubmission(text)
		return err
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return config.Invalid(err)
	}

	members := make(map[string]json.RawMessage)
	if err := json.Unmarshal(request, &members); err != nil {
		return err
	}

	set := func(name, value string) {
		members[name], _ = json.Marshal(value) // a text can't fail
	}
	set("id", id)
	if keep != 0 {
		set("keep", keep.String())
	}

	conn, err := connectRunning(ctx, cfg, logging.NewConfigured(cfg, env.Stderr))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:contextcheck // ctx may be over by then, and Close has a bound of its own

	// Only an error without an answer leaves it open whether the batch is stored.
	var reply batch.SubmitReply
	if err := askBatches(ctx, conn, cfg, batch.RequestSubmit, members, timeout,
		&reply); err != nil {
		if _, answered := errors.AsType[*refusedError](err); !answered && !config.IsInvalid(err) {
			err = fmt.Errorf("%w; the batch may be stored: stage batch get %s says so, "+
				"and the same request with \"id\": %q is no second batch", err, id, id)
		}
		return err
	}
	return printReply(env, reply)
}

// askBatches sends a request about deferred batches, and decodes the answer into reply.
// The error is a [refusedError] if a stage has refused, and an [awayError] if no stage has
// replied: then a caller may try again. Any other error means that the request was not
// sent, or that another program has replied.
func askBatches(
	ctx context.Context, conn *natsconn.Conn, cfg *config.Config, request string, body any,
	timeout time.Duration, reply any,
) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false) // escaped, < takes six bytes, and a request might not fit
	if err := enc.Encode(body); err != nil {
		return err
	}
	if limit := int(conn.NC().MaxPayload()) - batch.Headroom; text.Len() > limit {
		return config.Invalid(fmt.Errorf("the request takes %d bytes, the server's messages at "+
			"most %d: send several batches", text.Len(), limit))
	}

	subject := config.DeferredSubject(cfg.Name, request)
	m, err := batch.Request(ctx, conn.NC(), subject, text.Bytes(), timeout)
	switch {
	case errors.Is(err, batch.ErrSlow):
		return &awayError{fmt.Errorf("stage %s has the request, but sent no reply within %v: "+
			"it may have been killed, so try again", cfg.Name, timeout), true}
	case errors.Is(err, nats.ErrNoResponders):
		return &awayError{batchNotAnswered(ctx, conn.NC(), cfg, subject, timeout, err), false}
	case err != nil:
		return batchNotAnswered(ctx, conn.NC(), cfg, subject, timeout, err)
	}
	if code := m.Header.Get(micro.ErrorCodeHeader); code != "" {
		return &refusedError{code, batchRefusal(code, m)}
	}
	if err := json.Unmarshal(m.Data, reply); err != nil {
		return fmt.Errorf("the reply does not come from a stage: "+
			"does a stream of the server capture %s", subject)
	}
	return nil
}

// refusedError means that a stage has refused a request. code is one of the codes of
// package batch.
type refusedError struct {
	code string
	err  error
}

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

// awayError means that no stage has replied. taken says that a stage had the request
// before: it was probably killed, and another one may answer.
type awayError struct {
	err   error
	taken bool
}

func (e *awayError) Error() string { return e.err.Error() }
func (e *awayError) Unwrap() error { return e.err }

func printReply(env *Env, reply any) error {
	enc := json.NewEncoder(terminal.JSON(env.Stdout))
	enc.SetEscapeHTML(false)
	return enc.Encode(reply)
}

// newBatchGetCommand makes stage batch get. The exit code is 1 if no prompt was answered,
// or the batch is not over after --wait.
func newBatchGetCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get ID",
		Short: "print how far a deferred batch has come, with the answers once it is over",
		Args:  required(noDeferred, cobra.ExactArgs(1)),
	}
	wait := cmd.Flags().Duration("wait", 0, "how long to wait for the end of the batch")
	flags := newConfigFlags(cmd, env, []string{"Stage", "NATS", "Embedded server"}, nil)
	run := func(soft, _ context.Context, cfg *config.Config, args []string) error {
		if *wait < 0 {
			return config.Invalid(errors.New("--wait: must not be negative"))
		}
		conn, err := connectRunning(soft, cfg, logging.NewConfigured(cfg, env.Stderr))
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:contextcheck // as in submitBatch
		reply, err := getBatch(soft, conn, cfg, args[0], *wait)
		if err != nil {
			return err
		}
		if err := printReply(env, reply); err != nil {
			return err
		}
		switch {
		case !reply.State.Over() && *wait > 0:
			return fmt.Errorf("batch %s is %s, %d of %d prompts have their result", reply.ID,
				reply.State, reply.Done, reply.Total)
		case reply.State.Over() && len(reply.Successes()) == 0:
			return fmt.Errorf("no prompt of batch %s was answered", reply.ID)
		}
		return nil
	}
	cmd.RunE = flags.run(config.NeedNothing, run)
	return cmd
}

// getBatch gets a batch. It waits for the end of the batch for at most wait, in requests
// of getWait each. Once a stage has taken a request, others are repeated while no stage
// replies, since that one may be about to be replaced. If none has taken any, the first
// failure ends it. Answers that do not fit into one message are fetched in parts.
func getBatch(
	ctx context.Context, conn *natsconn.Conn, cfg *config.Config, id string, wait time.Duration,
) (*batch.Deferred, error) {
	until := time.Now().Add(wait)
	for met := false; ; {
		left := max(0, min(time.Until(until), getWait)).Round(time.Millisecond)
		var reply batch.Deferred
		err := askBatches(ctx, conn, cfg, batch.RequestGet,
			map[string]any{"id": id, "wait": left.String()}, left+askTimeout, &reply)
		if refused, is := errors.AsType[*refusedError](err); is &&
			refused.code == batch.CodeReplyTooLarge {
			return getParts(ctx, conn, cfg, id)
		}
		away, isAway := errors.AsType[*awayError](err)
		met = met || err == nil || isAway && away.taken
		if isAway && met && time.Now().Before(until) {
			continue
		}
		if err != nil || reply.State.Over() || !time.Now().Before(until) {
			return &reply, err
		}
	}
}

// getParts gets the answers of a batch that is over in several replies. Each names the
// first result of the next part, and the last one names 0.
func getParts(
	ctx context.Context, conn *natsconn.Conn, cfg *config.Config, id string,
) (*batch.Deferred, error) {
	var all *batch.Deferred
	for from := 0; ; {
		var reply batch.Deferred
		if err := askBatches(ctx, conn, cfg, batch.RequestGet,
			map[string]any{"id": id, "from": from}, askTimeout, &reply); err != nil {
			return nil, err
		}
		if reply.BatchReply == nil {
			return nil, errors.New("a part of the answers has no results")
		}
		if all == nil {
			all = &reply
		} else {
			all.Results = append(all.Results, reply.Results...)
		}
		if from = reply.Next; from == 0 {
			all.Next = 0
			return all, nil
		}
	}
}

// newBatchCancelCommand makes stage batch cancel. Where an id is unknown, the batches of
// the others are cancelled all the same.
func newBatchCancelCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cancel ID...",
		Short: "cancel deferred batches: calls in flight end, and answers that are there are kept",
		Args:  required(noDeferred, cobra.ArbitraryArgs),
	}
	flags := newConfigFlags(cmd, env, []string{"Stage", "NATS", "Embedded server"}, nil)
	run := func(soft, _ context.Context, cfg *config.Config, args []string) error {
		conn, err := connectRunning(soft, cfg, logging.NewConfigured(cfg, env.Stderr))
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:contextcheck // as in submitBatch
		var errs []error
		for _, id := range args {
			var reply batch.Deferred
			if err := askBatches(soft, conn, cfg, batch.RequestCancel, map[string]string{"id": id},
				askTimeout, &reply); err != nil {
				errs = append(errs, err)
				continue
			}
			terminal.PrintLine(env.Stdout, "%s: %s, %d of %d prompts have their result", id,
				reply.State, reply.Done, reply.Total)
		}
		return errors.Join(errs...)
	}
	cmd.RunE = flags.run(config.NeedNothing, run)
	return cmd
}

// newBatchListCommand makes stage batch ls. It reads the stream, so it needs no running
// stage.
func newBatchListCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list the deferred batches that are stored, the oldest first",
		Args:    cobra.NoArgs,
	}
	output := addOutputFlag(cmd, "table, or json")
	flags := newStoreFlags(cmd, env)
	flags.allow("STAGE_BATCH_STREAM")
	check := func(*config.Config) error { return checkOutput(*output) }
	run := func(
		ctx context.Context, conn *natsconn.Conn, _ jetstream.JetStream, cfg *config.Config,
	) error {
		list, err := batch.List(ctx, conn.NC(), cfg.Batch.Stream, cfg.Name)
		// Without the stream there is no batch.
		if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return err
		}
		switch {
		case *output == formatJSON:
			return terminal.WriteJSON(env.Stdout, list)
		case len(list) == 0:
			terminal.PrintLine(env.Stderr, "no deferred batches")
			return nil
		}
		return writeDeferred(env.Stdout, list)
	}
	cmd.RunE = flags.runOnStore(check, run)
	return cmd
}

func writeDeferred(w io.Writer, list []batch.Listed) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tSTATE\tDONE\tTOTAL\tAGE\tKEPT FOR\tPROBLEM") //nolint:errcheck // Flush reports it
	for i := range list {
		b := &list[i]
		kept := "-"
		if b.Expires != nil {
			kept = time.Until(*b.Expires).Round(time.Second).String()
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s\t%s\t%s\n", b.ID, b.State, b.Done, b.Total, //nolint:errcheck // as above
			time.Since(b.Submitted).Round(time.Second), kept,
			terminal.OneLine(terminal.OrDash(b.Problem)))
	}
	return table.Flush()
}
