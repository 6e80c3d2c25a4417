package batchapi

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// text is a string, or a number by its digits. Null and anything else count as empty.
type text string

// UnmarshalJSON implements [json.Unmarshaler].
func (t *text) UnmarshalJSON(raw []byte) error {
	*t = ""
	switch c := raw[0]; {
	case c == '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return err
		}
		*t = text(s)
	case c == '-' || c >= '0' && c <= '9':
		*t = text(raw)
	}
	return nil
}

// count is a number of rows, as a number or a string. Its zero value is a number that is
// not reported.
type count struct {
	n  int
	ok bool
}

// UnmarshalJSON implements [json.Unmarshaler].
func (c *count) UnmarshalJSON(raw []byte) error {
	n, err := strconv.Atoi(string(bytes.Trim(raw, `"`)))
	*c = count{n, err == nil && n >= 0}
	return nil
}

// number returns the number, or -1.
func (c count) number() int {
	if !c.ok {
		return -1
	}
	return c.n
}

// orZero returns the number, or 0.
func (c count) orZero() int { return max(0, c.number()) }

// stamp is a time: Unix seconds, or RFC 3339. Null and anything else count as none.
type stamp struct{ time.Time }

// UnmarshalJSON implements [json.Unmarshaler].
func (s *stamp) UnmarshalJSON(raw []byte) error {
	word := string(bytes.Trim(raw, `"`))
	if n, err := strconv.ParseFloat(word, 64); err == nil && n > 0 && n < 1<<40 {
		s.Time = time.Unix(int64(n), 0).UTC()
	} else if t, err := time.Parse(time.RFC3339Nano, word); err == nil {
		s.Time = t.UTC()
	}
	return nil
}

// stateWord returns the provider's word for a state in lower case, without underscores
// and prefix.
func stateWord(t text) string {
	word := strings.ToLower(string(t))
	if _, name, ok := strings.Cut(word, "state_"); ok { // Gemini: BATCH_STATE_, JOB_STATE_
		word = name
	}
	return strings.NewReplacer("_", "", "-", "", " ", "").Replace(word)
}

// states are the words of all providers. Any other one belongs to a batch that is not over.
var states = map[string]State{
	"completed": Ended, "ended": Ended, "succeeded": Ended, "partiallysucceeded": Ended,
	"expired": Expired, "cancelled": Cancelled, "canceled": Cancelled, "failed": Refused,
}

// stateOf returns the state that a word means.
func stateOf(t text) State {
	if s, ok := states[stateWord(t)]; ok {
		return s
	}
	return Running
}
