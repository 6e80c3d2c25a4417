package llmtest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// bucket is a token bucket whose rate follows a schedule.
type bucket struct {
	tokens float64
	last   time.Time
}

// take fills the bucket up to now and takes a token, if there is one.
func (b *bucket) take(now, start time.Time, schedule []Phase, burst float64) bool {
	for b.last.Before(now) && b.tokens < burst {
		rate, until := phaseAt(schedule, start, b.last)
		if until.After(now) {
			until = now
		}
		b.tokens = min(burst, b.tokens+rate*until.Sub(b.last).Seconds())
		b.last = until
	}
	b.last = now
	// A token that was added in many small parts may lack the last bit.
	if b.tokens < 1-1e-9 {
		return false
	}
	b.tokens--
	return true
}

// phaseAt returns the rate at an instant and when its phase ends.
func phaseAt(schedule []Phase, start, at time.Time) (rate float64, until time.Time) {
	var round time.Duration
	for _, p := range schedule {
		round += p.For
	}
	offset := at.Sub(start) % round
	for _, p := range schedule {
		if offset < p.For {
			return p.Rate, at.Add(p.For - offset)
		}
		offset -= p.For
	}
	return 0, at.Add(round) // not reached: offset is less than the sum
}

// ParseSchedule reads phases as the commands take them: "20:60s,5:60s". Empty is no
// schedule.
func ParseSchedule(s string) ([]Phase, error) {
	var phases []Phase
	err := parseList(s, ":", func(part, rate, length string) error {
		r, rateErr := strconv.ParseFloat(rate, 64)
		d, durationErr := time.ParseDuration(length)
		if rateErr != nil || durationErr != nil || !(r >= 0) || d <= 0 {
			return fmt.Errorf("schedule: phase %q; write RATE:DURATION, such as 20:60s", part)
		}
		phases = append(phases, Phase{Rate: r, For: d})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return phases, nil
}

// ParseErrors reads shares of errors as the commands take them: "429=.2,500=.01". Empty
// is none.
func ParseErrors(s string) (map[int]float64, error) {
	shares := map[int]float64{}
	err := parseList(s, "=", func(part, status, share string) error {
		n, statusErr := strconv.Atoi(status)
		f, shareErr := strconv.ParseFloat(share, 64)
		if statusErr != nil || shareErr != nil {
			return fmt.Errorf("errors: %q; write STATUS=SHARE, such as 429=.2", part)
		}
		_, twice := shares[n]
		shares[n] = f
		if twice {
			return fmt.Errorf("errors: status %d twice", n)
		}
		return nil
	})
	if err := errors.Join(err, (&Config{Errors: shares}).validate()); err != nil {
		return nil, err
	}
	return shares, nil
}

// parseList calls read for each part of a list separated by commas, with the halves
// around its separator, and joins the errors.
func parseList(s, separator string, read func(part, left, right string) error) error {
	if strings.TrimSpace(s) == "" {
		return nil
	}
	var problems []error
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		left, right, _ := strings.Cut(part, separator)
		problems = append(problems, read(part, left, right))
	}
	return errors.Join(problems...)
}

// Limit is a copy of the limit of a server that begins when the server does: it knows when
// the server admits the next call, as nobody outside can. Calls must be sent when Opens
// says, and each must be reported to Take. It is not safe for concurrent use.
type Limit struct {
	bucket   bucket
	start    time.Time
	schedule []Phase
	burst    float64
}

// NewLimit returns the limit of a server with this schedule, which begins now.
func NewLimit(schedule []Phase, burst int) *Limit {
	now := time.Now()
	return &Limit{bucket: bucket{tokens: float64(burst), last: now}, start: now, schedule: schedule, burst: float64(burst)}
}

// Opens returns the instant at which the server admits the next call, not before now.
func (l *Limit) Opens(now time.Time) time.Time {
	b := l.bucket
	for !b.take(now, l.start, l.schedule, l.burst) {
		rate, until := phaseAt(l.schedule, l.start, now)
		if rate > 0 {
			wait := time.Duration((1-b.tokens)/rate*float64(time.Second)) + time.Microsecond
			until = minTime(until, now.Add(wait))
		}
		now = until
	}
	return now
}

// Take takes a token for a call that is sent now.
func (l *Limit) Take(now time.Time) { l.bucket.take(now, l.start, l.schedule, l.burst) }

// RateAt returns how many calls a second the server admits at an instant.
func (l *Limit) RateAt(at time.Time) float64 {
	rate, _ := phaseAt(l.schedule, l.start, at)
	return rate
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
