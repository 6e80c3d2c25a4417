package call

import (
	"time"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/llm"
)

// Refusal is what a provider says when it refuses a call, whatever the row is: it has no
// capacity for it, or accepts no call of this key.
type Refusal struct {
	Time       time.Time
	Provider   string
	Model      string
	Status     int           // of HTTP, or 0 if there was no reply
	Error      string        // the provider's words, shortened, without text of the row
	RetryAfter time.Duration // that it asked for, or 0
}

// NoteRefusal passes on what the provider has said if it has refused the call. texts
// returns the texts that the request was made of, because the provider may quote them.
func (c *Caller) NoteRefusal(o Outcome, texts func() []string) {
	if c.Refused == nil || o.Err == nil || o.Err.Class != llm.Capacity && o.Err.Class != llm.Fatal {
		return
	}
	said := excerpt.WithoutAll(o.Err.Error(), texts()...)
	c.Refused(Refusal{
		Time: o.Event.Time, Provider: o.Event.Provider, Model: o.Event.Model,
		Status: o.Event.StatusCode, Error: said, RetryAfter: o.Event.RetryAfter,
	})
}
