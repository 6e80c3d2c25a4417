package identity

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/llm/redact"
)

const (
	// fetchLimit bounds one renewal with all its tries. A metadata server that hangs is
	// reported by then, before the call itself times out.
	fetchLimit = 15 * time.Second
	// fetchTries is how often one renewal asks, because a token endpoint may be restarting.
	fetchTries = 3
	// fetchPause is the pause before the second try. The pause before the third is twice
	// as long.
	fetchPause = 500 * time.Millisecond
	// retryMax is the longest time between two renewals that fail while the old credential
	// lives.
	retryMax = 30 * time.Second
	// retryDead is the time between two of them when no credential lives. It is shorter
	// than the time between two probes of a paused stage, so that each probe asks again.
	retryDead = time.Second
	// forceEvery is the least time between two renewals that a provider's refusal causes.
	// A role that may not call the model is refused with each new credential, too.
	forceEvery = 30 * time.Second
	// aheadLeast is how long before its end a credential is renewed at the latest, if it
	// lives long enough.
	aheadLeast = 5 * time.Minute
	// marginMax is how long before its end a credential is used no more: the request is
	// under way, and the clocks differ.
	marginMax = 10 * time.Second
)

// held is a credential, and for how long it is good.
type held[T comparable] struct {
	value   T
	number  int       // counts the credentials of a keeper from 1
	renewAt time.Time // zero if it never expires
	deadAt  time.Time // zero if it never expires
}

func (h *held[T]) usable(now time.Time) bool {
	return h != nil && (h.deadAt.IsZero() || now.Before(h.deadAt))
}

// keeper has the credential of one identity, and renews it. Calls cause the renewals: when
// a call finds that the credential ends soon, it starts a renewal and goes on with the old
// one, as all others do meanwhile. A call waits only while there is none that is good.
//
// For example, a credential that lives for an hour is renewed after 48 minutes. If that
// fails, it is tried again after 1 s, 2 s, 4 s, and so on up to every 30 s, for the 12
// minutes that are left.
type keeper[T comparable] struct {
	// fetch asks the cloud for a new credential. expires is zero if the credential never
	// expires.
	fetch func(ctx context.Context) (value T, expires time.Time, err error)
	// secrets returns what must not be shown of a credential.
	secrets  func(T) []string
	redactor *redact.Redactor
	// help says which cloud's credential is missing, and what to do.
	cloud, help string

	ctx    context.Context //nolint:containedctx // it ends the renewals, which outlive the calls that start them
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	current  *held[T]      // nil before the first
	running  chan struct{} // closed when the renewal in flight ends; nil if there is none
	failed   error         // why the last renewal failed; nil if it did not
	failures int           // renewals that failed since the last success
	retryAt  time.Time     // no renewal starts before
	forcedAt time.Time     // when a refusal caused the last renewal
}

func newKeeper[T comparable](cloud, help string, r *redact.Redactor) *keeper[T] {
	k := &keeper[T]{cloud: cloud, help: help, redactor: r}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	return k
}

// close ends the renewal in flight.
func (k *keeper[T]) close() {
	k.cancel()
	k.wg.Wait()
}

// get returns a credential that is good now. It waits for one if there is none, until ctx
// ends.
func (k *keeper[T]) get(ctx context.Context) (*held[T], error) {
	k.mu.Lock()
	now := time.Now()
	h := k.current
	if h.usable(now) {
		if !h.renewAt.IsZero() && !now.Before(h.renewAt) && !now.Before(k.retryAt) {
			k.renew()
		}
		k.mu.Unlock()
		return h, nil
	}
	if k.running == nil && now.Before(k.retryAt) {
		defer k.mu.Unlock()
		return nil, k.missing(k.failed)
	}
	done := k.renew()
	k.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
		return nil, k.missing(fmt.Errorf("no answer within the time of the call: %w",
			context.Cause(ctx)))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.current.usable(time.Now()) {
		return k.current, nil
	}
	return nil, k.missing(k.failed)
}

// missing is the error of a call that gets no credential.
func (k *keeper[T]) missing(cause error) error {
	return &missingError{
		text: fmt.Sprintf("no credential of %s: %s; %s", k.cloud, oneLine(k.redactor, cause),
			k.help), cause: cause,
	}
}

// missingError is why there is no credential. Its text is one line.
type missingError struct {
	text  string
	cause error
}

func (e *missingError) Error() string { return e.text }

func (e *missingError) Unwrap() error { return e.cause }

// causeBytes bounds what is quoted from an SDK.
const causeBytes = 1200

// oneLine returns the text of an error without line breaks and secrets. Azure's SDK writes
// a list with a line for each source that it tried.
func oneLine(r *redact.Redactor, err error) string {
	if err == nil {
		return "none yet"
	}
	text := strings.Join(strings.Fields(r.RedactString(err.Error())), " ")
	// AWS's cache has none.
	text = strings.TrimPrefix(text, "failed to refresh cached credentials, ")
	if len(text) > causeBytes {
		text = excerpt.Clip(text, causeBytes)
	}
	return strings.TrimRight(text, ".;: ")
}

// renew starts a renewal, unless one is in flight, and returns what is closed at its end.
// The mutex is held.
func (k *keeper[T]) renew() (done <-chan struct{}) {
	if k.running == nil {
		ended := make(chan struct{})
		k.running = ended
		k.wg.Go(func() {
			value, expires, err := k.ask()
			k.mu.Lock()
			k.running = nil
			k.take(value, expires, err)
			k.mu.Unlock()
			close(ended)
		})
	}
	return k.running
}

// ask fetches a credential, in several tries.
func (k *keeper[T]) ask() (value T, expires time.Time, err error) {
	ctx, cancel := context.WithTimeout(k.ctx, fetchLimit)
	defer cancel()
	for try := range fetchTries {
		if try > 0 {
			pause := time.NewTimer(fetchPause << (try - 1))
			select {
			case <-pause.C:
			case <-ctx.Done():
				pause.Stop()
			}
		}
		if ctx.Err() != nil {
			break
		}
		if value, expires, err = k.fetch(ctx); err == nil {
			break
		}
	}
	switch {
	case err == nil && ctx.Err() != nil && value == *new(T):
		err = ctx.Err()
	case err == nil && !expires.IsZero() && !expires.After(time.Now()):
		err = fmt.Errorf("it had expired at %s, before it arrived: check the clock of this machine",
			expires.UTC().Format(time.RFC3339))
	case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("no answer within %v: %w", fetchLimit, err)
	}
	return value, expires, err
}

// take keeps what a renewal has brought. The mutex is held.
func (k *keeper[T]) take(value T, expires time.Time, err error) {
	now := time.Now()
	if err != nil {
		wait := retryDead
		if k.current.usable(now) {
			wait = min(retryMax, time.Second<<min(k.failures, 5))
		}
		k.failed, k.retryAt = err, now.Add(wait)
		k.failures++
		return
	}
	k.failed, k.failures, k.retryAt = nil, 0, time.Time{}
	next := &held[T]{value: value, number: 1}
	same := k.current != nil && k.current.value == value
	switch {
	case same:
		next.number = k.current.number
	case k.current != nil:
		next.number = k.current.number + 1
	}
	if !expires.IsZero() {
		life := expires.Sub(now)
		ahead := max(life/5, min(aheadLeast, life/2))
		if same {
			// The source still has the old credential in its own cache. Metadata servers
			// have it until a few minutes before its end.
			ahead = max(life-max(life/4, retryDead), 0)
		}
		next.renewAt = expires.Add(-ahead)
		next.deadAt = expires.Add(-min(marginMax, life/10))
	}
	k.redactor.AddPassing(k.secrets(value)...) // before any call can send them
	k.current = next
}

// outdated reports whether calls use another credential by now than the one of this number,
// which a provider has refused. It renews that one first, but not each time. A reply that
// came by another way than a call has the number 0, and shows nothing about a credential.
func (k *keeper[T]) outdated(number int) bool {
	if number == 0 {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.current == nil || k.current.number == number {
		now := time.Now()
		if k.running == nil {
			if !k.forcedAt.IsZero() && now.Sub(k.forcedAt) < forceEvery {
				return false
			}
			k.forcedAt = now
		}
		done := k.renew()
		k.mu.Unlock()
		<-done
		k.mu.Lock()
	}
	return k.current.usable(time.Now()) && k.current.number != number
}

// problem returns why the last renewal failed, or nil.
func (k *keeper[T]) problem() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failed == nil {
		return nil
	}
	return k.missing(k.failed)
}
