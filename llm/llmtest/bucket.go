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
	// A token that came in many small parts may lack the last bit.
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

// ParseSchedule reads phases as the commands take them: "20:60s,5:60s". Empty
// is no schedule.
func ParseSchedule(s string) ([]Phase, error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	var phases []Phase
	var problems []error
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		rate, length, _ := strings.Cut(part, ":")
		r, rateErr := strconv.ParseFloat(rate, 64)
		d, durationErr := time.ParseDuration(length)
		if rateErr != nil || durationErr != nil || !(r >= 0) || d <= 0 {
			problems = append(problems, fmt.Errorf("schedule: phase %q; write RATE:DURATION, such as 20:60s", part))
			continue
		}
		phases = append(phases, Phase{Rate: r, For: d})
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return phases, nil
}

// ParseErrors reads shares of errors as the commands take them:
// "429=.2,500=.01". Empty is none.
func ParseErrors(s string) (map[int]float64, error) {
	shares := map[int]float64{}
	if strings.TrimSpace(s) == "" {
		return shares, nil
	}
	var problems []error
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		status, share, _ := strings.Cut(part, "=")
		n, statusErr := strconv.Atoi(status)
		f, shareErr := strconv.ParseFloat(share, 64)
		if statusErr != nil || shareErr != nil {
			problems = append(problems, fmt.Errorf("errors: %q; write STATUS=SHARE, such as 429=.2", part))
			continue
		}
		if _, ok := shares[n]; ok {
			problems = append(problems, fmt.Errorf("errors: status %d twice", n))
		}
		shares[n] = f
	}
	problems = append(problems, (&Config{Errors: shares}).validate())
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return shares, nil
}
