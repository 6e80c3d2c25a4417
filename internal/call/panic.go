package call

import (
	"context"
	"runtime/debug"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

// Guarded returns what f returns. A panic of f, which is a bug, becomes an [*llm.Error] that
// wraps a [*pool.PanicError]: a call that has begun must have its event, whatever becomes of
// it, or the audit lacks a call that its row counts.
func Guarded(f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &llm.Error{
				Class: llm.Permanent, Reason: llm.ReasonInternalError,
				Err: &pool.PanicError{Value: value, Stack: debug.Stack()},
			}
		}
	}()
	return f()
}

// Do is [llm.Client.Do], with a panic as an error. What the provider has received is unknown
// then.
func (t *Target) Do(ctx context.Context, p *llm.Prepared) (x *llm.Exchange, err error) {
	err = Guarded(func() (err error) {
		x, err = t.Client.Do(ctx, p)
		return err
	})
	if x == nil {
		x = &llm.Exchange{Unknown: true}
	}
	return x, err
}
