package stage_test

import (
	"bytes"

	"github.com/llm-stage/stage/internal/stagetest"
)

// step is something that a process of a stage does, seen in what it sends to the NATS server.
type step struct {
	name    string
	subject string // its first token is that of the message; the stage's name follows if of is set
	of      bool
	has     string // in what is sent; empty: anything
}

var chainSteps = []step{
	{"claim", "PUB results.", true, ".claim "},
	{"emit", "PUB results.", true, "Stage-Status"},
	{"journal", "PUB journal.", true, ""},
	{"element", "PUB journal.", true, "Stage-Item"},
	{"call event", "PUB audit.", true, `"event":"call"`},
	{"row event", "PUB audit.", true, `"event":"row"`},
	{"ack", "PUB $JS.ACK.", false, ""},
	{"reset", "PUB $JS.API.CONSUMER.RESET.", false, ""},
	{"purge of the journal", "PUB $JS.API.STREAM.PURGE.JOURNAL", false, ""},
}

// place is where in what a stage sends a step begins; -1: it is not in it.
func (s *step) place(stage string, data []byte) int {
	subject := s.subject
	if s.of {
		subject += stage + "."
	}
	at := bytes.Index(data, []byte(subject))
	if s.has != "" {
		has := bytes.Index(data, []byte(s.has))
		if has < 0 {
			return -1
		}
		at = bytes.LastIndex(data[:has], []byte(subject))
	}
	if at > 0 && data[at-1] == 'H' { // HPUB
		at--
	}
	return at
}

// chainTarget is a step of a stage at which a process is to die, counted over all processes.
type chainTarget struct {
	stage string
	step  step
	after bool         // what it sends still arrives, and its answer is lost
	nth   int          // so many times it is let through
	next  *chainTarget // where another process is to die then; nil: none
}

// chainTrap waits for the first process at its target.
type chainTrap struct{ stagetest.Trap[chainTarget] }

// sees looks at what a process of a stage is about to send: how much of it arrives before the process dies; -1: it lives.
func (t *chainTrap) sees(stage string, data []byte) (arrives int) {
	arrives = -1
	t.Spring(func(set *chainTarget) *chainTarget {
		if set == nil || set.stage != stage {
			return set
		}
		at := set.step.place(stage, data)
		switch {
		case at < 0:
			return set
		case set.nth > 0:
			set.nth--
			return set
		case set.after:
			at = len(data)
		}
		arrives = at
		return set.next
	})
	return arrives
}
