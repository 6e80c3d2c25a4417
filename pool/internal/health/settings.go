package health

import "slices"

// Wrong settings, such as a wrong name of the model, make every call fail in the same
// way. Before the very first success an error of that kind is in doubt, and when
// alikeFirst different jobs have met it and no job another, the settings are to blame. No
// call goes then until those in flight have ended: refusals may just be faster than
// successes.
//
// After the first success such an error is its job's own, until alikeLater jobs in a row
// have failed with the same.

const alikeFirst, alikeLater = several, 50

// alike is what suggests that the settings are wrong.
type alike struct {
	// These count until the first success.
	first string // the error that all jobs met
	err   error  // the latest of them
	jobs  int    // groups of jobs that have met it, those that have ended since included
	mixed bool   // jobs have met different errors, so the settings are not the cause
	// run counts from then on.
	run run
}

// run is a number of jobs in a row that failed with the same error.
type run struct {
	name  string
	jobs  int
	group any // of the latest of them
}

// maybeSettings reports whether wrong settings may have caused a failure.
func (s *Server) maybeSettings(v *Verdict) bool {
	return v.Alike != "" && s.m.cfg.BlameSettings && s.index == 0 &&
		(!s.proven && !s.alike.mixed || s.m.WrongSettings)
}

// meetsAlike counts a job that has met the error that all meet.
func (s *Server) meetsAlike(j *Job) {
	a := &s.alike
	a.first, a.err = j.last.Alike, j.last.Err
	if j.doubt.alike {
		return
	}
	sameGroup := func(other *Job) bool { return other.doubt.alike && other.Group == j.Group }
	if j.Group == nil || !slices.ContainsFunc(s.suspects.jobs, sameGroup) {
		a.jobs++
	}
	j.doubt.alike = true
}

// SettingsSuspected reports whether enough jobs have met the same error, and none
// another, before the first success.
func (s *Server) SettingsSuspected() bool {
	return !s.proven && !s.alike.mixed && s.alike.jobs >= alikeFirst
}

// BlamesSettings returns the error that all jobs have met if the settings are to blame,
// now that no call is in flight. Then no failure in doubt counts against its job.
// Otherwise it returns nil.
func (s *Server) BlamesSettings() error {
	if !s.SettingsSuspected() || len(s.inFlight) > 0 {
		return nil
	}
	s.acquit()
	return s.alike.err
}

// Lost records that a job has failed for good at this server. It reports whether so many
// in a row have failed with the same error that the settings are to blame.
func (s *Server) Lost(j *Job) (blames bool) {
	if s.index > 0 || !s.m.cfg.BlameSettings {
		return false
	}
	r := &s.alike.run
	if j.last.Alike == "" || r.name != j.last.Alike {
		*r = run{name: j.last.Alike}
	}
	if r.jobs == 0 || j.Group == nil || j.Group != r.group {
		r.jobs++
	}
	r.group = j.Group
	if r.name == "" || r.jobs < alikeLater {
		return false
	}
	s.acquit()
	return true
}
