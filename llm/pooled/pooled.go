// Package pooled lets a pool make calls of a language model: it turns the judgement of
// package llm about a reply into the verdict that package pool asks for. Neither of the
// two imports the other.
//
//	call := func(ctx context.Context, p *llm.Prepared, _ pool.Attempt) (*llm.Reply, pool.Verdict) {
//		x, err := client.Do(ctx, p)
//		return x.Reply, pooled.Verdict(x, err)
//	}
//	calls, err := pool.New(pool.Config{Size: 16, Law: law, Retry: pool.DefaultRetry()}, call)
//
// Other programs may rely on [Verdict]; [Judge] may change with any release.
package pooled

import (
	"errors"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

// Verdict returns the pool's verdict on a call that [llm.Client.Do] made, with the tokens
// that the provider counted. An error from outside llm, such as a request that could not
// be prepared, is permanent: the same job would meet it again.
func Verdict(x *llm.Exchange, err error) (v pool.Verdict) {
	switch failure, ok := errors.AsType[*llm.Error](err); {
	case ok:
		v = Judge(failure, x)
	case err != nil:
		v = pool.Verdict{Class: pool.Permanent, Err: err}
	}
	if x.Reply != nil && x.Reply.Usage != nil {
		v.Weight, v.Output = x.Reply.Usage.TotalTokens, x.Reply.Usage.CompletionTokens
	}
	return v
}

// Judge returns the pool's verdict on a call that failed. An error's class is decided in
// llm and converted to the pool's here, nowhere else.
func Judge(failure *llm.Error, x *llm.Exchange) pool.Verdict {
	return pool.Verdict{
		Class: classes[failure.Class], Origin: origins[failure.Origin], Alike: failure.Alike,
		Err:    failure,
		Unsent: failure.Origin == llm.OfNetwork && !x.Sent, Absent: failure.Absent,
		Hint: aimd.Hint{RetryAfter: x.RetryAfter, Remaining0: x.Remaining0, Reset: x.Reset},
	}
}

// classes has the pool's class for each of llm's. The zero one belongs to a cancelled
// attempt.
var classes = [...]pool.Class{
	0: pool.Cancelled, llm.Capacity: pool.Capacity, llm.Transient: pool.Transient,
	llm.Permanent: pool.Permanent, llm.Fatal: pool.Fatal,
}

// origins has the pool's origin for each of llm's.
var origins = [...]pool.Origin{
	llm.OfRequest: pool.OfJob, llm.OfServer: pool.OfServer, llm.OfNetwork: pool.OfNetwork,
	llm.OfHost: pool.OfHost,
}
