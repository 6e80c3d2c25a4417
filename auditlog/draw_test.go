package auditlog

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"time"

	"pgregory.net/rapid"
)

// Drawn events have every field set to anything that it may hold, bad UTF-8 and control characters included. Durations are
// whole microseconds and times are in UTC: the encoding keeps no more. A new field is drawn by its type.
var (
	drawText = rapid.OneOf(
		rapid.String(),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		rapid.SampledFrom([]string{"", "plain", "\u2028\u2029", "\x00\x1f\x7f", "a\"b\\c\b\f\n\r\t", "<&>", "caf\xe9", "🙂", "\xf0\x9f\x99"}),
	)
	drawName     = rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[a-z0-9-]{1,12}`))
	drawHash     = rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[0-9a-f]{64}`))
	drawClass    = oneOf("", "capacity", "transient", "permanent", "fatal")
	drawCode     = oneOf(0, 200, 429, 503)
	drawCount    = rapid.IntRange(0, math.MaxInt32)
	drawItem     = rapid.MakeCustom[ItemCalls](rapid.MakeConfig{Types: types(drawCount)})
	drawDuration = rapid.Map(rapid.OneOf(rapid.Int64Range(0, 5_000_000), rapid.Int64Range(0, 1e15)), func(us int64) time.Duration {
		return time.Duration(us) * time.Microsecond
	})
	drawTime = rapid.Map(rapid.Int64Range(0, 250_000_000_000), func(s int64) time.Time {
		return time.Unix(s, s*7919%1e9).UTC()
	})
	drawBody = rapid.OneOf(
		rapid.Just[[]byte](nil),
		rapid.Map(rapid.SliceOf(rapid.Byte()), bytes.TrimSpace), // encoding/json would drop the blanks around a number
		rapid.Map(rapid.MapOf(rapid.String(), rapid.Float64()), func(m map[string]float64) []byte {
			b, err := json.Marshal(m)
			if err != nil {
				panic(err)
			}
			return b
		}),
	)
	drawSettings = rapid.OneOf(rapid.Just[map[string]string](nil), rapid.MapOf(rapid.String(), drawText))

	// drawn is how fields are drawn: by their type, or by their name where it says more.
	drawn = rapid.MakeConfig{
		Types: types(
			drawName, drawCount, drawDuration, drawBody, drawSettings,
			rapid.OneOf(rapid.Just(time.Time{}), drawTime),
			rapid.Map(rapid.IntRange(-1, 40), func(n int) Partition { return Partition(n) }),
			rapid.SampledFrom([]CallStatus{CallSuccess, CallFailure, CallCapacityRetry, CallUnknown}),
			rapid.SampledFrom([]Phase{PhaseStart, PhaseClaim, PhaseFenced, PhasePause, PhaseResume, PhaseJoined, PhaseLeads, PhaseAlone, PhaseEnd}),
			rapid.SampledFrom([]BatchPhase{BatchIntent, BatchSubmitted, BatchAdopted, BatchEnded, BatchCancelled, BatchExpired, BatchAbandoned}),
			rapid.Just(Pace{}),
			some(rapid.Uint64Min(1)), some(rapid.Int64Min(0)), some(drawCount), some(drawName),
		),
		Fields: map[reflect.Type]map[string]*rapid.Generator[any]{
			reflect.TypeFor[Header](): {"Time": drawTime.AsAny()},
			reflect.TypeFor[Call](): {
				"Model": drawText.AsAny(), "Error": drawText.AsAny(), "Lane": oneOf("", LaneBatch), "StatusCode": drawCode, "ErrorClass": drawClass,
				"RequestHash": drawHash.AsAny(), "ResponseHash": drawHash.AsAny(),
			},
			reflect.TypeFor[Row](): {
				"Sequence": rapid.Uint64Min(1).AsAny(), "Status": oneOf(RowSuccess, RowError),
				"Source":       oneOf("", SourceCall, SourceJournal, SourceDedupe, SourceUpstream),
				"TemplateHash": drawHash.AsAny(), "VariablesHash": drawHash.AsAny(), "ResultHash": drawHash.AsAny(), "CallsHash": drawHash.AsAny(),
				"Key": rapid.Ptr(drawText, true).AsAny(),
			},
			reflect.TypeFor[TermCalls]():    {"Items": rapid.SliceOfN(drawItem, 1, 3).AsAny()},
			reflect.TypeFor[AttemptError](): {"Error": drawText.AsAny(), "Class": drawClass, "StatusCode": drawCode},
			reflect.TypeFor[Run]():          {"Reason": drawText.AsAny()},
			reflect.TypeFor[Budget]():       {"Mode": oneOf("leader", "member", "alone"), "Share": rapid.Float64Range(0, 1).AsAny()},
			reflect.TypeFor[ModelTotals]():  {"Model": drawText.AsAny()},
			reflect.TypeFor[Usage]():        {"CostUSD": rapid.Ptr(rapid.OneOf(rapid.Float64(), rapid.Float64Range(0, 1e-5)), true).AsAny()},
			reflect.TypeFor[Batch](): {
				"Model": drawText.AsAny(), "Reason": drawText.AsAny(), "Token": rapid.StringMatching(`[a-z0-9]{1,12}`).AsAny(),
				"Rows": rapid.IntRange(1, math.MaxInt32).AsAny(), "Bytes": rapid.Int64Min(0).AsAny(),
			},
		},
	}
	drawEvent = rapid.OneOf(
		rapid.Map(rapid.MakeCustom[Call](drawn), func(c Call) event { return &c }),
		rapid.Map(rapid.MakeCustom[Row](drawn), func(r Row) event { return &r }),
		rapid.Map(rapid.MakeCustom[Run](drawn), func(r Run) event { return &r }),
		rapid.Map(rapid.MakeCustom[Batch](drawn), func(b Batch) event { return &b }),
	)
)

func oneOf[T any](values ...T) *rapid.Generator[any] { return rapid.SampledFrom(values).AsAny() }

// some draws a few, or nil: a list without elements is not written.
func some[T any](element *rapid.Generator[T]) *rapid.Generator[[]T] {
	return rapid.OneOf(rapid.Just[[]T](nil), rapid.SliceOfN(element, 1, 3))
}

// types returns a map of the generators. The key of each is the type of the values that it draws.
func types(generators ...interface{ AsAny() *rapid.Generator[any] }) map[reflect.Type]*rapid.Generator[any] {
	of := make(map[reflect.Type]*rapid.Generator[any])
	for _, g := range generators {
		of[reflect.TypeOf(g.AsAny().Example())] = g.AsAny()
	}
	return of
}

// event is what all kinds of events have in common.
type event interface {
	AppendJSON(dst []byte, payloads Payloads, bytesMax int) []byte
}
