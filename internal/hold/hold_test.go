package hold

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the table of docs/holds.md")

// The page has the very table: whoever adds a kind says what it means and what to do about it, and runs make docs.
func TestThePageHasEachKind(t *testing.T) {
	const begin, end = "<!-- kinds: made by make docs -->\n", "<!-- end of kinds -->"
	path := filepath.Join("..", "..", "docs", "holds.md")
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(page), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatal("the page has no place for the table")
	}
	want := head + begin + Markdown() + end + tail
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(page) != want {
		t.Error("docs/holds.md does not have the table of kinds.go: run make docs")
	}
}

// A kind without a line of the table would be shown without a meaning, and without what to do.
func TestEachKindHasALineOfItsOwn(t *testing.T) {
	source, err := os.ReadFile("kinds.go")
	if err != nil {
		t.Fatal(err)
	}
	constants := strings.Count(string(source), " Kind = \"")
	if got := len(Kinds()); got != constants {
		t.Errorf("%d kinds have a line, and there are %d constants", got, constants)
	}
	seen := make(map[Kind]bool)
	for _, e := range table {
		if seen[e.Kind] || e.Means == "" || e.Do == "" || e.Class == "" || strings.Contains(e.Means+e.Do, "|") {
			t.Errorf("%s: twice, or incomplete: %+v", e.Kind, e)
		}
		seen[e.Kind] = true
	}
}

// The remedy is on the stream that is full, by its name: the setting of its size changes no stream that exists.
func TestARemedyNamesWhatIsInTheWay(t *testing.T) {
	places := Places{Input: "IN", Result: "OUT", Audit: "LOG", Journal: "KEPT", Bucket: "OBJ_LARGE", DeadLetter: "dead.rows"}
	for _, tt := range []struct {
		kind    Kind
		why, do string
	}{
		{Results, "append to results.stage.0.rows: refused by the server: maximum bytes exceeded (10077)", "nats stream edit OUT --max-bytes="},
		{Results, "append to results.stage.0.rows: refused by the server: maximum messages exceeded (10077)", "nats stream edit OUT --max-msgs=-1"},
		{Audit, "stream LOG: maximum bytes exceeded", "nats stream edit LOG --max-bytes="},
		{Streams, "STAGE_RESULT_STREAM: stream OUT was changed: drops old results when it is full: set discard to new, then a full stream makes the stage wait (nats stream edit OUT --discard=new)", "nats stream edit OUT --discard=new; "},
		{Streams, "stream OUT was changed: a (nats stream edit OUT --max-age=0s); b (nats stream edit OUT --allow-direct)", "nats stream edit OUT --max-age=0s; nats stream edit OUT --allow-direct: "},
		{Audit, "refused by the server: no stream captures the subject, or it has no leader at the moment", "nats stream info LOG: its subjects"},
		{ObjectStore, "row 7: put its body: refused by the server: maximum bytes exceeded (10077)", "nats stream edit OBJ_LARGE --max-bytes="},
		{DeadLetter, "maximum bytes exceeded", "stores the subject dead.rows"},
		{Store, "the disk is full: 0 B free at /data: make room, at least 16 MiB", "free space on the disk that the reason names"},
		{Store, "a write to the store in /data has failed, and its server is started again: write 1.blk: no space left on device", "free space on the disk"},
		{Store, "a write to the store in /data has failed, and its server is started again: write 1.blk: input/output error", "look at the disk"},
		{Ownership, "the store in /data: embedded server: start again: JetStream did not start", "look at the disk"},
		{Results, "insufficient storage resources available (10047)", "max_file_store"},
		{Results, "write /data/js: no space left on device", "free space on the disk"},
		{Ownership, "nats: permissions violation: Permissions Violation for Publish to \"$JS.API.CONSUMER.INFO.IN.stage-0\"", "stage setup --print-permissions"},
		{Connection, "not connected to NATS", "start the NATS server"},
		{Ownership, "the connection to NATS was lost", "start the NATS server"},
		{Ownership, "look at stream OUT: stream not found", "stage setup"},
		{Undelivered, "3 rows wait in stream IN, and consumer stage-0 delivers none: it is paused for 1h0m0s", "nats consumer resume IN"},
		{Ownership, "context deadline exceeded", "nats server report jetstream"},
		{Stalled, "no progress for 25s although rows wait: 2 rows pending", "nats stream get IN SEQUENCE"},
		{Results, "something new", "change what the reason names"},
	} {
		h := OfPartition(0, tt.kind)
		h.Why = tt.why
		if h.Advise(places); !strings.Contains(h.Do, tt.do) {
			t.Errorf("%s\nto do: %q, want %q in it", tt.why, h.Do, tt.do)
		}
		if lost := strings.Contains(tt.why, "drops old"); lost == strings.Contains(h.Do, "no row is lost") && (lost || strings.Contains(tt.why, "maximum bytes")) {
			t.Errorf("%s\nto do: %q: rows are lost only by a stream that drops them", tt.why, h.Do)
		}
		if strings.Contains(tt.why, "maximum bytes") && strings.Contains(h.Do, "STAGE_") {
			t.Errorf("%s\nto do: %q: no setting changes a stream that exists", tt.why, h.Do)
		}
	}
}

// Since is when a list first had the hold, as long as each list has it.
func TestAMemoryKnowsSinceWhen(t *testing.T) {
	at := func(seconds int) time.Time { return time.Date(2026, 1, 1, 0, 0, seconds, 0, time.UTC) }
	var m Memory
	for second, tt := range []struct {
		kind Kind
		want time.Time
	}{{Audit, at(0)}, {Audit, at(0)}, {Results, at(2)}, {Audit, at(3)}} {
		l := List{{Scope: Stage, Kind: tt.kind}, {Scope: Stage, Kind: Outage, Since: at(59)}}
		if m.Fill(l, at(second)); !l[0].Since.Equal(tt.want) || !l[1].Since.Equal(at(59)) {
			t.Errorf("second %d: %s since %v, want %v; one that is known became %v", second, tt.kind, l[0].Since, tt.want, l[1].Since)
		}
	}
}

// A list that is shown is bounded, and keeps what is not simply elsewhere.
func TestAListThatIsShownIsBounded(t *testing.T) {
	var l List
	for p := range 300 {
		l = append(l, OfPartition(p, Standby))
	}
	l = append(l, OfPartition(300, Results), OfPartition(301, Results), OfPartition(302, Window))
	if shown := l.Shown(); len(shown) != 3 || l.Text() != "results, window" || len(l) != 303 {
		t.Errorf("shown %v, as text %q, want the 3 that are not with others", shown, l.Text())
	}
	for p := range 300 {
		l[p].Kind = Window
	}
	if shown := l.Shown(); len(shown) != 100 {
		t.Errorf("%d are shown, want 100", len(shown))
	}
}
