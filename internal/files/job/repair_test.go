package job

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// placesBench has a job's rows, and results of them that a test plants.
type placesBench struct {
	*stagetest.Bench

	rows int // published
}

func newPlacesBench(t *testing.T) *placesBench {
	t.Helper()
	return &placesBench{Bench: stagetest.NewBench(t, nil)}
}

// row publishes a row of the job.
func (b *placesBench) row() (seq uint64) {
	b.T.Helper()
	b.rows++
	return b.Publish(&nats.Msg{Subject: ownRows, Data: []byte(`{}`), Header: nats.Header{streams.HeaderLoadRow: {fmt.Sprint(b.rows)}}})
}

// again publishes a row again, as a redrive of this version (place is not 0) or of an older one.
func (b *placesBench) again(of, place uint64) (seq uint64) {
	b.T.Helper()
	m := &nats.Msg{Subject: "rows." + loadID + "-redriven", Data: []byte(`{}`), Header: nats.Header{
		streams.HeaderRedriveOf: {auditlog.StateID("stage", "ROWS", 0, of)},
	}}
	if place > 0 {
		m.Header.Set(streams.HeaderReplaces, fmt.Sprint(place))
	}
	return b.Publish(m)
}

// answer stores the result of a row that was published on subject. With place 0 it has no header
// of its place.
func (b *placesBench) answer(seq uint64, subject string, failed bool, place uint64) (at uint64) {
	b.T.Helper()
	return b.answerAbove(-1, seq, subject, failed, place)
}

// answerAbove is answer in a stage that is not in stream order. low is the low-water mark that
// the result carries, or -1 for a stage in stream order.
func (b *placesBench) answerAbove(low int, seq uint64, subject string, failed bool, place uint64) (at uint64) {
	b.T.Helper()
	r := &stored.ResultRow{Seq: seq, Status: auditlog.RowSuccess, StateID: auditlog.StateID("stage", "ROWS", 0, seq), Source: "ROWS"}
	if failed {
		r.Status = auditlog.RowError
	}
	if place > 0 {
		r.Replaces = fmt.Sprint(place)
	}
	m := stagetest.Step{Result: r}.Message(b.T)
	m.Header.Set(streams.HeaderSourceSubject, subject)
	if low >= 0 {
		m.Header.Set(streams.HeaderLow, fmt.Sprint(low))
	}
	return b.Publish(m)
}

// open opens the places of the first limit rows, or of all if limit is 0.
func (b *placesBench) open(limit int) *places {
	b.T.Helper()
	p, err := openPlaces(b.T.Context(), b.JS, b.Cfg)
	if err == nil && limit > 0 {
		err = p.limitTo(b.T.Context(), int64(limit))
	}
	if err != nil {
		b.T.Fatal(err)
	}
	return p
}

const (
	ownRows      = "rows." + loadID
	redrivenRows = ownRows + "-redriven"
)

// TestEachRowHasOnePlace redrives rows at random, with headers of this version and without, and
// compares what is read with what was done.
func TestEachRowHasOnePlace(t *testing.T) {
	bench := newPlacesBench(t)
	for seed := range uint64(stagetest.Runs(0, 6, 20)) { //nolint:gosec // few
		b, random := &placesBench{Bench: bench.Renew(t)}, rand.New(rand.NewPCG(seed, 1))
		var rows []uint64
		want, newest := make(failedResults), make(map[uint64]answer)
		last := make(map[uint64]uint64) // by place: the last row there
		for range 40 {
			old := random.IntN(3) == 0
			failed := random.IntN(2) == 0
			if len(want) == 0 || random.IntN(2) == 0 {
				seq := b.row()
				at := b.answer(seq, ownRows, failed, 0)
				if rows, last[seq] = append(rows, seq), seq; failed {
					want[seq] = at
				}
				continue
			}
			var place uint64
			for place = range want {
				break
			}
			header, result := place, place
			if old {
				header, result = 0, 0
				if random.IntN(2) == 0 {
					result = last[place] // this version has answered what an older one has published
				}
			}
			seq := b.again(last[place], header)
			at := b.answer(seq, redrivenRows, failed, result)
			newest[place] = answer{at: at, row: seq}
			last[place] = seq
			delete(want, place)
			if failed {
				want[place] = at
			}
		}
		b.answer(b.Publish(&nats.Msg{Subject: "rows.foreign", Data: []byte(`{}`)}), "rows.foreign", true, 0)
		p := b.open(0)
		got, err := p.read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(got, want) || !maps.Equal(p.newest, newest) {
			t.Errorf("seed %d: got failures %v, newest %v, want %v, %v", seed, got, p.newest, want, newest)
		}
		limit := len(rows) / 2
		maps.DeleteFunc(want, func(place, _ uint64) bool { return limit == 0 || place > rows[limit-1] })
		if got, err = b.open(limit).read(t.Context()); limit > 0 && (err != nil || !maps.Equal(got, want)) {
			t.Errorf("seed %d: got failures %v of the first %d rows, want %v: %v", seed, got, limit, want, err)
		}
	}
}

func TestRowsThatArePublishedAgainArePending(t *testing.T) {
	b := newPlacesBench(t)
	for range 3 {
		b.answer(b.row(), ownRows, true, 0)
	}
	b.answer(b.again(1, 1), redrivenRows, true, 1) // row 4
	b.row()                                        // row 5, without a result
	b.again(4, 0)                                  // row 6: row 1 again, by an older version
	b.again(2, 2)
	b.again(3, 3)
	b.again(5, 5) // nothing that it could replace
	p := b.open(2)
	failed, err := p.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = p.findPending(t.Context(), func(place uint64) bool { _, has := failed[place]; return has })
	if want := map[uint64]uint64{1: 6, 2: 7}; err != nil || !maps.Equal(p.pending, want) {
		t.Errorf("got %v, %v, want %v: those of the first two rows", p.pending, err, want)
	}
	b.answer(5, ownRows, false, 0)
	b.answer(6, redrivenRows, false, 1)
	b.answer(7, redrivenRows, true, 2)
	if err := p.wait(t.Context()); err != nil || len(p.pending) > 0 {
		t.Errorf("%v is pending after its results came: %v", p.pending, err)
	}
}

// TestOnlyUnansweredRowsArePending has results that are not in stream order: rows above the
// low-water mark have theirs, and rows below the last one that was answered have none.
func TestOnlyUnansweredRowsArePending(t *testing.T) {
	b := newPlacesBench(t)
	for range 4 {
		b.row()
	}
	for i, seq := range []uint64{4, 2, 1, 3} {
		b.answerAbove([]int{0, 0, 2, 4}[i], seq, ownRows, true, 0)
	}
	for place := range uint64(4) {
		b.again(place+1, place+1) // rows 5 to 8
	}
	b.answerAbove(4, 8, redrivenRows, true, 4)
	b.answerAbove(4, 6, redrivenRows, false, 2)
	b.row() // row 9, not answered
	b.answerAbove(4, b.row(), ownRows, false, 0)
	p := b.open(0)
	failed, err := p.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = p.findPending(t.Context(), func(place uint64) bool { _, has := failed[place]; return has })
	if want := map[uint64]uint64{1: 5, 3: 7}; err != nil || !maps.Equal(p.pending, want) || p.rows != 5 {
		t.Errorf("got %v of %d rows, %v, want %v of 5", p.pending, p.rows, err, want)
	}
}

func TestALimitIsOfTheFirstRowsOfTheFile(t *testing.T) {
	bench := newPlacesBench(t)
	for _, tt := range []struct {
		limit int
		rows  int64  // with a result
		until uint64 // or 0 for no limit
	}{
		{1, 1, 1}, {2, 1, 2}, {3, 2, 5}, {4, 3, 6}, {5, 4, 9}, {6, 4, 0},
	} {
		b := &placesBench{Bench: bench.Renew(t)}
		for seq := range uint64(9) {
			switch seq + 1 {
			case 3, 4, 7, 8: // between the rows of the file are others
				b.again(1, 1)
			default:
				b.row()
			}
		}
		for _, seq := range []uint64{9, 6, 5, 1} {
			b.answerAbove(1, seq, ownRows, true, 0)
		}
		p := b.open(tt.limit)
		failed := stagetest.Value(p.read(t.Context()))(t)
		if tt.until == 0 {
			tt.until = p.until // of any number
		}
		if p.until != tt.until || p.rows != tt.rows || int64(len(failed)) != tt.rows {
			t.Errorf("limit %d: until row %d, %d rows, failed %v, want row %d, %d rows", tt.limit, p.until, p.rows, failed, tt.until, tt.rows)
		}
	}
}
