package batchapi

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm"
)

// messageBatches is Anthropic's Message Batches API.
type messageBatches struct{ caller }

// anthropicSkew is how far a batch's creation may seem to precede our intent: the lists
// show no token, and each further minute may bring somebody else's batches.
const anthropicSkew = time.Minute

// Limits implements [API].
func (*messageBatches) Limits() Limits {
	return Limits{Rows: 100_000, Bytes: 256e6, Inline: true, Window: 24 * time.Hour}
}

// separator ends each line. [messageBatches.Create] leaves out the last one.
const separator = ",\n"

// AppendLine implements [API].
func (*messageBatches) AppendLine(dst []byte, id string, p *llm.Prepared) []byte {
	dst = jsonbytes.AppendString(append(dst, `{"custom_id":`...), id)
	return append(append(append(dst, `,"params":`...), p.Sent()...), "}"+separator...)
}

// Upload implements [API].
func (a *messageBatches) Upload(context.Context, string, Lines) (string, error) {
	return "", a.malformed(0, "without files")
}

// messageBatch is what the provider says of a batch.
type messageBatch struct {
	ID              text  `json:"id"`
	Status          text  `json:"processing_status"`
	CreatedAt       stamp `json:"created_at"`
	CancelInitiated stamp `json:"cancel_initiated_at"`
	ResultsURL      text  `json:"results_url"`
	Counts          struct {
		Processing count `json:"processing"`
		Succeeded  count `json:"succeeded"`
		Errored    count `json:"errored"`
		Canceled   count `json:"canceled"`
		Expired    count `json:"expired"`
	} `json:"request_counts"`
}

// batch returns what b says. Its results URL is not used: their path is known, and an
// address from a reply might lead the key elsewhere.
func (b *messageBatch) batch() Batch {
	n := &b.Counts
	batch := Batch{
		ID: string(b.ID), State: stateOf(b.Status), Created: b.CreatedAt.Time,
		Output: string(b.ResultsURL), Rows: -1, Answered: -1, Failed: -1,
	}
	if n.Processing.ok || n.Succeeded.ok {
		batch.Answered, batch.Failed = n.Succeeded.orZero(), n.Errored.orZero()
		batch.Rows = batch.Answered + batch.Failed + n.Processing.orZero() + n.Canceled.orZero() +
			n.Expired.orZero()
	}
	if batch.State == Ended && n.Expired.orZero() > 0 {
		batch.State = Expired
	} else if batch.State == Ended && n.Canceled.orZero() > 0 {
		batch.State = Cancelled
	}
	return batch
}

func (a *messageBatches) one(reply *llm.RawReply, b *messageBatch, err error) (Batch, error) {
	if err != nil {
		return Batch{}, err
	}
	if b.ID == "" {
		return Batch{}, &uncertainError{a.malformed(reply.Status, "a batch without an id")}
	}
	batch := b.batch()
	batch.RetryAfter = llm.ParseWait(reply.Header, time.Now()).RetryAfter
	return batch, nil
}

const batchesPath = "/messages/batches"

func messageBatchPath(id, action string) string {
	return batchesPath + "/" + url.PathEscape(id) + action
}

// Create implements [API].
func (a *messageBatches) Create(ctx context.Context, job Job) (Batch, error) {
	const head, tail = `{"requests":[`, `]}`
	size := max(0, job.Lines.Size-int64(len(separator)))
	body := io.MultiReader(strings.NewReader(head), io.LimitReader(job.Lines.Open(), size),
		strings.NewReader(tail))
	var b messageBatch
	reply, err := a.call(ctx, &llm.RawRequest{
		Method: http.MethodPost, URL: batchesPath, Body: body, Size: int64(len(head)+len(tail)) +
			size,
	}, &b)
	return a.one(reply, &b, err)
}

// Get implements [API].
func (a *messageBatches) Get(ctx context.Context, id string) (Batch, error) {
	var b messageBatch
	reply, err := a.get(ctx, messageBatchPath(id, ""), &b)
	return a.one(reply, &b, err)
}

// Find implements [API].
func (a *messageBatches) Find(
	ctx context.Context, _ string, since time.Time, rows int,
) ([]Batch, error) {
	var found []Batch
	err := list(ctx, a.caller, func(q string) string { return batchesPath + "?" + q }, "limit=100",
		"after_id",
		func(b *messageBatch) text { return b.ID },
		func(data []messageBatch) bool {
			for i := range data {
				b := data[i].batch()
				if b.ID != "" && !b.Created.Before(since.Add(-anthropicSkew)) &&
					(b.Rows == rows || b.Rows < 0) {
					found = append(found, b)
				}
			}
			return len(data) > 0 && !passed(data[0].CreatedAt.Time,
				data[len(data)-1].CreatedAt.Time, since)
		})
	return found, err
}

// Results implements [API].
func (a *messageBatches) Results(ctx context.Context, b Batch, f func(Line) error) error {
	stream, err := a.stream(ctx, messageBatchPath(b.ID, "/results"))
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	return a.readLines(ctx, stream, messageLine, f)
}

// messageLine reads a line of results.
func messageLine(raw []byte) Line {
	var l struct {
		CustomID text `json:"custom_id"`
		Result   struct {
			Type    text            `json:"type"`
			Message json.RawMessage `json:"message"`
			Error   json.RawMessage `json:"error"`
		} `json:"result"`
	}
	if !parseLine(raw, &l) || l.CustomID == "" {
		return Line{Kind: Garbled}
	}
	line := Line{ID: string(l.CustomID), Kind: Answered}
	switch l.Result.Type {
	case "succeeded":
		line.Status, line.Body = http.StatusOK, l.Result.Message
	case "errored":
		line.Body = l.Result.Error
		inner := jsonbytes.Find(line.Body, "error")
		if !isObject(inner) { // the object alone, as it once was
			inner, line.Body = line.Body, errorBody(line.Body)
		}
		var failure fault
		_ = json.Unmarshal(inner, &failure) // unknown: without a status
		line.Status = messageStatus[string(failure.Type)]
	case "canceled", "cancelled", "expired":
		line.Kind = Lapsed
	default:
		return Line{Kind: Garbled}
	}
	if line.Kind == Answered && !isObject(line.Body) {
		return Line{Kind: Garbled}
	}
	return line
}

// messageStatus is the status of each type of error, which the line leaves out.
var messageStatus = map[string]int{
	"invalid_request_error": 400,
	"authentication_error":  401,
	"billing_error":         402,
	"permission_error":      403,
	"not_found_error":       404,
	"request_too_large":     413,
	"rate_limit_error":      429,
	"api_error":             500,
	"timeout_error":         504,
	"overloaded_error":      529,
}

// Cancel implements [API].
func (a *messageBatches) Cancel(ctx context.Context, id string) error {
	_, err := a.post(ctx, messageBatchPath(id, "/cancel"), nil, nil)
	return err
}

// Withdraw implements [API].
func (*messageBatches) Withdraw(context.Context, string, time.Time) (bool, error) {
	return false, nil
}

// Delete implements [API].
func (a *messageBatches) Delete(ctx context.Context, b Batch) error {
	return a.remove(ctx, messageBatchPath(b.ID, ""))
}
