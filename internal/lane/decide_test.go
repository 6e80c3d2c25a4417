package lane

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm/batchapi"
	"pgregory.net/rapid"
)

func TestWhichRowsGoLive(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		unsettled
		live bool
	}{
		"many of many":           {unsettled{rows: 1000, again: 200}, false},
		"few":                    {unsettled{rows: 1000, again: 10}, true},
		"more than few":          {unsettled{rows: 1000, again: 11}, false},
		"one percent":            {unsettled{rows: 5000, again: 50}, true},
		"more than one percent":  {unsettled{rows: 5000, again: 51}, false},
		"third try":              {unsettled{tries: 1, rows: 1000, again: 200}, false},
		"fourth try":             {unsettled{tries: 2, rows: 1000, again: 200}, true},
		"before half of the way": {unsettled{rows: 1000, again: 200, from: now.Add(-time.Hour), deadline: now.Add(61 * time.Minute)}, false},
		"half of the way":        {unsettled{rows: 1000, again: 200, from: now.Add(-time.Hour), deadline: now.Add(time.Hour)}, true},
		"too late":               {unsettled{rows: 1000, again: 200, from: now.Add(-time.Hour), deadline: now.Add(-time.Minute)}, true},
	} {
		if got := c.unsettled.live(now); got != c.live {
			t.Errorf("%s: got %v, want %v", name, got, c.live)
		}
	}
}

func TestWhatBecomesOfARefusedBatch(t *testing.T) {
	for name, c := range map[string]struct {
		refusal batchapi.Refusal
		rows    int
		do      remedy
		bad     []int
	}{
		"no room":           {batchapi.Refusal{Capacity: true, Lines: []int{1}}, 100, remedyWait, nil},
		"named":             {batchapi.Refusal{Lines: []int{100, 1, 1}}, 100, remedyFail, []int{0, 99}},
		"named beyond it":   {batchapi.Refusal{Lines: []int{0, -1, 101}}, 100, remedySplit, nil},
		"not named":         {batchapi.Refusal{}, 100, remedySplit, nil},
		"not named, of few": {batchapi.Refusal{}, 10, remedyLive, nil},
		"named, of few":     {batchapi.Refusal{Lines: []int{3}}, 10, remedyFail, []int{2}},
	} {
		do, bad := remedyFor(&c.refusal, c.rows)
		if do != c.do || !slices.Equal(bad, c.bad) {
			t.Errorf("%s: got %d %v, want %d %v", name, do, bad, c.do, c.bad)
		}
	}
}

func TestTheCapacityIsLearned(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	var c capacity
	if got := c.room(1000, now); got != math.MaxInt64 {
		t.Errorf("nothing is known: room for %d", got)
	}
	c.refused(1000, 400, true, 0, now)
	if got := c.room(0, now); got != 0 {
		t.Errorf("right after a refusal: room for %d", got)
	}
	now = now.Add(capacityWaitFirst)
	if got := c.room(1000, now); got != 200 {
		t.Errorf("half of what was refused: room for %d", got)
	}
	if got := c.room(1300, now); got != 0 {
		t.Errorf("above it: room for %d", got)
	}
	c.accepted(1300, now)
	if got := c.room(1250, now); got != 50 {
		t.Errorf("more was accepted: room for %d", got)
	}
	c.refused(0, 1, false, 10*time.Minute, now)
	if got := c.room(0, now.Add(9*time.Minute)); got != 0 {
		t.Errorf("the provider asks to wait: room for %d", got)
	}
	c.refused(0, 1, true, 0, now)
	c.ended(0)
	if got := c.room(0, now); got != 1 {
		t.Errorf("a batch was given up: room for %d", got)
	}
	c.ended(1)
	if got := c.room(0, now); got != 2 {
		t.Errorf("a batch was answered: room for %d", got)
	}
	if got := (&capacity{limit: 1000, learned: now}).room(0, now.Add(capacityStale+1)); got != 1250 {
		t.Errorf("long ago: room for %d", got)
	}
}

// A creation has ended long before the next owner concludes that its batch is absent.
func TestACreationEndsBeforeItIsConcludedAbsent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := batchapi.Limits{Inline: rapid.Bool().Draw(t, "inline")}
		bytes := rapid.Int64Range(0, 256<<20).Draw(t, "bytes")
		wait := time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(time.Hour)).Draw(t, "wait"))
		if c, a := createTime(limits, bytes, wait), adoptTime(limits, bytes, wait); a-c < wait/3 || c <= 0 {
			t.Fatalf("created within %v, absent after %v", c, a)
		}
	})
}

func TestRecordsAreReadAsTheyWereWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 50).Draw(t, "rows")
		r := Rows{Seqs: make([]uint64, n), Hashes: make([]uint64, n)}
		if n > 0 && rapid.Bool().Draw(t, "tries") {
			r.Tries = make([]uint8, n)
		}
		if n > 0 && rapid.Bool().Draw(t, "deadlines") {
			r.Deadlines = make([]int64, n)
		}
		var seq uint64
		for i := range n {
			seq += rapid.Uint64Range(1, math.MaxUint64/100).Draw(t, "gap")
			r.Seqs[i], r.Hashes[i] = seq, rapid.Uint64().Draw(t, "hash")
			if r.Tries != nil {
				r.Tries[i] = rapid.Uint8().Draw(t, "tries")
			}
			if r.Deadlines != nil {
				r.Deadlines[i] = rapid.Int64Range(math.MinInt64/2, math.MaxInt64/2).Draw(t, "deadline")
			}
		}
		data := stagetest.Value(json.Marshal(&r))(t)
		var got Rows
		if err := json.Unmarshal(data, &got); err != nil || !reflect.DeepEqual(got, r) {
			t.Fatalf("got %+v, %v, want %+v", got, err, r)
		}
	})
}

// A record that is damaged is an error, and ends no process.
func TestDamagedRowsAreRefused(t *testing.T) {
	const hash = "AAAAAAAAAAA=" // 8 bytes
	for name, data := range map[string]string{
		"negative count":    `{"n":-1,"seqs":"","hashes":""}`,
		"fewer sequences":   `{"n":2,"seqs":"AQ==","hashes":"AAAAAAAAAAAAAAAAAAAAAA=="}`,
		"fewer hashes":      `{"n":2,"seqs":"AQE=","hashes":"` + hash + `"}`,
		"more tries":        `{"n":1,"seqs":"AQ==","hashes":"` + hash + `","tries":"AAA="}`,
		"no base64":         `{"n":1,"seqs":"?","hashes":"` + hash + `"}`,
		"the same sequence": `{"n":2,"seqs":"AQA=","hashes":"AAAAAAAAAAAAAAAAAAAAAA=="}`,
		"cut sequence":      `{"n":1,"seqs":"gA==","hashes":"` + hash + `"}`,
	} {
		if err := new(Rows).UnmarshalJSON([]byte(data)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestTheLargestBatchFitsInAMessage(t *testing.T) {
	r := Rows{Seqs: make([]uint64, 50_000), Hashes: make([]uint64, 50_000), Tries: make([]uint8, 50_000), Deadlines: make([]int64, 50_000)}
	for i := range r.Seqs {
		r.Seqs[i] = uint64(1<<40 + 50*i)
		r.Hashes[i] = math.MaxUint64
		r.Deadlines[i] = 1763900000000 + int64(137*i)
	}
	if got := recordSize(&r); got > 1<<20-recordSpare {
		t.Errorf("%d bytes", got)
	}
}

func FuzzRecord(f *testing.F) {
	data := stagetest.Value(json.Marshal(&Record{Kind: RecordIntent, Token: "t", Rows: &Rows{Seqs: []uint64{3, 9}, Hashes: []uint64{1, 2}, Tries: []uint8{0, 1}, Deadlines: []int64{5, 0}}}))(f)
	f.Add(data)
	f.Add([]byte(`{"kind":"intent","rows":{"n":2,"seqs":"AQA=","hashes":""}}`))
	f.Add([]byte(`{"kind":"new"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseRecord(data)
		if err != nil || r.Rows == nil {
			return
		}
		n := len(r.Rows.Seqs)
		if len(r.Rows.Hashes) != n || r.Rows.Tries != nil && len(r.Rows.Tries) != n || r.Rows.Deadlines != nil && len(r.Rows.Deadlines) != n ||
			!slices.IsSorted(r.Rows.Seqs) {
			t.Errorf("%+v", r.Rows)
		}
	})
}

func TestARecordOfANewerStageIsRefused(t *testing.T) {
	if _, err := parseRecord([]byte(`{"kind":"merged","token":"a"}`)); err == nil {
		t.Error("it is read")
	}
	if err := json.Unmarshal([]byte(`{"n":1,"seqs":"AQ==","hashes":""}`), new(Rows)); !errors.Is(err, errRows) {
		t.Errorf("got %v", err)
	}
}

func TestABatchHasAsManyTokensAsTheProviderTakes(t *testing.T) {
	body := []*gathered{{tokens: 60}, {tokens: 40}, {tokens: 1}}
	for limit, want := range map[int64]int{10: 1, 99: 1, 100: 2, 101: 3, 1000: 3} {
		if got := len(firstTokens(body, limit)); got != want {
			t.Errorf("of 60, 40 and 1 tokens %d rows have no more than %d, want %d", got, limit, want)
		}
	}
}
