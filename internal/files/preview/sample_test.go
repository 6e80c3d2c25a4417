package preview_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/files/preview"
)

// A sample has as many rows as it should, each once, in the order of the file. Each row has the
// same chance, and the same seed takes the same rows.
func TestASampleIsFair(t *testing.T) {
	const rows, taken, samples = 20, 5, 500
	var file strings.Builder
	for n := range rows {
		fmt.Fprintf(&file, "{\"n\":%d}\n", n)
	}
	sample := func(size int64, seed uint64) (lines []int64) {
		in := preview.Input{Name: "-", Stdin: strings.NewReader(file.String()), Rows: 1, Sample: size, Seed: seed}
		read, source, err := in.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer source.File.Close() //nolint:errcheck // a string
		for _, row := range read {
			lines = append(lines, row.Line)
		}
		return lines
	}
	chosen := make(map[int64]int)
	for seed := range uint64(samples) {
		lines := sample(taken, seed)
		if len(lines) != taken || !slices.IsSorted(lines) || len(slices.Compact(slices.Clone(lines))) != taken {
			t.Fatalf("seed %d: %v", seed, lines)
		}
		for _, line := range lines {
			chosen[line]++
		}
	}
	const fair = samples * taken / rows // 125; the standard deviation is 10
	for line := int64(1); line <= rows; line++ {
		if n := chosen[line]; n < fair-50 || n > fair+50 {
			t.Errorf("line %d is in %d of %d samples, want about %d", line, n, samples, fair)
		}
	}
	if !slices.Equal(sample(taken, 7), sample(taken, 7)) || slices.Equal(sample(taken, 7), sample(taken, 8)) {
		t.Error("the seed does not decide which rows are taken")
	}
	if all := sample(2*rows, 1); len(all) != rows {
		t.Errorf("%d rows of %d", len(all), rows)
	}
}
