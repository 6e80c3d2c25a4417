package load

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/stagetest"
)

// Loading a file again with other types or another delimiter is another load.
func TestALoadIsNamedAfterTheContentAndItsLayout(t *testing.T) {
	name := filepath.Join(t.TempDir(), "rows.csv")
	stagetest.Must(t, os.WriteFile(name, []byte("a;b\n1;2\n"), 0o600))
	ids := map[string]string{}
	for _, spec := range []rowfile.Spec{{}, {CSVTypes: "auto"}, {Delimiter: ";"}, {Delimiter: ";", CSVTypes: "auto"}, {Delimiter: "tab"}} {
		s := stagetest.Value(OpenSource(t.Context(), nil, name, spec))(t)
		_ = s.File.Close()
		if before, ok := ids[s.ID()]; ok {
			t.Errorf("%+v has the id of %s", spec, before)
		}
		ids[s.ID()] = s.Layout.String()
		if s.Layout.String() == "csv" && s.ID() != s.Sum {
			t.Error("the load of an earlier version is not continued")
		}
	}
}

// The rows of most files are the same in both readings, and so is their load.
func TestAStrictReadingIsAnotherLoadWhereItHasOtherRows(t *testing.T) {
	for text, differ := range map[string]bool{"a,b\n1,\"2\"\n": false, "a,b\n1,2\"\n": true} {
		name := filepath.Join(t.TempDir(), "rows.csv")
		stagetest.Must(t, os.WriteFile(name, []byte(text), 0o600))
		ids := map[bool]string{}
		for _, strict := range []bool{false, true} {
			s := stagetest.Value(OpenSource(t.Context(), nil, name, rowfile.Spec{CSVStrict: strict}))(t)
			_ = s.File.Close()
			ids[strict] = s.ID()
			if strict && s.ID() != s.Sum {
				t.Errorf("%q: the load of an earlier version, which read it strictly, is not continued", text)
			}
		}
		if (ids[false] != ids[true]) != differ {
			t.Errorf("%q: ids %v, want two different ones: %t", text, ids, differ)
		}
	}
}

// A pipe's first row may be long in coming.
func TestFirstColumnsWaitForTheFirstRow(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		for _, tt := range []struct {
			rows string
			want []string
		}{{"bad\n{\"b\":1,\"a\":2}\n{\"c\":1}\n", []string{"b", "a"}}, {"bad\n", nil}, {"x,y\n1,2\n", []string{"x", "y"}}} {
			s, err := OpenSource(t.Context(), strings.NewReader(tt.rows), "-", rowfile.Spec{})
			if err != nil {
				t.Fatal(err)
			}
			rows := s.Reader(slog.New(slog.DiscardHandler), 1000)
			var got []string
			known := false
			go func() {
				got, _, err = rows.FirstColumns(t.Context())
				known = true
			}()
			synctest.Wait()
			if known {
				t.Fatal("columns were known before a row was read")
			}
			for i := 0; ; i++ {
				if _, err := rows.Read(); err != nil {
					break
				}
			}
			synctest.Wait()
			if !known || err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("%q: got %q, %v; want %q", tt.rows, got, err, tt.want)
			}
		}
	})
}

func TestAllColumnsStopWithTheirContext(t *testing.T) {
	name := filepath.Join(t.TempDir(), "rows.jsonl")
	stagetest.Must(t, os.WriteFile(name, []byte("{}\n"), 0o600))
	s := stagetest.Value(OpenSource(t.Context(), nil, name, rowfile.Spec{}))(t)
	defer s.File.Close() //nolint:errcheck // read only
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(os.ErrClosed)
	if _, err := s.AllColumns(ctx); err != os.ErrClosed { //nolint:errorlint // as it was given
		t.Errorf("got %v", err)
	}
}

func TestAFormatThatIsNotKnownIsAnErrorOfTheUser(t *testing.T) {
	s := stagetest.Value(OpenSource(t.Context(), strings.NewReader("text\ngood\n"), "-", rowfile.Spec{}))(t)
	if _, err := s.Reader(slog.New(slog.DiscardHandler), 1000).Read(); !config.IsInvalid(err) || !strings.Contains(err.Error(), "give --format csv") {
		t.Errorf("got %v", err)
	}
}
