package throttle

import (
	"fmt"
	"math"
	"strings"

	"github.com/llm-stage/stage/aimd"
)

// SVG draws a trace: the rate of the server and that of the law over a longer time, and
// below a few seconds of it with every call and the phases of the law.
func (tr *Trace) SVG(from, to, zoomFrom, zoomTo float64) string {
	d := &drawing{}
	d.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 600" font-family="sans-serif" font-size="13">` + "\n")
	d.printf(`<rect width="960" height="600" fill="#ffffff"/>` + "\n")

	wide := panel{left: 50, top: 40, width: 890, height: 200, from: from, to: to, most: 50}
	d.text(wide.left, 22, "start", "#222", "The server allows 20 calls a second, then 5, then 20 again; calls take 1.2 s, refusals 60 ms")
	d.axes(wide, 10, 10)
	d.server(wide, tr.rate)
	d.law(wide, tr.Samples)
	d.calls(wide, tr.Calls, false)

	near := panel{left: 50, top: 330, width: 890, height: 200, from: zoomFrom, to: zoomTo, most: 50}
	d.text(near.left, 312, "start", "#222", "A few seconds of it, with every call and the phases of the law")
	d.phases(near, tr.Samples)
	d.axes(near, 1, 10)
	d.server(near, tr.rate)
	d.law(near, tr.Samples)
	d.calls(near, tr.Calls, true)

	d.legend(580)
	d.printf("</svg>\n")
	return d.String()
}

// BeliefSVG draws what the law believes over time: above the server's limit, as it is and
// as the law believes with its bounds, and below the share of calls that are refused at
// random.
func (tr *Trace) BeliefSVG(from, to float64) string {
	d := &drawing{}
	d.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 500" font-family="sans-serif" font-size="13">` + "\n")
	d.printf(`<rect width="960" height="500" fill="#ffffff"/>` + "\n")

	limit := panel{left: 50, top: 40, width: 890, height: 200, from: from, to: to, most: 40}
	d.text(limit.left, 22, "start", "#222", "The server's limit: 20 calls a second, then 10")
	d.bounds(limit, tr.Samples)
	d.axes(limit, 10, 10)
	d.server(limit, tr.rate)
	d.steps(limit, tr.Samples, func(b *aimd.Belief) float64 { return b.Limit })
	d.printf(`<path stroke="%s" stroke-width="1" d="`, refusedColour)
	for _, c := range tr.Calls {
		if !c.Accepted && c.At >= from && c.At <= to {
			d.printf("M%.1f,%.1fv12", limit.x(c.At), limit.bottom()+6)
		}
	}
	d.printf(`"/>` + "\n")

	random := panel{left: 50, top: 330, width: 890, height: 80, from: from, to: to, most: .4}
	d.text(random.left, 312, "start", "#222", "The share of calls that are refused at random: none, then a fifth, then none")
	for _, share := range []float64{0, .2, .4} {
		d.line(random.left, random.y(share), random.left+random.width, random.y(share), "#e4e4e4", 1)
		d.text(random.left-6, random.y(share)+4, "end", "#555", fmt.Sprintf("%.0f%%", 100*share))
	}
	d.server(random, tr.share)
	d.steps(random, tr.Samples, func(b *aimd.Belief) float64 { return b.Random })

	const y = 470.0
	d.line(50, y, 70, y, serverColour, 4)
	d.text(76, y+4, "start", "#222", "as it is")
	d.line(150, y, 170, y, lawColour, 1.5)
	d.text(176, y+4, "start", "#222", "as the law believes")
	d.printf(`<rect x="320" y="%.1f" width="20" height="12" fill="%s"/>`+"\n", y-6, boundsColour)
	d.text(346, y+4, "start", "#222", "its bounds")
	d.line(440, y-6, 440, y+6, refusedColour, 1.5)
	d.text(450, y+4, "start", "#222", "refused call")
	d.printf("</svg>\n")
	return d.String()
}

const boundsColour = "#dbe8f4"

// bounds draws the bounds of the believed limit as an area, while there are any.
func (d *drawing) bounds(p panel, samples []Sample) {
	for i, begin := 0, 0; i < len(samples); i++ {
		s, next := &samples[i].Belief, p.to
		if i+1 < len(samples) {
			next = samples[i+1].At
			if b := &samples[i+1].Belief; b.Low == s.Low && b.High == s.High {
				continue
			}
		}
		if s.High > 0 && samples[begin].At < p.to {
			left, right := p.x(samples[begin].At), p.x(min(next, p.to))
			d.printf(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", left, p.y(s.High), right-left, p.y(s.Low)-p.y(s.High), boundsColour)
		}
		begin = i + 1
	}
}

// steps draws what the law believes, with a gap where it is 0.
func (d *drawing) steps(p panel, samples []Sample, of func(*aimd.Belief) float64) {
	d.printf(`<path fill="none" stroke="%s" stroke-width="1.5" d="`, lawColour)
	last := 0.0
	for i := range samples {
		s := &samples[i]
		value := of(&s.Belief)
		switch {
		case s.At > p.to || value == last || value*last > 0 && math.Abs(value-last) < p.most/200: // too little to see
			continue
		case last == 0:
			d.printf("M%.1f,%.1f", p.x(s.At), p.y(value))
		case value == 0:
			d.printf(" H%.1f ", p.x(s.At))
		default:
			d.printf(" H%.1f V%.1f", p.x(s.At), p.y(value))
		}
		last = value
	}
	if last > 0 {
		d.printf(" H%.1f", p.left+p.width)
	}
	d.printf(`"/>` + "\n")
}

// panel is a diagram of rates over time.
type panel struct {
	left, top, width, height float64
	from, to                 float64 // seconds
	most                     float64 // per second
}

func (p panel) x(t float64) float64 { return p.left + p.width*(t-p.from)/(p.to-p.from) }

func (p panel) y(rate float64) float64 { return p.top + p.height*(1-min(rate, p.most)/p.most) }

func (p panel) bottom() float64 { return p.top + p.height }

type drawing struct{ strings.Builder }

func (d *drawing) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(d, format, args...) // a Builder never fails
}

func (d *drawing) text(x, y float64, anchor, colour, text string) {
	d.printf(`<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s">%s</text>`+"\n", x, y, anchor, colour, text)
}

func (d *drawing) line(x1, y1, x2, y2 float64, colour string, width float64) {
	d.printf(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%.1f"/>`+"\n", x1, y1, x2, y2, colour, width)
}

func (d *drawing) axes(p panel, everySec, everyRate float64) {
	for rate := 0.0; rate <= p.most; rate += everyRate {
		d.line(p.left, p.y(rate), p.left+p.width, p.y(rate), "#e4e4e4", 1)
		d.text(p.left-6, p.y(rate)+4, "end", "#555", fmt.Sprintf("%.0f/s", rate))
	}
	for t := p.from; t <= p.to; t += everySec {
		d.line(p.x(t), p.bottom(), p.x(t), p.bottom()+4, "#555", 1)
		d.text(p.x(t), p.bottom()+32, "middle", "#555", fmt.Sprintf("%.0f s", t))
	}
}

const (
	serverColour  = "#bbbbbb"
	lawColour     = "#1f6fb2"
	refusedColour = "#d62728"
)

// server draws the rate that the server allows.
func (d *drawing) server(p panel, rate schedule) {
	d.printf(`<path fill="none" stroke="%s" stroke-width="4" d="M%.1f,%.1f`, serverColour, p.left, p.y(rate[rate.at(p.from)].rate))
	for _, s := range rate {
		if s.from > p.from && s.from < p.to {
			d.printf(" H%.1f V%.1f", p.x(s.from), p.y(s.rate))
		}
	}
	d.printf(` H%.1f"/>`+"\n", p.left+p.width)
}

// law draws the rate of the law.
func (d *drawing) law(p panel, samples []Sample) {
	d.printf(`<path fill="none" stroke="%s" stroke-width="1.5" stroke-linejoin="round" d="`, lawColour)
	verb := "M"
	for i, s := range samples {
		if s.At < p.from || s.At > p.to || i+1 < len(samples) && samples[i+1] == s {
			continue
		}
		d.printf("%s%.1f,%.1f", verb, p.x(s.At), p.y(s.PerSec))
		verb = " L"
	}
	d.printf(`"/>` + "\n")
}

// calls draws the refused calls below the diagram, and where there is room for them the
// accepted ones too.
func (d *drawing) calls(p panel, calls []Call, all bool) {
	for _, c := range calls {
		switch {
		case c.At < p.from || c.At > p.to:
		case !c.Accepted:
			d.line(p.x(c.At), p.bottom()+6, p.x(c.At), p.bottom()+18, refusedColour, 1.5)
		case all:
			d.line(p.x(c.At), p.bottom()+8, p.x(c.At), p.bottom()+16, lawColour, 1)
		}
	}
}

var phaseColours = map[aimd.Phase]string{
	aimd.Start: "#fff3d6", aimd.Drain: "#fbdada", aimd.Cruise: "#e9f3e4", aimd.Probe: "#eadff5",
}

// phases draws the phases as the ground of the diagram.
func (d *drawing) phases(p panel, samples []Sample) {
	begin, phase := p.from, aimd.Phase(255)
	flush := func(end float64) {
		if phase != 255 && end > begin {
			d.printf(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n",
				p.x(begin), p.top, p.x(end)-p.x(begin), p.height, phaseColours[phase])
		}
	}
	for _, s := range samples {
		if s.At > p.to {
			break
		}
		if s.Phase != phase {
			flush(max(s.At, p.from))
			begin, phase = max(s.At, p.from), s.Phase
		}
	}
	flush(p.to)
}

func (d *drawing) legend(y float64) {
	x := 50.0
	item := func(draw func(x float64), text string, width float64) {
		draw(x)
		d.text(x+26, y+4, "start", "#222", text)
		x += width
	}
	stroke := func(colour string, width float64) func(float64) {
		return func(x float64) { d.line(x, y, x+20, y, colour, width) }
	}
	tick := func(colour string) func(float64) {
		return func(x float64) { d.line(x+10, y-6, x+10, y+6, colour, 1.5) }
	}
	ground := func(p aimd.Phase) func(float64) {
		return func(x float64) {
			d.printf(`<rect x="%.1f" y="%.1f" width="20" height="12" fill="%s"/>`+"\n", x, y-6, phaseColours[p])
		}
	}
	item(stroke(serverColour, 4), "server's limit", 130)
	item(stroke(lawColour, 1.5), "the law's rate", 125)
	item(tick(lawColour), "call", 60)
	item(tick(refusedColour), "refused call", 115)
	for _, p := range []aimd.Phase{aimd.Cruise, aimd.Drain, aimd.Start, aimd.Probe} {
		item(ground(p), p.String(), 80)
	}
}
