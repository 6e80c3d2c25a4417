package terminal

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/vbauerster/mpb/v8"
)

// escapes move the cursor and clear the line.
var escapes = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`)

// lineAt is the bar as a terminal of that many columns shows it.
func lineAt(columns int, total, done, failed int64, b Beside) string {
	var out bytes.Buffer
	bar := &Bar{}
	bar.total.Store(total)
	bar.failed.Store(failed)
	options := bar.layout(func(int64, bool) Beside { return b })
	container := mpb.New(mpb.WithOutput(&out), mpb.WithWidth(columns), mpb.WithAutoRefresh())
	bar.container, bar.bar = container, container.AddBar(max(total, 0), options...)
	bar.Set(done)
	bar.Finish()
	lines := strings.Split(strings.TrimRight(escapes.ReplaceAllString(out.String(), ""), "\n"), "\n")
	return lines[len(lines)-1]
}

func TestTheBarKeepsWhatMattersMost(t *testing.T) {
	b := Beside{
		First: []string{"14.3 rows/s", "ETA 1h42m"},
		More:  []string{"32 in flight", "delay 40 ms", "35 retries", "36233 tokens", "at least $1.2345"},
	}
	for _, tt := range []struct {
		columns             int
		total, done, failed int64
		want                string
	}{
		{120, 100_000, 12_345, 12, "12345 / 100000 rows (12 failed) [=>---------------]  12 %  14.3 rows/s  ETA 1h42m  32 in flight  delay 40 ms  35 retries"},
		{120, 720, 360, 0, "360 / 720 rows [=========>----------]  50 %  14.3 rows/s  ETA 1h42m  32 in flight  delay 40 ms  35 retries  36233 tokens"},
		{80, 100_000, 12_345, 12, "12345 / 100000 rows (12 failed) [=>--------------]  12 %  14.3 rows/s  ETA 1h42m"},
		{80, 720, 360, 0, "360 / 720 rows [=========>---------]  50 %  14.3 rows/s  ETA 1h42m  32 in flight"},
		{80, 0, 360, 0, "360 rows [------------------]  14.3 rows/s  ETA 1h42m  32 in flight  delay 40 ms"},
		{60, 100_000, 12_345, 1234, "12345 / 100000 rows (1234 failed)  14.3 rows/s  ETA 1h42m"},
		{40, 720, 360, 3, "360/720, 3 failed 14.3 rows/s ETA 1h42m"},
		{20, 720, 360, 3, "360/720, 3 failed 14"},
		{5, 720, 360, 3, "360/7"},
	} {
		got := lineAt(tt.columns, tt.total, tt.done, tt.failed, b)
		if got != tt.want {
			t.Errorf("%d columns:\ngot  %q\nwant %q", tt.columns, got, tt.want)
		}
		if len(got) > tt.columns {
			t.Errorf("%d columns: a line of %d", tt.columns, len(got))
		}
	}
}

// Whatever the width and the texts, no line is too long, and the first texts are there where they have room.
func TestNoWidthBreaksTheBar(t *testing.T) {
	b := Beside{First: []string{"first", "second"}, More: []string{"third", "fourth and more", "5"}}
	for columns := range 200 {
		for _, failed := range []int64{0, 7, 100_000} {
			left := columns - len(countsText(columns, 1234, 200_000, failed))
			text := besideText(columns, left, "12 %", b)
			if len(text) > max(left, 0) {
				t.Fatalf("%d columns, %d left: %q", columns, left, text)
			}
			if left >= 15 && (!strings.Contains(text, "first") || !strings.Contains(text, "second")) {
				t.Errorf("%d columns, %d left: %q", columns, left, text)
			}
		}
	}
}
