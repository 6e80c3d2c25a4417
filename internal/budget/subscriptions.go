package budget

import (
	"log/slog"

	"github.com/nats-io/nats.go"
)

// subscriptions are what an account listens to: plans and hellos, and while it leads, the
// reports of the others. The goroutine of [Account.run] owns it.
type subscriptions struct {
	budget         *Budget
	plans, reports string         // subjects
	heard          chan *nats.Msg // of both
	nc             *nats.Conn     // the connection that they are on
	denied         bool           // something was denied of late; as of the last renew
	stopPlans      func()
	stopReports    func()
	leads          bool
}

// newSubscriptions subscribes to the plans.
func (a *Account) newSubscriptions() *subscriptions {
	subject := "llm-stage.budget." + a.budget.cfg.Name + "." + a.key
	s := &subscriptions{
		budget: a.budget, plans: subject + ".plan", reports: subject + ".report",
		heard: make(chan *nats.Msg, mailbox), nc: a.budget.nc.Load(), stopReports: func() {},
	}
	s.stopPlans = s.listen(s.plans)
	return s
}

// stop ends all subscriptions.
func (s *subscriptions) stop() {
	s.stopPlans()
	s.stopReports()
}

// renew subscribes again if the connection was replaced, or if the user may publish again:
// the server may have ended the subscription with the permission.
func (s *subscriptions) renew() {
	nc, denied := s.budget.nc.Load(), s.budget.denied()
	replaced := nc != s.nc
	if replaced || s.denied && !denied {
		s.stopPlans()
		s.stopPlans = s.listen(s.plans)
	}
	if replaced && s.leads {
		s.stopReports()
		s.stopReports = s.listen(s.reports)
	}
	s.nc, s.denied = nc, denied
}

// hearReports has the reports of the others be heard, or no longer.
func (s *subscriptions) hearReports(leads bool) {
	if leads == s.leads {
		return
	}
	s.leads = leads
	s.stopReports()
	s.stopReports = func() {}
	if leads {
		s.stopReports = s.listen(s.reports)
	}
}

// listen subscribes to a subject. Without a subscription this process is alone.
func (s *subscriptions) listen(subject string) (stop func()) {
	sub, err := s.budget.nc.Load().ChanSubscribe(subject, s.heard)
	if err != nil {
		s.budget.cfg.Logger.Warn("the budget is not shared: no subscription",
			slog.String("subject", subject), slog.Any("error", err))
		return func() {}
	}
	return func() { _ = sub.Unsubscribe() } // no listener remains either way
}
