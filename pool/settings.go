package pool

import "slices"

// Before the very first success the settings may be wrong. Then an error that every job meets is in doubt, and when
// alikeFirst different jobs have met it and no other, the pool pauses. Later a job's error is its own, until alikeLater
// jobs in a row meet the same.

// How many different jobs must meet the same error before the settings are blamed: before the first success, and in a
// row after it.
const alikeFirst, alikeLater = 5, 50

// maybeSettings reports whether wrong settings may have caused the verdict on t.
func (s *scheduler) maybeSettings(t *task) bool {
	h := &s.servers[t.att.Server].health
	return t.verdict.Alike != "" && s.cfg.OnFatal == HoldAll && t.att.Server == 0 &&
		(!h.proven && !h.mixed || s.pause.Kind == WrongSettings)
}

// settingsSuspected reports whether enough jobs have met the same error, and no other, before the first success. Then
// no attempt goes until those in flight have ended: refusals may just be faster than successes.
func (h *health) settingsSuspected() bool {
	return !h.proven && !h.mixed && h.alikeJobs >= alikeFirst
}

// groupAlike reports whether a job of this group has met the error that all meet.
func (h *health) groupAlike(group any) bool {
	return group != nil && slices.ContainsFunc(h.doubted, func(t *task) bool { return t.doubt.alike && t.group == group })
}

// allAlike pauses the pool if so many different jobs have failed in a row as t did. It reports whether it did; then t
// waits.
func (s *scheduler) allAlike(t *task) bool {
	h := &s.servers[t.att.Server].health
	if t.att.Server > 0 || s.cfg.OnFatal != HoldAll {
		return false
	}
	if t.verdict.Alike == "" || h.run != t.verdict.Alike {
		h.run, h.runJobs = t.verdict.Alike, 0
	}
	if t.group == nil || t.group != h.runGroup || h.runJobs == 0 {
		h.runJobs++
	}
	h.runGroup = t.group
	if h.run == "" || h.runJobs < alikeLater {
		return false
	}
	s.putBack(t)
	s.blameSettings(t.att.Server, t.verdict.Err)
	return true
}

// blameSettings pauses the pool because the settings seem to be wrong; no failure counts against a job.
func (s *scheduler) blameSettings(server int, err error) {
	s.acquit(&s.servers[server])
	s.pauseAll(WrongSettings, server, err, nil)
}
