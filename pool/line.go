package pool

import (
	"slices"

	"github.com/llm-stage/stage/internal/turns"
)

// Laned is what a job's In may implement where several parties share the pool: lanes that
// have jobs take turns, and one job starts each turn. Lanes should be few, as the pool
// never forgets one. Without it all jobs are in lane 0. Submit calls Lane, which must
// always return the same number.
type Laned interface {
	Lane() int
}

// Keyed is what a job's In may implement where the jobs of a lane have keys, so that a
// key with many jobs does not delay the others: in each turn of the lane it is another
// key's turn. Keys may be many. Without it all jobs have the empty key. Submit calls Key.
type Keyed interface {
	Key() string
}

// Grouped is what a job's In may implement where several jobs may fail through one cause
// of their own, such as the calls for one row: an outage or wrong settings are suspected
// only where different groups fail, unless there is no other group left. The groups are
// compared by ==. Without it, or with nil, a job is a group of its own. Submit calls
// Group.
type Grouped interface {
	Group() any
}

// line holds the jobs without an attempt. Those of one key of a lane start in the order
// of submission. The keys of a lane that have any take turns, and one that joins is last
// in the present turn: between any two starts, the counts of keys that had jobs in line
// throughout differ by at most one. The same holds for lanes.
//
// A single attempt starts after as many jobs as were in line when it arrived, whatever
// their lanes. With one lane that is the order of submission; with several, lanes wait no
// longer for single attempts than they would in one queue.
type line struct {
	lanes   map[int]*lane
	turns   []*lane // those with jobs, in the order of their turns
	singles fifo
	size    int    // jobs, without single attempts
	left    uint64 // jobs that are no longer in line, of all that ever were
}

// lane is the jobs of one lane.
type lane = turns.Queue[*task]

func (l *line) push(t *task) {
	if t.Single {
		t.after = l.left + uint64(l.size)
		l.singles.push(t)
		return
	}
	v := l.lanes[t.Lane]
	if v == nil {
		v = turns.New[*task](nil)
		l.lanes[t.Lane] = v
	}
	if v.Len() == 0 {
		l.turns = append(l.turns, v)
	}
	v.Push(t.Key, t)
	l.size++
}

// first returns the task that starts next, or nil.
func (l *line) first() *task {
	if t := l.singles.head; t != nil && (l.size == 0 || t.after <= l.left) {
		return t
	}
	return l.firstJob()
}

// firstJob returns the job that starts next, single attempts aside, or nil.
func (l *line) firstJob() *task {
	if l.size == 0 {
		return nil
	}
	return l.turns[0].First()
}

// take takes t out, which is first or firstJob.
func (l *line) take(t *task) {
	if t.Single {
		l.singles.pop()
		return
	}
	v := l.turns[0]
	v.Pop()
	l.size--
	l.left++
	l.turns = slices.Delete(l.turns, 0, 1) // moved down rather than cut off, so that the append never allocates
	if v.Len() > 0 {
		l.turns = append(l.turns, v)
	}
}

// ample reports whether there are so many jobs, all of one lane without keys, that there
// is no hurry to ask for more: to be asked for each by itself costs two wake-ups a job.
// Where several lanes or keys take turns, a full line would keep their jobs waiting.
func (l *line) ample(limit int) bool {
	return l.size > limit-limit/4 && len(l.turns) == 1 && l.firstJob().Key == ""
}

func (l *line) remove(match func(*task) bool) (removed []*task) {
	for _, v := range l.turns {
		removed = append(removed, v.Remove(match)...)
	}
	l.turns = slices.DeleteFunc(l.turns, func(v *lane) bool { return v.Len() == 0 })
	l.size -= len(removed)
	l.left += uint64(len(removed))
	return removed
}
