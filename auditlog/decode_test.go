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

// keep makes of an event what a reader gets: bodies as JSON, bad UTF-8 replaced, no lists without elements.
func keep(v reflect.Value) {
	switch kind := v.Kind(); {
	case kind == reflect.String:
		v.SetString(valid(v.String()))
	case kind == reflect.Pointer && !v.IsNil():
		keep(v.Elem())
	case kind == reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				keep(v.Field(i))
			}
		}
	case kind == reflect.Map:
		for _, key := range v.MapKeys() {
			v.SetMapIndex(key, reflect.ValueOf(valid(v.MapIndex(key).String())))
		}
	case v.Type() == reflect.TypeFor[[]byte]():
		v.SetBytes(readable(v.Bytes()))
	case kind == reflect.Slice && v.Len() == 0:
		v.SetZero()
	case kind == reflect.Slice:
		for i := range v.Len() {
			keep(v.Index(i))
		}
	}
}

// valid has one U+FFFD for a bad byte, where [strings.ToValidUTF8] has one for a run of them.
func valid(s string) string {
	var out strings.Builder
	for _, r := range s {
		out.WriteRune(r)
	}
	return out.String()
}

func readable(body []byte) []byte {
	switch {
	case len(body) == 0 || string(body) == "null":
		return nil
	case json.Valid(body) && utf8.Valid(body):
		return bytes.TrimSpace(body)
	}
	return jsonbytes.AppendEscaped(nil, body)
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEvent.Draw(t, "event")
		b := e.AppendJSON(nil, PayloadsFull, 0)
		got, err := Decode(b)
		if err != nil {
			t.Fatalf("%v in %s", err, b)
		}
		keep(reflect.ValueOf(e))
		have := of(got)
		if !reflect.DeepEqual(have, e) {
			t.Fatalf("got  %+v\nwant %+v\nfrom %s", have, e, b)
		}
		if header := reflect.ValueOf(have).Elem().FieldByName("Header").Interface(); got.Header != header || got.SchemaVersion != SchemaVersion {
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
		once := of(first).AppendJSON(nil, PayloadsFull, 0)
		second, err := Decode(once)
		if err != nil {
			t.Fatalf("%v\nin   %s\nfrom %s", err, once, data)
		}
		if twice := of(second).AppendJSON(nil, PayloadsFull, 0); !bytes.Equal(once, twice) {
			t.Fatalf("got  %s\nwant %s", twice, once)
		}
		if !utf8.Valid(once) {
			t.Fatalf("not UTF-8: %q", once)
		}
	})
}

// of returns the event of a kind.
func of(e *Event) event {
	switch e.Kind {
	case KindCall:
		return e.Call
	case KindRow:
		return e.Row
	case KindRun:
		return e.Run
	case KindBatch:
		return e.Batch
	}
	panic("no event of kind " + e.Kind)
}
