package aimd

import "math"

// The constants of cohorts.
const (
	// A cohort has at least so many attempts, at least as many as are in flight, and
	// enough for a standard error of cohortError, or of a quarter of the step that it
	// measures; but no more than cohortMost.
	cohortLeast = 16
	cohortMost  = 256
	cohortError = 0.05
	// So many cohorts may be under way; the oldest is given up for another.
	cohortsOpen = 8
	// No comparison is taken to be better than this.
	errorLeast = 0.01
	// A cohort is judged without its last eighth once these have been waited for this
	// many times the others' duration.
	stragglerWaits = 3.0
	// The standard deviation of the duration of some calls is off by about this much,
	// relatively, by the root of their number.
	spreadError = 2.0
)

// cohort is some attempts that were sent one after the other. All of them count, and
// not only the ones that have ended by some time: the first to end are the short ones.
type cohort struct {
	id         int // counts from 1
	size       int // attempts that belong to it, at most
	sent, lost int
	level      float64 // sum of the attempts in flight when each was sent
	lastSent   float64
	pending    float64 // sum of the instants at which those that have not ended were sent

	n, output, sec float64 // number of replies, the sum of their lengths, and the seconds they took in all
	oo, os, ss     float64 // sums of the products of output and seconds
}

func (c *cohort) full() bool { return c.sent >= c.size }

// over reports whether all its attempts have ended, or enough of them.
func (c *cohort) over(now float64) bool {
	left := float64(c.sent-c.lost) - c.n
	if !c.full() || c.n < 2 {
		return false
	}
	return left <= 0 || left <= float64(c.size/8) && now-c.lastSent > stragglerWaits*c.sec/c.n
}

// waited adds the attempts that have not ended as if they did now. Where the lengths of
// replies are not known, those are the long ones, and not to count them would make calls
// look fast.
func (c *cohort) waited(now float64) {
	left := float64(c.sent-c.lost) - c.n
	if left <= 0 {
		return
	}
	sec := now - c.pending/left
	for range int(left) {
		c.add(1, sec)
	}
}

func (c *cohort) add(output, sec float64) {
	sec = max(sec, 1e-6)
	c.n++
	c.output += output
	c.sec += sec
	c.oo += output * output
	c.os += output * sec
	c.ss += sec * sec
}

// inFlight returns the mean number of attempts in flight at sending.
func (c *cohort) inFlight() float64 { return c.level / float64(c.sent) }

// mean returns the mean duration of a call, in seconds.
func (c *cohort) mean() float64 { return c.sec / max(c.n, 1) }

// secPer returns the seconds that a call takes for each unit of its reply.
func (c *cohort) secPer() float64 { return c.sec / c.output }

// seconds returns how long a call with a reply of this length took, by regression, and
// the standard error of that. Without lengths, or where they make no difference, it is
// the mean.
func (c *cohort) seconds(output float64) (sec, err float64) {
	mx, my := c.output/c.n, c.sec/c.n
	sxx, sxy, syy := c.oo-c.output*mx, c.os-c.sec*mx, max(0, c.ss-c.sec*my)
	slope := 0.0
	if c.n > 2 && sxx > 1e-9*c.oo {
		slope = max(0, sxy/sxx)
	}
	variance := max(0, syy-slope*sxy) / max(1, c.n-2) / c.n
	if slope > 0 {
		variance *= 1 + c.n*(output-mx)*(output-mx)/sxx
	}
	return my + slope*(output-mx), math.Sqrt(variance)
}

// waits returns how much longer calls waited for their turn in c than in d, and the
// standard error. It compares the part of a call's duration that does not depend on the
// length of its reply. If the lengths are unknown, that part cannot be told apart: then a
// wait is the time by which all calls take longer without differing more.
func (c *cohort) waits(d *cohort) (sec, err float64) {
	if c.oo-c.output*c.output/c.n < 1e-9*c.oo || d.oo-d.output*d.output/d.n < 1e-9*d.oo {
		a, ea := c.seconds(0)
		b, eb := d.seconds(0)
		times := max(1, ea*math.Sqrt(c.n)/(eb*math.Sqrt(d.n)))
		return a - times*b, math.Hypot(ea, times*b*spreadError/math.Sqrt(min(c.n, d.n)))
	}
	a, ea := c.seconds(0)
	b, eb := d.seconds(0)
	return a - max(0, b), math.Hypot(ea, eb)
}

// variance returns how much the duration of calls varies for replies of the same length,
// relative to its square.
func (c *cohort) variance() float64 {
	sec, err := c.seconds(c.output / c.n)
	return c.n * err * err / (sec * sec)
}

// more returns the logarithm of how many more attempts were in flight than in d.
func (c *cohort) more(d *cohort) float64 { return math.Log(c.inFlight() / d.inFlight()) }

// slower returns the logarithm of how much longer calls took in c than in d for the
// length of their replies, and its standard error. Where calls do not wait for each
// other, those with equal replies take equally long: so both are taken at the same
// length.
func (c *cohort) slower(d *cohort) (log, err float64) {
	output := (c.output + d.output) / (c.n + d.n)
	a, ea := c.seconds(output)
	b, eb := d.seconds(output)
	a, b = max(a, c.mean()/10), max(b, d.mean()/10) // if the lengths of the two cohorts hardly overlap
	return math.Log(a / b), max(errorLeast, math.Hypot(ea/a, eb/b))
}

// slowerInQueue is slower where calls wait for each other. Then each waits for the
// replies of others, too, and what all take is in proportion to what all return. Variance
// is the variance of the time that the server works at a call, by the square of its mean.
func (c *cohort) slowerInQueue(d *cohort, variance float64) (log, err float64) {
	return math.Log(c.secPer() / d.secPer()), math.Sqrt(variance * (c.chance() + d.chance()))
}

// chance returns the variance of secPer as a share of a single call's. Calls that wait
// share their wait, and only the calls at the edges of a cohort wait for calls of others.
// So it falls faster than 1/n: for 90 replies with 30 in flight it is 2*30/(3*90)/90 =
// 1/405.
func (c *cohort) chance() float64 { return min(1, 2*c.inFlight()/(3*c.n)) / c.n }

// lengths returns the variance of the lengths of replies, by the square of their mean.
func (c *cohort) lengths() float64 {
	mean := c.output / c.n
	return max(0, c.oo/c.n/(mean*mean)-1)
}

// merge adds d.
func (c *cohort) merge(d *cohort) { c.sent += d.sent; c.level += d.level; c.sum(d, 1) }

// fade adds d. All earlier calls together then weigh at most as much as d's: with 100
// calls so far and 20 in d, each earlier one weighs 0.2.
func (c *cohort) fade(d *cohort) {
	now := *d
	now.sum(c, min(1, d.n/c.n))
	*c = now
}

func (c *cohort) sum(d *cohort, weight float64) {
	c.n += weight * d.n
	c.output += weight * d.output
	c.sec += weight * d.sec
	c.oo += weight * d.oo
	c.os += weight * d.os
	c.ss += weight * d.ss
}
