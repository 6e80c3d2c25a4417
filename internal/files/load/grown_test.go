package load

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/stagetest"
	"pgregory.net/rapid"
)

// growing is a file of rows that others write.
type growing struct {
	t    *testing.T
	name string
}

func newGrowing(t *testing.T, name, content string) growing {
	t.Helper()
	g := growing{t, filepath.Join(t.TempDir(), name)}
	g.holds(content)
	return g
}

func (g growing) holds(content string) {
	g.t.Helper()
	stagetest.Must(g.t, os.WriteFile(g.name, []byte(content), 0o600))
}

func (g growing) open() *Source {
	g.t.Helper()
	s := stagetest.Value(OpenSource(g.t.Context(), nil, g.name, rowfile.Spec{}))(g.t)
	g.t.Cleanup(func() { _ = s.File.Close() })
	return s
}

// rows returns the rows of the source, as they are loaded.
func (g growing) rows(s *Source) (rows []string) {
	g.t.Helper()
	reader := s.Reader(slog.New(slog.DiscardHandler), RowBytesMax)
	for {
		m, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return rows
		}
		if err != nil {
			g.t.Fatal(err)
		}
		rows = append(rows, strings.TrimRight(string(m.Data), "\r\n")) // what is shown of a bad row may end with its line
	}
}

func TestAGrownSourceIsTheSameOne(t *testing.T) {
	var zipped strings.Builder
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write([]byte("{}\n"))
	_ = z.Close()
	for _, tt := range []struct {
		name, input, then, now string
		same                   bool
		why                    string
	}{
		{"lines", "a.jsonl", "{}\n", "{}\n{}\n", true, ""},
		{"from nothing", "a.jsonl", "", "{}", true, ""},
		{"after a line without an end", "a.jsonl", "{}\n{}", "{}\n{}\n{}", true, ""},
		{"after one, with another end", "a.jsonl", "{}", "{}\r\n{}", true, ""},
		{"within the end of a line", "a.jsonl", "{}\r", "{}\r\n{}", true, ""},
		{"by an end of a line", "a.jsonl", "{}", "{}\n", true, ""},
		{"by blank lines", "a.jsonl", "{}\n", "{}\n\n\n", true, ""},
		{"records", "a.csv", "a\n\"x\ny\"\n", "a\n\"x\ny\"\n\"\n\"\n", true, ""},
		{"after quotes", "a.csv", "a\n\"x\ny\"", "a\n\"x\ny\"\nz\n", true, ""},
		{"a column", "a.csv", "a\nx", "a\nx,y\n", false, "its last line was read as a row"},
		{"a field", "a.csv", "a\n\"x\"", "a\n\"x\"\"y\"\n", false, "its last line was read as a row"},
		{"a return", "a.csv", "a\nx\r", "a\nx\r\r\n", false, "its last line was read as a row"},
		{"a row", "a.jsonl", "{}\n{\"a\"", "{}\n{\"a\":1}\n", false, "its last line was read as a row"},
		{"space", "a.jsonl", "{}", "{} \n", false, "its last line was read as a row"},
		{"shorter", "a.jsonl", "{}\n{}\n", "{}\n", false, "it is shorter than it was"},
		{"as long", "a.jsonl", "{}\n[]\n", "{}\n{}\n", false, ""},
		{"at the front", "a.jsonl", "{\"a\":1}\n", "{}\n{\"a\":1}\n", false, "what was there before has changed"},
		{"an array", "a.json", "[{}]", "[{},{}]", false, "a JSON array cannot grow"},
		{"compressed", "a.gz", zipped.String(), zipped.String() + zipped.String(), false, "a compressed file cannot grow"},
	} {
		g := newGrowing(t, tt.input, tt.then)
		then := g.open()
		rows := g.rows(then)
		g.holds(tt.now)
		now := g.open()
		same, why, err := now.Extends(t.Context(), then.Bytes, then.Sum)
		if same != tt.same || err != nil || (tt.why == "") != (why == "") || !strings.Contains(why, tt.why) {
			t.Errorf("%s: same %v, because %q (%v)", tt.name, same, why, err)
		}
		if same && !slicesHasPrefix(g.rows(now), rows) {
			t.Errorf("%s: rows that were there have changed", tt.name)
		}
	}
}

func slicesHasPrefix(rows, prefix []string) bool {
	return len(rows) >= len(prefix) && strings.Join(rows[:len(prefix)], "|") == strings.Join(prefix, "|")
}

// Whatever is cut off at whatever place: if the rest is taken as growth, the rows of the first
// part are those of the whole.
func TestGrowthChangesNoRow(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		input := rapid.SampledFrom([]string{"a.csv", "a.jsonl"}).Draw(rt, "input")
		text := rapid.StringOfN(rapid.SampledFrom([]rune("a1,\"\n\r{}: ")), 0, 40, -1).Draw(rt, "text")
		cut := rapid.IntRange(0, len(text)).Draw(rt, "cut")
		name := filepath.Join(dir, input)
		read := func(content string) (*Source, []string) {
			stagetest.Must(t, os.WriteFile(name, []byte(content), 0o600))
			s, err := OpenSource(t.Context(), nil, name, rowfile.Spec{})
			if err != nil {
				return nil, nil
			}
			return s, growing{t, name}.rows(s)
		}
		then, before := read(text[:cut])
		if then == nil {
			return
		}
		defer then.File.Close() //nolint:errcheck // read only
		now, after := read(text)
		if now == nil {
			return
		}
		defer now.File.Close() //nolint:errcheck // read only
		same, why, err := now.Extends(t.Context(), then.Bytes, then.Sum)
		if err != nil || same && !slicesHasPrefix(after, before) {
			rt.Fatalf("%q and then %q: rows %q became %q (%v)", text[:cut], text[cut:], before, after, err)
		}
		if text[:cut] != "" && cut < len(text) && text[cut-1] == '\n' && !same {
			rt.Fatalf("%q and then %q: %s", text[:cut], text[cut:], why)
		}
	})
}

func TestWhatIsAddedMeanwhileIsNotRead(t *testing.T) {
	g := newGrowing(t, "a.jsonl", "{}\n")
	s := g.open()
	if s.Grown() {
		t.Error("grown too early")
	}
	g.holds("{}\n{\"a\":1}\n{\"ha")
	if rows := g.rows(s); len(rows) != 1 || !s.Grown() {
		t.Errorf("rows %q, grown: %v", rows, s.Grown())
	}
	if columns, err := s.AllColumns(t.Context()); err != nil || len(columns) != 0 {
		t.Errorf("columns %q (%v)", columns, err)
	}
}

func TestALineThatIsBeingWrittenIsReadToItsEnd(t *testing.T) {
	for _, tt := range []struct {
		content string
		from    int64
		want    int64
	}{
		{"", 0, 0},
		{"{}\n", 3, 3},
		{"{}\n{}\n", 3, 3},
		{"{}\n{}\n", 4, 6},
		{"{}\n{}\n{}", 4, 6},
		{"{}\n{}", 4, 4},
		{"{}\n{}", 5, 5},
		{"{" + strings.Repeat(" ", 200_000) + "}\n{}", 5, 200_003},
	} {
		file := stagetest.Value(os.Open(newGrowing(t, "a", tt.content).name))(t)
		if got, err := lineEnd(file, tt.from); got != tt.want || err != nil {
			t.Errorf("%.10q from %d: %d, want %d (%v)", tt.content, tt.from, got, tt.want, err)
		}
		s := &Source{Name: "a", file: file}
		if err := s.countLines(t.Context(), rowfile.Layout{}, tt.from); err != nil || s.Bytes != tt.want {
			t.Errorf("%.10q of size %d: %d bytes read, want %d (%v)", tt.content, tt.from, s.Bytes, tt.want, err)
		}
		_ = file.Close()
	}
}

func TestASourceTellsWhatItsSumIsOf(t *testing.T) {
	for _, content := range []string{"", "{}", "{}\n{}\n", strings.Repeat("{}\n", 100_000)} {
		s := newGrowing(t, "a.jsonl", content).open()
		if sum := sha256.Sum256([]byte(content)); s.Sum != hex.EncodeToString(sum[:]) || s.Bytes != int64(len(content)) {
			t.Errorf("%.10q: %d bytes, sum %s", content, s.Bytes, s.Sum)
		}
	}
}
