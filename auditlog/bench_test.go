package auditlog

import (
	"bytes"
	"fmt"
	"testing"
)

// BenchmarkCall measures the event of a call with bodies of so many bytes each.
func BenchmarkCall(b *testing.B) {
	for _, size := range []int{0, 1 << 10, 64 << 10} {
		for _, payloads := range []Payloads{PayloadsFull, PayloadsHash} {
			b.Run(fmt.Sprintf("body=%d/payloads=%v", size, payloads), func(b *testing.B) {
				c := *samples()["call_success"].(*Call)
				c.Request, c.Response = benchBody(size), benchBody(size)
				benchmark(b, &c, payloads)
			})
		}
	}
}

// BenchmarkRow measures the event of a row.
func BenchmarkRow(b *testing.B) {
	for _, name := range []string{"row_success", "row_error"} {
		b.Run(name, func(b *testing.B) { benchmark(b, samples()[name], PayloadsFull) })
	}
}

// BenchmarkDecode measures the way of a reader.
func BenchmarkDecode(b *testing.B) {
	for _, name := range []string{"call_success", "row_success"} {
		data := samples()[name].AppendJSON(nil, PayloadsFull, 0)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Decode(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkIDs measures what names one event.
func BenchmarkIDs(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		id := StateID("reviews", "ROWS", 0, 123456)
		if MsgID(id, "reviews-0-7", KindCall, 1) == "" {
			b.Fatal("no id")
		}
	}
}

func benchmark(b *testing.B, e event, payloads Payloads) {
	b.Helper()
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = e.AppendJSON(buf[:0], payloads, 1<<20)
	}
	b.SetBytes(int64(len(buf)))
}

func benchBody(size int) []byte {
	if size == 0 {
		return nil
	}
	const around = `{"messages":[{"role":"user","content":""}]}`
	text := bytes.Repeat([]byte("the quick brown fox "), size/20+1)[:size-len(around)]
	return []byte(`{"messages":[{"role":"user","content":"` + string(text) + `"}]}`)
}
