package consumer

import (
	"encoding/json"
	"log/slog"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

// journalLink carries what a term sends to the stream of the journal, and what comes back:
// the answers to entries and to requests about the stream. Nothing waits for an answer. It
// comes on the channel, with a topic that says which part of the journal it is for. It may
// get lost, so a part that needs an answer repeats what it has sent. The link also knows
// whether the journal is used at the moment.
type journalLink struct {
	*keptStream
	c *Consumer

	inbox   string
	sub     *nats.Subscription // nil in a consumer without a journal
	answers chan *nats.Msg
	problem string // why the journal is not used; empty while it is
}

// The topics say what an answer is to. They follow the inbox in the subject of the answer,
// and some are followed by more. For example, the answer to the third entry comes on
// _INBOX.x.entry.3.
const (
	topicSubjects = "subjects"
	topicPurge    = "purge"
	topicEntry    = "entry" // then the number of the entry
	topicGet      = "get"   // then the row and the element
)

// open subscribes to the answers, as many as may come at once, and reports whether it
// could.
func (l *journalLink) open(answers int) bool {
	l.inbox, l.answers = l.nc.NewInbox(), make(chan *nats.Msg, answers)
	var err error
	if l.sub, err = l.nc.ChanSubscribe(l.inbox+".>", l.answers); err != nil {
		l.setProblem(err.Error())
	}
	return err == nil
}

// close ends the subscription, if there is one.
func (l *journalLink) close() { _ = l.sub.Unsubscribe() }

// send publishes an entry or a request; its answer arrives under the topic.
func (l *journalLink) send(topic string, msg *nats.Msg) error {
	msg.Reply = l.inbox + "." + topic
	return l.nc.PublishMsg(msg)
}

// ask sends a request of the JetStream API about the stream, and reports whether it could.
func (l *journalLink) ask(topic, api string, request any) bool {
	body, err := json.Marshal(request)
	if err == nil {
		subject := streams.APIPrefix(l.nc) + api + "." + l.cfg.JournalStream
		err = l.send(topic, &nats.Msg{Subject: subject, Data: body})
	}
	if err != nil {
		l.setProblem(err.Error())
	}
	return err == nil
}

// setProblem notes why the journal is not used. With an empty reason it is used again.
func (l *journalLink) setProblem(why string) {
	if l.problem == why {
		return
	}
	l.problem = why
	l.c.setStatus(func(s *Status) { s.JournalProblem = why })
	log := l.c.log.With(slog.String("journal", l.cfg.JournalStream))
	if why == "" {
		log.Info("replies are kept again")
	} else {
		log.Warn("replies are not kept, a crash would pay for them again", slog.String("reason", why))
	}
}
