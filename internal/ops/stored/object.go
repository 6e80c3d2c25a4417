package stored

import (
	"context"
	"errors"
	"fmt"

	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Fetch reads the body of a result that is an object of a bucket. It does nothing for any
// other result, and must be called only once. The error names the row.
func (r *Result) Fetch(ctx context.Context, nc *nats.Conn) (err error) {
	if r.Object == nil {
		return nil
	}
	if r.Body, err = r.Object.Get(ctx, nc, r.Object.Bytes); err != nil {
		return fmt.Errorf("read the result of row %d: %w", r.Seq, err)
	}
	return nil
}

// objectOf returns the object that is the body of a result, or nil.
func objectOf(h nats.Header) *objects.Ref {
	if len(h[streams.HeaderObject]) == 0 { // most results, and it costs no allocation
		return nil
	}
	ref, is := objects.RefOf(h)
	if !is {
		return nil
	}
	return &ref
}

// Fetch reads the body of a row that is a result of another stage, and an object of a
// bucket. It does nothing for any other row. If the object is gone or damaged for good the
// row is [InputRow.Unreadable].
func (r *InputRow) Fetch(ctx context.Context, nc *nats.Conn) (err error) {
	ref := objectOf(r.Header)
	if ref == nil || len(r.Body) > 0 || streams.Upstream(r.Header) == "" {
		return nil
	}
	r.Body, err = ref.Get(ctx, nc, ref.Bytes)
	if objects.Lasts(err) || errors.Is(err, jetstream.ErrStreamNotFound) {
		r.Unreadable, err = true, nil
	}
	if err != nil {
		return fmt.Errorf("read row %d: %w", r.Seq, err)
	}
	return nil
}
