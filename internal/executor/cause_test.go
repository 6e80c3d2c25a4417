package executor

import (
	"errors"
	"strings"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm"
	"github.com/nats-io/nats.go"
)

func TestTheLastErrorOfAFailedRowIsItsCause(t *testing.T) {
	failure := &llm.Error{Class: llm.Permanent, Reason: llm.ReasonTemplateRenderingFailed, Err: errors.New("undefined: row.text")}
	attempt := auditlog.AttemptError{Attempt: 1, Provider: "openai", Error: "slow down"}
	attempts := append(make([]auditlog.AttemptError, 0, 8), attempt)
	got := withCause(attempts, failure)
	if len(got) != 2 || got[0] != attempt || got[1] != (auditlog.AttemptError{Class: "permanent", Error: "undefined: row.text"}) {
		t.Errorf("got %+v", got)
	}
	if again := withCause(attempts, &llm.Error{Err: errors.New("slow down")}); len(again) != 1 {
		t.Errorf("the last attempt is the cause: got %+v", again)
	}
	if all := attempts[:cap(attempts)]; all[1] != (auditlog.AttemptError{}) {
		t.Errorf("withCause wrote into the attempts of the row: %+v", all)
	}
	if left := attemptsOf(got); len(left) != 1 || left[0] != attempt || len(got) != 2 {
		t.Errorf("the attempts are %+v, want the first alone", left)
	}
}

func TestARowThatItsFileBreaksIsAnsweredInTheFilesWords(t *testing.T) {
	problem := nats.Header{streams.HeaderRowProblem: {"line 3: 3 columns, the header has 2"}}
	for _, tt := range []struct {
		name    string
		header  nats.Header
		body    string
		problem string // empty: the row is taken as it is
		cause   string // in the log, of an error that quotes all of the row
	}{
		{"a broken record", problem, "line 3: 3 columns, the header has 2: a,b,c,d,e,f\n", "line 3: 3 columns, the header has 2", "line 3: 3 columns, the header has 2: […]"},
		{"a header of another program", problem, `{"a":"some text"}`, "", `line 3: 3 columns, the header has 2: {"a":"[…]"}`},
		{"no header", nil, `{"a":"some text"}`, "", `line 3: 3 columns, the header has 2: {"a":"[…]"}`},
	} {
		in := &consumer.Row{Header: tt.header, Body: []byte(tt.body)}
		got, begin := readBroken(in)
		if got != tt.problem {
			t.Errorf("%s: got problem %q, want %q", tt.name, got, tt.problem)
		}
		if err := loadError(in, true); (err != nil) != (tt.problem != "") || err != nil && err.Error() != tt.problem {
			t.Errorf("%s: got error %v, want %q", tt.name, err, tt.problem)
		}
		reply := &consumer.Reply{Event: auditlog.Row{Errors: []auditlog.AttemptError{{Error: "line 3: 3 columns, the header has 2: " + string(begin)}}}}
		if got := causeOf(in, reply); got != tt.cause {
			t.Errorf("%s: got cause %q, want %q", tt.name, got, tt.cause)
		}
	}
}

// A row whose body was an object that is gone is invalid, also where it arrived as an error that would be passed on.
func TestARowWhoseObjectIsGoneIsInvalid(t *testing.T) {
	in := &consumer.Row{Unreadable: "LARGE/x: the object does not exist", Header: nats.Header{streams.HeaderStatus: {auditlog.RowError}}}
	err := loadError(in, true)
	if failure := call.AsError(err); err == nil || failure.Reason != llm.ReasonInvalidRow || !strings.Contains(err.Error(), in.Unreadable) {
		t.Errorf("got %v", err)
	}
	e := &Executor{cfg: stagetest.Config(t)}
	if e.passOn(in) {
		t.Error("it was passed on without a body")
	}
}
