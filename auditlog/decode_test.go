package auditlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"pgregory.net/rapid"
)

// kept is the event as a reader gets it: bodies as JSON, bad UTF-8 replaced, what JSON cannot tell apart made equal.
func kept(e encoder) encoder {
	valid := func(s string) string {
		var out strings.Builder // one U+FFFD a byte, where strings.ToValidUTF8 writes one a run
		for _, r := range s {
			out.WriteRune(r)
		}
		return out.String()
	}
	errs := func(in []AttemptError) []AttemptError {
		var out []AttemptError
		for _, a := range in {
			a.Error = valid(a.Error)
			out = append(out, a)
		}
		return out
	}
	raw := func(b []byte) []byte {
		switch {
		case len(b) == 0 || string(b) == "null":
			return nil
		case json.Valid(b) && utf8.Valid(b):
			return bytes.TrimSpace(b)
		}
		return jsonbytes.AppendEscaped(nil, b)
	}
	switch e := e.(type) {
	case *Call:
		c := *e
		c.Model, c.Error, c.Request, c.Response = valid(c.Model), valid(c.Error), raw(c.Request), raw(c.Response)
		return &c
	case *Row:
		r := *e
		r.Errors = errs(r.Errors)
		if r.Key != nil {
			r.Key = new(valid(*r.Key))
		}
		if len(r.EarlierCalls) == 0 {
			r.EarlierCalls = nil
		}
		return &r
	case *Run:
		r := *e
		r.Reason = valid(r.Reason)
		if r.Settings != nil {
			r.Settings = map[string]string{}
			for k, v := range e.Settings {
				r.Settings[k] = valid(v)
			}
		}
		if r.Summary != nil {
			s := *r.Summary
			s.Usage = nil
			for _, u := range r.Summary.Usage {
				u.Model = valid(u.Model)
				s.Usage = append(s.Usage, u)
			}
			r.Summary = &s
		}
		return &r
	case *Batch:
		b := *e
		b.Model, b.Reason = valid(b.Model), valid(b.Reason)
		return &b
	}
	return nil
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEvent.Draw(t, "event")
		b := e.AppendJSON(nil, PayloadsFull, 0)
		got, err := Decode(b)
		if err != nil {
			t.Fatalf("%v in %s", err, b)
		}
		want := kept(e)
		var have encoder
		var header Header
		switch got.Kind {
		case KindCall:
			have, header = got.Call, got.Call.Header
		case KindRow:
			have, header = got.Row, got.Row.Header
		case KindRun:
			have, header = got.Run, got.Run.Header
		case KindBatch:
			have, header = got.Batch, got.Batch.Header
		}
		if !reflect.DeepEqual(have, want) {
			t.Fatalf("got  %+v\nwant %+v\nfrom %s", have, want, b)
		}
		if got.Header != header || got.SchemaVersion != SchemaVersion {
			t.Fatalf("head %+v is not that of the event, %+v", got.Header, header)
		}
	})
}

func TestDecodeSaysWhatIsWrong(t *testing.T) {
	tests := []struct {
		name, data string
		want       error
		text       string
	}{
		{"no JSON", "hello", nil, "invalid character"},
		{"no event", `{"claim":1}`, ErrKind, "decode audit event"},
		{"other kind", `{"schema_version":1,"event":"audit"}`, ErrKind, `"audit"`},
		{"later version", `{"schema_version":2,"event":"row"}`, ErrSchemaVersion, "version 2"},
		{"no version", `{"event":"row"}`, ErrSchemaVersion, "version 0"},
		{"partition", `{"schema_version":1,"event":"row","partition":-7}`, nil, "partition -7"},
		{"duration beyond floats", `{"schema_version":1,"event":"call","latency_ms":1e999}`, nil, "1e999"},
		{"time", `{"schema_version":1,"event":"row","time":"noon"}`, nil, "noon"},
		{"year", `{"schema_version":1,"event":"row","time":"9999-12-31T23:59:59-01:00"}`, nil, "four digits"},
		{"duration", `{"schema_version":1,"event":"call","latency_ms":1e300}`, nil, "duration 1e300: want"},
		{"duration as text", `{"schema_version":1,"event":"call","latency_ms":"5"}`, nil, `duration "5": want`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, err := Decode([]byte(tt.data))
			if e != nil || err == nil || tt.want != nil && !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %+v, %v, want %v with %q", e, err, tt.want, tt.text)
			}
		})
	}
}

func TestReadersIgnoreWhatTheyDoNotKnow(t *testing.T) {
	e, err := Decode([]byte(`{"new":{"a":[1]},"event":"call","schema_version":1,"time":"2026-11-21T13:00:00+01:00","partition":"all","usage":{"prompt_tokens":5,"new":1}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := Header{Time: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), Partition: All}
	if e.Header != want || e.Call == nil || e.Row != nil || e.Run != nil || e.Batch != nil || e.Call.Usage.PromptTokens != 5 || e.Call.Usage.CachedTokens != nil {
		t.Errorf("got %+v, %+v", e, e.Call)
	}
}

// Foreign bytes never panic, and what can be read can be written and read again without change.
func FuzzDecode(f *testing.F) {
	for _, e := range samples() {
		f.Add(e.AppendJSON(nil, PayloadsFull, 0))
	}
	f.Add([]byte(`{"schema_version":1,"event":"call","request":"\ud800","response":[1, 2],"usage":{},"latency_ms":-0.0005}`))
	f.Add([]byte(`{"schema_version":1,"event":"row","order_key":"\ud800","errors":null}`))
	f.Add([]byte(`{"schema_version":1,"event":"batch","phase":"lost","rows":-1,"reason":"\ud800","usage":{}}`))
	f.Add([]byte(`{"schema_version":1,"event":"run","summary":{"usage":[{}],"total":{"cost_usd":1e-7}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := Decode(data)
		if err != nil {
			return
		}
		once := encoded(first)
		second, err := Decode(once)
		if err != nil {
			t.Fatalf("%v\nin   %s\nfrom %s", err, once, data)
		}
		if twice := encoded(second); !bytes.Equal(once, twice) {
			t.Fatalf("got  %s\nwant %s", twice, once)
		}
		if !utf8.Valid(once) {
			t.Fatalf("not UTF-8: %q", once)
		}
	})
}

func encoded(e *Event) []byte {
	switch e.Kind {
	case KindCall:
		return e.Call.AppendJSON(nil, PayloadsFull, 0)
	case KindRow:
		return e.Row.AppendJSON(nil, PayloadsFull, 0)
	case KindRun:
		return e.Run.AppendJSON(nil, PayloadsFull, 0)
	case KindBatch:
		return e.Batch.AppendJSON(nil, PayloadsFull, 0)
	}
	panic("no event of kind " + e.Kind)
}
