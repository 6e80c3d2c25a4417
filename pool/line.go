package pool

// Laned is what a job's In may implement where several parties share the pool: lanes that have jobs take turns, and one
// job starts each turn. Lanes should be few, as the pool never forgets one. Without it all jobs are in lane 0. Submit
// calls Lane, which must always return the same number.
type Laned interface {
	Lane() int
}

// line holds the jobs without an attempt. Those of one lane start in the order of submission. The lanes that have any
// take turns, and one that joins is last in the present turn: between any two starts, the counts of lanes that had jobs
// in line throughout differ by at most one.
//
// A single attempt starts after as many jobs as were in line when it arrived, whatever their lanes. With one lane that
// is the order of submission; with several, lanes wait no longer for single attempts than they would in one queue.
type line struct {
	lanes      map[int]*lane
	head, tail *lane // those with jobs, in the order of their turns
	singles    fifo
	size       int    // jobs, without single attempts
	left       uint64 // jobs that are no longer in line, of all that ever were
}

// lane is the jobs of one lane that are in line.
type lane struct {
	fifo

	behind *lane // whose turn is next
}

func (l *line) push(t *task) {
	if t.once {
		t.after = l.left + uint64(l.size)
		l.singles.push(t)
		return
	}
	v := l.lanes[t.lane]
	if v == nil {
		v = &lane{}
		l.lanes[t.lane] = v
	}
	if v.head == nil {
		l.enqueue(v)
	}
	v.push(t)
	l.size++
}

// first returns the task that starts next, or nil.
func (l *line) first() *task {
	if t := l.singles.head; t != nil && (l.head == nil || t.after <= l.left) {
		return t
	}
	return l.firstJob()
}

// firstJob returns the job that starts next, single attempts aside, or nil.
func (l *line) firstJob() *task {
	if l.head == nil {
		return nil
	}
	return l.head.head
}

// take takes t out, which is first or firstJob.
func (l *line) take(t *task) {
	if t.once {
		l.singles.pop()
		return
	}
	v := l.head
	v.pop()
	l.size--
	l.left++
	l.head, v.behind = v.behind, nil
	if v.head != nil {
		l.enqueue(v)
	}
}

// enqueue puts a lane with jobs last in the order of turns.
func (l *line) enqueue(v *lane) {
	if l.head == nil {
		l.head = v
	} else {
		l.tail.behind = v
	}
	l.tail = v
}

// remove takes out the jobs that match and returns them.
func (l *line) remove(match func(*task) bool) (removed []*task) {
	v := l.head
	l.head = nil
	for v != nil {
		jobs, behind := v.fifo, v.behind
		v.fifo, v.behind = fifo{}, nil
		for jobs.head != nil {
			if t := jobs.pop(); match(t) {
				removed = append(removed, t)
			} else {
				v.push(t)
			}
		}
		if v.head != nil {
			l.enqueue(v)
		}
		v = behind
	}
	l.size -= len(removed)
	l.left += uint64(len(removed))
	return removed
}

// removeSingles takes out the single attempts that match and returns them.
func (l *line) removeSingles(match func(*task) bool) (removed []*task) {
	singles := l.singles
	l.singles = fifo{}
	for singles.head != nil {
		if t := singles.pop(); match(t) {
			removed = append(removed, t)
		} else {
			l.singles.push(t)
		}
	}
	return removed
}
