package job

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stagetest"
)

// outputBench is the place of an output, and the directory of its job.
type outputBench struct {
	t         *testing.T
	dir, path string
}

func newOutputBench(t *testing.T) *outputBench {
	t.Helper()
	b := &outputBench{t: t, dir: filepath.Join(t.TempDir(), "job"), path: filepath.Join(t.TempDir(), "out.jsonl")}
	stagetest.Must(t, createDir(b.dir, "job", identity{}))
	return b
}

// check checks the file as the next start does.
func (b *outputBench) check() (*output, error) {
	return newOutput(os.Stdout, b.path, "rows.jsonl", b.dir, "llm_response", false)
}

func (b *outputBench) open() *output {
	b.t.Helper()
	o, err := b.check()
	if err == nil {
		err = o.open(b.t.Context())
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return o
}

// write writes the results of rows from first to last.
func (b *outputBench) write(o *output, first, last int) {
	b.t.Helper()
	stagetest.Value(o.Write([]byte(resultLines(first, last))))(b.t)
}

func resultLines(first, last int) string {
	var lines strings.Builder
	for i := first; i <= last; i++ {
		fmt.Fprintf(&lines, "{\"n\":%d,\"llm_response\":\"x\"}\n", i)
	}
	return lines.String()
}

func (b *outputBench) holds(want string) {
	b.t.Helper()
	got, err := os.ReadFile(b.path)
	if err != nil || string(got) != want {
		b.t.Fatalf("the file holds %q, want %q (%v)", got, want, err)
	}
}

// alone fails if anything is left beside the file.
func (b *outputBench) alone() {
	b.t.Helper()
	entries, err := os.ReadDir(filepath.Dir(b.path))
	if err != nil || len(entries) != 1 {
		b.t.Errorf("beside the file: %v (%v)", entries, err)
	}
}

func TestAnOutputGrowsInItsPlaceAndNeverShrinks(t *testing.T) {
	b := newOutputBench(t)
	o := b.open()
	b.holds("")
	b.write(o, 1, 2)
	b.holds(resultLines(1, 2)) // while it runs
	stagetest.Must(t, o.close(false))

	o = b.open() // resumed: the old one stays until the new one holds as much
	b.write(o, 1, 1)
	b.holds(resultLines(1, 2))
	b.write(o, 2, 2)
	b.write(o, 3, 5)
	b.holds(resultLines(1, 5))
	stagetest.Must(t, o.close(true))

	o = b.open() // ends early, before it has caught up
	b.write(o, 1, 4)
	stagetest.Must(t, o.close(false))
	b.holds(resultLines(1, 5))

	o = b.open() // fewer were asked for
	b.write(o, 1, 4)
	stagetest.Must(t, o.close(true))
	b.holds(resultLines(1, 4))
	b.alone()
}

func TestAnOutputIsWrittenAgainBesideItself(t *testing.T) {
	b := newOutputBench(t)
	o := b.open()
	b.write(o, 1, 3)
	stagetest.Must(t, o.rewriter()())
	b.write(o, 4, 5)
	b.holds(resultLines(1, 3))
	b.write(o, 6, 6)
	b.holds(resultLines(4, 6))
	stagetest.Must(t, o.close(true))
	b.alone()
	if _, err := b.check(); err != nil {
		t.Error(err)
	}
}

// A disk that is full fails a write at any of its bytes. A file whose descriptor is closed fails
// like it.
func TestAFailedWriteLeavesTheOldResults(t *testing.T) {
	b := newOutputBench(t)
	o := b.open()
	b.write(o, 1, 3)
	stagetest.Must(t, o.close(true))
	o = b.open()
	b.write(o, 1, 1)
	_ = o.file.Close()
	if _, err := o.Write([]byte(resultLines(2, 2))); err == nil || !strings.Contains(err.Error(), b.path+": ") || !strings.Contains(err.Error(), "the file is as it was") {
		t.Errorf("the write failed with %v", err)
	}
	_ = o.close(false)
	b.holds(resultLines(1, 3))
	b.alone()
}

func TestTheOutputOfAKilledRunIsKnownWhateverItHolds(t *testing.T) {
	for seed := range uint64(stagetest.Runs(0, 15, 50)) { //nolint:gosec // few
		random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // repeatable
		b := newOutputBench(t)
		rows, began := 1+random.IntN(20), random.IntN(10)
		if began > 0 { // an earlier run ended by itself
			o := b.open()
			b.write(o, 1, began)
			stagetest.Must(t, o.close(false))
		}
		o := b.open()
		for n := range rows {
			b.write(o, n+1, n+1)
			if random.IntN(3) == 0 {
				o.noted = time.Time{} // a second has passed
			}
		}
		cut := resultLines(1, max(rows, began)) // a kill, in the middle of a write
		if o.placed {
			cut = cut[:len(cut)-random.IntN(5)]
			stagetest.Must(t, os.Truncate(b.path, int64(len(cut))))
			if o.note(true) == nil && len(cut) < len(resultLines(1, rows)) { // a note is of what is written
				*o.whole = *newContent()
				_ = o.note(true)
			}
		}
		b.holds(cut)
		if _, err := b.check(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		stagetest.Must(t, os.WriteFile(b.path, []byte(cut+"\nnote\n"), 0o600))
		if _, err := b.check(); err == nil {
			t.Fatalf("seed %d: a foreign line would be lost", seed)
		}
		_ = o.file.Close()
	}
}

func TestAnOutputThatOthersChangeMeanwhileIsLeft(t *testing.T) {
	b := newOutputBench(t)
	o := b.open()
	b.write(o, 1, 2)
	stagetest.Must(t, o.close(true))
	o = b.open()
	stagetest.Must(t, os.WriteFile(b.path, []byte("mine\n"), 0o600))
	if _, err := o.Write([]byte(resultLines(1, 2))); err == nil || !strings.Contains(err.Error(), "another program") {
		t.Errorf("written: %v", err)
	}
	_ = o.close(false)
	b.holds("mine\n")
	b.alone()
}

func TestAFileThatAppearsMeanwhileIsLeftAlone(t *testing.T) {
	b := newOutputBench(t)
	o := stagetest.Value(b.check())(t)
	stagetest.Must(t, os.WriteFile(b.path, []byte("mine\n"), 0o600))
	if err := o.open(t.Context()); err == nil || !strings.Contains(err.Error(), "another program") {
		t.Errorf("opened: %v", err)
	}
	b.holds("mine\n")
	b.alone()
}

func TestAnOutputThatIsGoneAtTheEndIsAnError(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"removed": os.Remove,
		"replaced": func(path string) error {
			return errors.Join(os.Remove(path), os.WriteFile(path, []byte(resultLines(1, 3)), 0o600))
		},
		"truncated": func(path string) error { return os.Truncate(path, 3) },
	} {
		b := newOutputBench(t)
		o := b.open()
		b.write(o, 1, 2)
		stagetest.Must(t, change(b.path))
		b.write(o, 3, 3)
		if err := o.close(true); err == nil || !strings.Contains(err.Error(), "another program has") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnOutputKeepsItsPermissions(t *testing.T) {
	b := newOutputBench(t)
	stagetest.Must(t, os.WriteFile(b.path, nil, 0o640))
	o := b.open()
	b.write(o, 1, 1)
	stagetest.Must(t, o.close(true))
	if info, err := os.Stat(b.path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v (%v)", info.Mode(), err)
	}
}

func TestNotesOfOutputsAreBounded(t *testing.T) {
	n := outputNotes{t.TempDir()}
	for i := range 3 * notesMax {
		stagetest.Must(t, n.add(outputNote{Path: "a", Sum: fmt.Sprint(i)}))
	}
	if got, err := n.read(); err != nil || len(got) != notesMax || got[notesMax-1].Sum != fmt.Sprint(3*notesMax-1) {
		t.Errorf("%d notes, the last is %v", len(got), got[len(got)-1])
	}
}

// The options of the run that was killed are not those of the next, and are not noted.
func TestATableOfAKilledRunIsKnownWhereverItEnds(t *testing.T) {
	const table = "text,llm_response,llm_response_usage_prompt_tokens,llm_response_usage_completion_tokens,llm_response_usage_total_tokens," +
		"llm_response_usage_cost,llm_response_model,llm_response_error_reason,llm_response_error\n" +
		"one,\"with \"\"quotes\"\",\na comma and lines\n\",1,1,2,,m,,\n" +
		"two,x,1,1,2,,m,,\n"
	flat := strings.NewReplacer("text,llm_response,", "\"a b\",llm_response,llm_response.a,", ",\na comma", ",\na, comma", "\",1,1", "\",x,1,1", "two,x", "two,x,y").Replace(table)
	for name, whole := range map[string]string{
		"commas": table, "semicolons": strings.ReplaceAll(table, ",", ";"), "a mark": byteOrderMark + table, "flat, with a mark": byteOrderMark + flat,
		"a character of the names": underscores(t, table),
	} {
		t.Run(name, func(t *testing.T) { killedTable(t, whole) })
	}
}

// underscores returns a table whose columns are separated by underscores.
func underscores(t *testing.T, table string) string {
	t.Helper()
	records := stagetest.Value(csv.NewReader(strings.NewReader(table)).ReadAll())(t)
	var b strings.Builder
	out := csv.NewWriter(&b)
	out.Comma = '_'
	stagetest.Must(t, out.WriteAll(records))
	return b.String()
}

func killedTable(t *testing.T, whole string) {
	t.Helper()
	b := newOutputBench(t)
	b.path += ".csv"
	notes := outputNotes{b.dir}
	each := stagetest.Stride(5)
	for cut := len(whole) % each; cut <= len(whole); cut += each {
		noted := 0 // when it was empty, or later
		if cut > 150 && cut < len(whole)-2 {
			noted = cut - 2
		}
		sum := sha256.Sum256([]byte(whole[:noted]))
		if err := notes.add(outputNote{Path: b.path, Bytes: int64(noted), Sum: hex.EncodeToString(sum[:]), Growing: true}); err != nil {
			t.Fatal(err)
		}
		stagetest.Must(t, os.WriteFile(b.path, []byte(whole[:cut]), 0o600))
		o, err := b.check()
		if err != nil {
			t.Fatalf("cut after %d bytes: %v", cut, err)
		}
		if most := int64(strings.Count(whole[:cut], "\n")); o.wanted > most || cut == len(whole) && o.wanted != most {
			t.Errorf("cut after %d bytes: %d lines", cut, o.wanted)
		}
	}
	for _, foreign := range []string{whole + "note\n", whole + "a,b\n", strings.Replace(whole, "llm_response_model", "model", 1)} {
		stagetest.Must(t, os.WriteFile(b.path, []byte(foreign), 0o600))
		if _, err := b.check(); err == nil {
			t.Errorf("%q would be lost", foreign)
		}
	}
}

// wholeWrites fails if a write ends within a result.
type wholeWrites struct{ t *testing.T }

func (w wholeWrites) Write(p []byte) (int, error) {
	if !bytes.HasSuffix(p, []byte("|\n")) {
		w.t.Errorf("a write of %d bytes ends within a result", len(p))
	}
	return len(p), nil
}

func TestResultsAreWrittenAsAWhole(t *testing.T) {
	p := &Pipeline{Format: func(w io.Writer, r stored.Result) error {
		_, err := w.Write(append(r.Body, "\n|\n"...)) // longer than the body, as CSV is
		return err
	}}
	out := bufio.NewWriterSize(wholeWrites{t}, 64)
	for size := range 200 {
		stagetest.Value(p.writeResult(t.Context(), out, stored.Result{Body: bytes.Repeat([]byte("x"), size)}))(t)
	}
	stagetest.Must(t, out.Flush())
}

// The file of a summary is replaced at the end, whatever it holds.
func TestASummaryReplacesNeitherTheInputNorTheResults(t *testing.T) {
	b := newOutputBench(t)
	dir := filepath.Dir(b.path)
	input, link := filepath.Join(dir, "in.jsonl"), filepath.Join(dir, "link")
	stagetest.Must(t, os.WriteFile(input, []byte("{}\n"), 0o600))
	stagetest.Must(t, os.Symlink(b.path, link))
	out := stagetest.Value(b.check())(t)
	for path, want := range map[string]string{
		input: "that is the input", b.path: "that is the file of -o", link: "that is the file of -o", dir: "that is a directory",
		filepath.Join(dir, "none", "s.json"): "no such file",
	} {
		if err := checkSummary(path, input, out); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	for _, path := range []string{"", filepath.Join(dir, "s.json")} {
		stagetest.Must(t, checkSummary(path, input, out))
	}
}

func TestTheWaitForTheReaderOfANamedPipeEnds(t *testing.T) {
	b := newOutputBench(t)
	stagetest.Must(t, syscall.Mkfifo(b.path, 0o600))
	ctx, cancel := context.WithCancelCause(t.Context())
	opened := make(chan error, 1)
	out := stagetest.Value(b.check())(t)
	go func() { opened <- out.open(ctx) }()
	cause := errors.New("stopped")
	cancel(cause)
	if err := <-opened; !errors.Is(err, cause) {
		t.Errorf("got %v, want the cause of the stop", err)
	}
	reader := stagetest.Value(os.OpenFile(b.path, os.O_RDONLY|syscall.O_NONBLOCK, 0))(t) // so that the goroutine ends
	t.Cleanup(func() { stagetest.Must(t, reader.Close()) })
}
