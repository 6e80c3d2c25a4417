package job

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/llm-stage/stage/internal/files/load"
	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/stagetest"
)

var discardLog = slog.New(slog.DiscardHandler)

// Where rows fan out the replies are arrays, so a job has but one way. How many elements a row
// may have, and what becomes of those that fail, may change: rows that failed for it can be
// retried.
func TestAJobDependsOnItsFanOut(t *testing.T) {
	of := func(environ ...string) identity {
		t.Helper()
		id, err := newIdentity(stagetest.Config(t, environ...), &load.Source{Name: "a.jsonl", Sum: "sum"})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	parts := of("STAGE_FOREACH", "parts")
	for _, then := range []identity{of(), of("STAGE_FOREACH", "others")} {
		if got := then.differences(parts); !slices.Equal(got, []string{"the array that fans out (STAGE_FOREACH)"}) {
			t.Errorf("%q and then %q: got %q", then.Foreach, parts.Foreach, got)
		}
	}
	if got := parts.differences(of("STAGE_FOREACH", "parts", "STAGE_FOREACH_MAX", "9", "STAGE_FOREACH_ERRORS", "keep")); got != nil {
		t.Errorf("other bounds: got %q", got)
	}
}

// Each of them makes other rows of the same bytes.
func TestAJobDependsOnHowItsInputIsRead(t *testing.T) {
	cfg := stagetest.Config(t)
	of := func(spec rowfile.Spec) identity {
		t.Helper()
		layout := stagetest.Value(spec.Layout("a.csv"))(t)
		id := stagetest.Value(newIdentity(cfg, &load.Source{Name: "a.csv", Sum: "sum", Layout: layout}))(t)
		return id
	}
	csv := of(rowfile.Spec{})
	earlier := csv
	earlier.Format = ""
	for _, tt := range []struct {
		name      string
		then, now identity
		want      []string
	}{
		{"what is the default may be said", csv, of(rowfile.Spec{Format: "csv", Delimiter: ",", CSVTypes: "string"}), nil},
		{"format", csv, of(rowfile.Spec{Format: "jsonl"}), []string{"the input's format"}},
		{"delimiter", csv, of(rowfile.Spec{Delimiter: ";"}), []string{"the delimiter"}},
		{"types", csv, of(rowfile.Spec{CSVTypes: "auto"}), []string{"the types of CSV values"}},
		{"no longer types", of(rowfile.Spec{CSVTypes: "auto"}), csv, []string{"the types of CSV values"}},
		{"a job of an earlier version", earlier, csv, nil},
		{"a job of an earlier version, now with types", earlier, of(rowfile.Spec{CSVTypes: "auto"}), []string{"the types of CSV values"}},
		{"an array, which an earlier version read as lines", earlier, of(rowfile.Spec{Format: "json"}), []string{"the input's format"}},
	} {
		if got := tt.then.differences(tt.now); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// An earlier version read quotes strictly, and noted nothing of it.
func TestAJobDependsOnTheReadingOfQuotesWhereItMatters(t *testing.T) {
	cfg := stagetest.Config(t)
	of := func(in *load.Source, strict bool) identity {
		t.Helper()
		in.Layout = rowfile.Layout{Format: rowfile.FormatCSV, Delimiter: ',', Strict: strict}
		id := stagetest.Value(newIdentity(cfg, in))(t)
		return id
	}
	for _, stray := range []bool{false, true} {
		in := &load.Source{Name: "a.csv", Sum: "sum", StrayQuotes: stray}
		for _, then := range []bool{false, true} {
			for _, now := range []bool{false, true} {
				err := of(in, then).compare(t.Context(), of(in, now), in, "dir", "job")
				if refused := err != nil; refused != (stray && then != now) {
					t.Errorf("strict %t, then %t, stray quotes %t: got %v", then, now, stray, err)
				}
			}
		}
	}
}
