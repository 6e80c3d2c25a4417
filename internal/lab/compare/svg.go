package compare

import (
	"fmt"
	"strings"
	"time"
)

var colours = [ways]string{"#8a8a8a", "#d62728", "#1f6fb2", "#7fbf7b"}

// The picture, in its own units.
const (
	width, height = 760.0, 340.0
	left, right   = 60.0, 150.0 // beside the diagram
	top, bottom   = 40.0, 40.0  // above and below it
)

// SVG draws the answers of each way over time, on grounds that show what the LLM admits.
func (r *Report) SVG() string {
	end := r.elapsed().Seconds()
	most := float64(max(r.Lanes[optimum].Answered, r.Lanes[adaptive].Answered, 1))
	x := func(at float64) float64 { return left + (width-left-right)*at/end }
	y := func(rows float64) float64 { return top + (height-top-bottom)*(1-rows/most) }
	var b strings.Builder
	text := func(x, y float64, anchor, colour, text string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s">%s</text>`+"\n", x, y, anchor, colour, text)
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="13">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%.0f" height="%.0f" fill="#ffffff"/>`+"\n", width, height)
	text(left, 22, "start", "#222", "Rows answered, at LLMs that admit the same calls: 20/s, and 5/s where the ground is grey")
	r.grounds(func(from, to time.Duration) {
		fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="#eeeeee"/>`+"\n",
			x(from.Seconds()), top, x(to.Seconds())-x(from.Seconds()), height-top-bottom)
	})
	for at := 0.0; at <= end+.5; at += 10 {
		text(x(at), height-bottom+18, "middle", "#555", fmt.Sprintf("%.0f s", at))
	}
	for i := range 5 {
		rows := most * float64(i) / 4
		text(left-8, y(rows)+4, "end", "#555", fmt.Sprintf("%.0f", rows))
		fmt.Fprintf(&b, `<path stroke="#dddddd" d="M%.1f,%.1f H%.1f"/>`+"\n", left, y(rows), width-right)
	}
	labels := r.labels(y)
	for way := range ways {
		fmt.Fprintf(&b, `<path fill="none" stroke="%s" stroke-width="2.5" stroke-linejoin="round" d="`, colours[way])
		verb := "M"
		for _, s := range r.Samples {
			fmt.Fprintf(&b, "%s%.1f,%.1f", verb, x(s.At.Seconds()), y(float64(s.Answered[way])))
			verb = " L"
		}
		b.WriteString(`"/>` + "\n")
		text(width-right+8, labels[way], "start", colours[way], fmt.Sprintf("%s: %d", names[way], r.Lanes[way].Answered))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// grounds calls draw with each time in which the LLMs admit less than at the beginning.
func (r *Report) grounds(draw func(from, to time.Duration)) {
	full, from := r.rate(0), time.Duration(-1)
	for _, s := range r.Samples {
		switch low := r.rate(s.At) < full; {
		case low && from < 0:
			from = s.At
		case !low && from >= 0:
			draw(from, s.At)
			from = -1
		}
	}
	if from >= 0 {
		draw(from, r.elapsed())
	}
}

// labels returns where the label of each way is, at the end of its line and apart from the
// others: the optimum above adaptive, and one call at a time below classic or above it.
func (r *Report) labels(y func(float64) float64) (at [ways]float64) {
	const apart = 16.0
	for way := range ways {
		at[way] = y(float64(r.Lanes[way].Answered)) + 4
	}
	at[optimum] = min(at[optimum], at[adaptive]-apart)
	high, low := one, classic
	if r.Lanes[classic].Answered > r.Lanes[one].Answered {
		high, low = classic, one
	}
	at[high] = min(at[high], at[low]-apart)
	return at
}
