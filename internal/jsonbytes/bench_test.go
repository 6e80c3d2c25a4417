package jsonbytes

import (
	"strings"
	"testing"
)

// benchmarkRow is a row of 1 KiB: a review as shops have them.
var benchmarkRow = []byte(`{"id":123456789,"product":{"name":"Kettle","price":29.90,"tags":["kitchen","steel"]},"stars":4,"language":"en","verified":true,` +
	`"title":"Does what it says","text":"` + strings.Repeat(`It boils water \"quickly\" and looks good. `, 18) + `","date":"2025-03-01T12:00:00Z","votes":12}`)

func BenchmarkReadObject(b *testing.B) {
	var members [12]Member
	b.SetBytes(int64(len(benchmarkRow)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ReadObject(members[:0], benchmarkRow); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMembers(b *testing.B) {
	b.SetBytes(int64(len(benchmarkRow)))
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		for key, value := range Members(benchmarkRow) {
			n += len(key) + len(value)
		}
		if n == 0 {
			b.Fatal("no members")
		}
	}
}

func BenchmarkAppendString(b *testing.B) {
	for name, text := range map[string]string{
		"English": strings.Repeat("It boils water \"quickly\" and looks good.\n", 25),
		"Chinese": strings.Repeat("水烧得很快，看起来也不错。\n", 25),
		"Polish":  strings.Repeat("Szybko gotuje wodę i ładnie wygląda.\n", 25),
	} {
		b.Run("text="+name, func(b *testing.B) {
			var dst []byte
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				dst = AppendString(dst[:0], text)
			}
		})
	}
}

func BenchmarkCanonical(b *testing.B) {
	var c Canonicalizer
	b.SetBytes(int64(len(benchmarkRow)))
	b.ReportAllocs()
	for b.Loop() {
		_ = c.Canonical(benchmarkRow)
	}
}

// benchmarkVector is what embeddings consist of: 1,536 numbers of 12 bytes.
var benchmarkVector = []byte("[" + strings.Repeat("-0.012345678,", 1535) + "0.5]")

func BenchmarkValid(b *testing.B) {
	for name, value := range map[string][]byte{"row": benchmarkRow, "vector": benchmarkVector} {
		b.Run("value="+name, func(b *testing.B) {
			b.SetBytes(int64(len(value)))
			for b.Loop() {
				if !Valid(value) {
					b.Fatal("it is not valid")
				}
			}
		})
	}
}

func BenchmarkSkipValue(b *testing.B) {
	for name, value := range map[string][]byte{"row": benchmarkRow, "vector": benchmarkVector} {
		b.Run("value="+name, func(b *testing.B) {
			b.SetBytes(int64(len(value)))
			for b.Loop() {
				if skipValue(value, 0) != len(value) {
					b.Fatal("it ends elsewhere")
				}
			}
		})
	}
}
