// Package budget carries the messages of aimd/fleet over core NATS: processes that name
// the same budget share what they learn of each provider's limit.
//
// It is advice. No row waits for a message, and one that is lost, late or a lie costs
// efficiency alone. A process whose user may not publish on the subjects, or that has no
// connection, throttles by itself.
package budget

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/aimd/fleet"
	"github.com/llm-stage/stage/pool"
	"github.com/llm-stage/stage/pool/gate"
	"github.com/nats-io/nats.go"
)

// mailbox is how many messages may wait for a member: more than a leader of a thousand
// hears in a second. What does not fit is dropped, and the next report says the same.
const mailbox = 4096

// Config of a [Budget]. All fields are required.
type Config struct {
	// Name is the name of the budget (STAGE_BUDGET).
	Name string
	// ID distinguishes this process from all others.
	ID string
	// Weight is the share of this process against others, see [fleet.Config].
	Weight float64
	// Law is the law at each provider, which this process goes by while it leads or is
	// alone.
	Law    aimd.AdaptiveConfig
	Logger *slog.Logger
}

// Budget is this process's part in the budget that it shares with others. Its methods are safe for concurrent use.
type Budget struct {
	nc  atomic.Pointer[nats.Conn]
	cfg Config

	// Wake is called when calls may go that could not before. It is set before Run, and
	// must not block.
	Wake func()

	accounts []*Account
	denial   denial
	watches  atomic.Bool // Run takes the budget's errors from the connection's handler
}

// State is this process's part in what is known of one provider.
type State struct {
	Name     string // of the budget
	Provider string
	fleet.State
}

// Subject is what all messages of a budget are published under, with a wildcard at the
// end.
func Subject(name string) string { return "llm-stage.budget." + name + ".>" }

// New returns a budget that is not shared at any provider yet; see [Budget.Account].
func New(nc *nats.Conn, cfg Config) *Budget {
	b := &Budget{cfg: cfg, Wake: func() {}}
	b.nc.Store(nc)
	return b
}

// Use has the budget be shared over another connection, since the present one is closed
// for good. Safe for concurrent use.
func (b *Budget) Use(nc *nats.Conn) {
	b.nc.Store(nc)
	if b.watches.Load() {
		b.watchErrors() // for as long as nc lives
	}
	for _, a := range b.accounts {
		select {
		case a.kick <- struct{}{}:
		default:
		}
	}
}

// Account returns the law for one provider, which shares with all that use the same key;
// a key is one token of a subject. Limits are those of all of them together. Call it
// before Run, from one goroutine. The error is of the settings.
func (b *Budget) Account(key string, limits fleet.Limits) (*Account, error) {
	if i := slices.IndexFunc(b.accounts, func(a *Account) bool { return a.key == key }); i >= 0 {
		return b.accounts[i], nil
	}
	m, err := fleet.New(fleet.Config{ID: b.cfg.ID, Weight: b.cfg.Weight, Law: b.cfg.Law, Limits: limits})
	if err != nil {
		return nil, err
	}
	a := &Account{budget: b, key: key, member: m, kick: make(chan struct{}, 1)}
	b.accounts = append(b.accounts, a)
	return a, nil
}

// Run takes part until ctx ends, and then tells the others that this process has left.
func (b *Budget) Run(ctx context.Context) {
	b.watches.Store(true)
	defer b.watches.Store(false)
	defer b.watchErrors()()
	var parts sync.WaitGroup
	for _, a := range b.accounts {
		parts.Go(func() { a.run(ctx) })
	}
	parts.Wait()
}

// States returns this process's part in each account.
func (b *Budget) States() []State {
	states := make([]State, len(b.accounts))
	for i, a := range b.accounts {
		states[i] = a.State()
	}
	return states
}

// Account is the budget at one provider: a [pool.Law] that is shared with other processes.
// A pool may use it for several servers. Its methods are safe for concurrent use.
type Account struct {
	budget *Budget
	key    string
	kick   chan struct{} // holds a token while run is to look at once: there is news to tell, or another connection

	mu     sync.Mutex // guards what follows, for as long as a method of the member takes
	member *fleet.Member
	now    time.Time // the last instant: the pool's is a moment old, and instants must not go back
}

// at returns an instant for the member. The caller holds mu.
func (a *Account) at(now time.Time) time.Time {
	if now.After(a.now) {
		a.now = now
	}
	return a.now
}

// State returns this process's part in the account.
func (a *Account) State() State {
	a.mu.Lock()
	defer a.mu.Unlock()
	return State{Name: a.budget.cfg.Name, Provider: a.key, State: a.member.State()}
}

// run carries messages until ctx ends.
func (a *Account) run(ctx context.Context) {
	subs := a.newSubscriptions()
	defer subs.stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	mode := fleet.Alone
	for {
		var out [][]byte
		var next time.Time
		select {
		case <-ctx.Done():
			a.mu.Lock()
			out = a.member.Leave(a.at(time.Now()))
			a.mu.Unlock()
			a.publish(subs, out)
			return
		case m := <-subs.heard:
			a.hear(subs, m)
			continue
		case <-a.kick:
		case <-timer.C:
		}
		subs.renew()
		a.mu.Lock()
		out, next = a.member.Tick(a.at(time.Now()))
		leads := a.member.Leads()
		a.mu.Unlock()
		subs.hearReports(leads)
		a.publish(subs, out)
		timer.Reset(time.Until(next))
		if now := a.State().Mode; now != mode || leads && len(out) > 0 {
			mode = now
			a.budget.Wake()
		}
	}
}

// hear passes a message to the member.
func (a *Account) hear(subs *subscriptions, m *nats.Msg) {
	if subs.denied {
		return // it could not answer
	}
	a.mu.Lock()
	err := a.member.Hear(a.at(time.Now()), m.Data)
	a.mu.Unlock()
	if err != nil {
		a.budget.cfg.Logger.Debug("message of the shared budget ignored",
			slog.String("subject", m.Subject), slog.Any("error", err))
	}
	if m.Subject == subs.plans {
		a.budget.Wake()
	}
}

// publish sends messages while there is a connection. The client would keep them until
// there is one again, and then they would be news of long ago.
func (a *Account) publish(subs *subscriptions, out [][]byte) {
	if !a.budget.nc.Load().IsConnected() || a.budget.denied() {
		return
	}
	for _, body := range out {
		subject := subs.plans
		if fleet.IsReport(body) {
			subject = subs.reports
		}
		if err := a.budget.nc.Load().Publish(subject, body); err != nil {
			a.budget.cfg.Logger.Debug("message of the shared budget not sent", slog.Any("error", err))
		}
	}
}

// Next implements [pool.Law].
func (a *Account) Next(now time.Time, inFlight int) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	instant := a.at(now)
	at := a.member.Next(instant, inFlight)
	if !at.After(instant) {
		return now
	}
	return at
}

// Sent implements [pool.Law].
func (a *Account) Sent(now time.Time, inFlight int) aimd.Ticket {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.member.Sent(a.at(now), inFlight)
}

// Accepted implements [pool.Law].
func (a *Account) Accepted(now time.Time, t aimd.Ticket) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.member.Accepted(a.at(now), t)
	a.tell()
}

// Rejected implements [pool.Law].
func (a *Account) Rejected(now time.Time, t aimd.Ticket, h aimd.Hint) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.member.Rejected(a.at(now), t, h)
	a.tell()
}

// Dropped implements [pool.Law].
func (a *Account) Dropped(now time.Time, t aimd.Ticket) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.member.Dropped(a.at(now), t)
	a.tell()
}

// Restart implements [pool.Law].
func (a *Account) Restart(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.member.Restart(a.at(now))
	a.tell()
}

// Stats implements [pool.Law].
func (a *Account) Stats() aimd.Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.member.Stats()
}

// tell has run tell the others at once, if there is news. The caller holds mu.
func (a *Account) tell() {
	if !a.member.Urgent() {
		return
	}
	select {
	case a.kick <- struct{}{}:
	default:
	}
}

// Gates returns the gates that keep this process within its part of the account's limits
// on tokens and on calls in flight. They are for all servers of a pool that use the
// account. The limit on calls a minute is in the plan itself.
func (a *Account) Gates() []pool.Gate {
	return []pool.Gate{&tokensGate{account: a, gate: gate.NewPerMinute(1)}, &slotsGate{account: a}}
}

// tokensGate is the gate of tokens a minute.
type tokensGate struct {
	account *Account
	gate    *gate.PerMinute
	limited bool // at the last Next
}

// Next implements [pool.Gate].
func (g *tokensGate) Next(now time.Time, weight int64) time.Time {
	a := g.account
	a.mu.Lock()
	defer a.mu.Unlock()
	limit := a.member.TPM()
	if g.limited = limit > 0; !g.limited {
		return now
	}
	g.gate.SetLimit(now, limit)
	next := g.gate.Next(now, weight)
	if next.After(now) {
		a.member.Hold(a.at(now), next)
	}
	return next
}

// Sent implements [pool.Gate].
func (g *tokensGate) Sent(now time.Time, weight int64) {
	if g.limited {
		g.gate.Sent(now, weight)
	}
}

// Ended implements [pool.Gate].
func (g *tokensGate) Ended(now time.Time, weight, actual int64) {
	if g.limited {
		g.gate.Ended(now, weight, actual)
	}
}

// slotsGate is the gate of calls in flight.
type slotsGate struct {
	account  *Account
	inFlight int
}

// Next implements [pool.Gate].
func (g *slotsGate) Next(now time.Time, _ int64) time.Time {
	a := g.account
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.member.Room(a.at(now), g.inFlight) {
		return now
	}
	return now.Add(time.Second) // a message that makes room wakes the pool
}

// Sent implements [pool.Gate].
func (g *slotsGate) Sent(time.Time, int64) { g.inFlight++ }

// Ended implements [pool.Gate].
func (g *slotsGate) Ended(time.Time, int64, int64) { g.inFlight-- }
