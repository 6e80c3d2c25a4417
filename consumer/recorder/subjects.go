package recorder

import (
	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
)

// subjects remembers the subjects of events: there are a few for each partition, and
// every event needs one.
type subjects struct {
	prefix, stage string
	known         map[auditPlace]string
}

// auditPlace is what an event's subject depends on.
type auditPlace struct {
	partition auditlog.Partition
	kind      auditlog.Kind
}

func newSubjects(prefix, stage string) subjects {
	return subjects{prefix: prefix, stage: stage, known: make(map[auditPlace]string)}
}

func (s *subjects) of(p auditlog.Partition, kind auditlog.Kind) string {
	if kind == auditlog.KindRun {
		p = auditlog.All
	}
	place := auditPlace{p, kind}
	subject := s.known[place]
	if subject == "" {
		subject = streams.AuditSubject(s.prefix, s.stage, p, kind)
		s.known[place] = subject
	}
	return subject
}
