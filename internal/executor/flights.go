package executor

import (
	"slices"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer"
)

// Bounds of what flights remember: answers, and the bytes of their texts and parts.
const (
	rememberedMax      = 4096
	rememberedBytesMax = 32 << 20
)

// flights let equal requests share one call. The first job with a key leads: it makes the
// call. Jobs that come while it is in flight follow: they wait for its answer. With nil
// flights every job makes its own call. They are safe for concurrent use.
type flights struct {
	memory time.Duration // how long an answer serves later jobs too, or 0 if it does not

	mu       sync.Mutex
	byKey    map[string]*flight
	requeued []*job // followers whose leader failed: they are submitted again
	// remembered are the flights whose leader is done, oldest first. Each has its answer,
	// and bytes is the size of all these answers.
	remembered []remembered
	bytes      int
}

// flight is one request. Either it has an answer, or followers may wait for one.
type flight struct {
	leader    *job    // makes the call, and is nil once there is an answer
	answer    *answer // once the call has succeeded
	at        time.Time
	followers []*job
}

type remembered struct {
	key string
	*flight
}

func newFlights(memory time.Duration) *flights {
	return &flights{memory: memory, byKey: make(map[string]*flight)}
}

// join returns the answer if it is known. Otherwise the job leads, or it follows until
// resolve, finish or recall returns it.
func (f *flights) join(j *job) (known *answer, leads bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.byKey[j.key]
	switch {
	case v != nil && v.answer == nil:
		v.followers = append(v.followers, j)
		return nil, false
	case v != nil && (f.memory == 0 || time.Since(v.at) < f.memory):
		return v.answer, false
	}
	f.byKey[j.key] = &flight{leader: j}
	return nil, true
}

// resolve sets the answer that the leader was given, and returns the followers.
func (f *flights) resolve(key string, a *answer) []*job {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.byKey[key]
	if v == nil {
		return nil
	}
	v.answer, v.at, v.leader = a, time.Now(), nil
	followers := v.followers
	v.followers = nil
	return followers
}

// requeue keeps jobs for takeRequeued.
func (f *flights) requeue(jobs []*job) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requeued = append(f.requeued, jobs...)
}

// takeRequeued returns the jobs that must be submitted again.
func (f *flights) takeRequeued() []*job {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	jobs := f.requeued
	f.requeued = nil
	return jobs
}

// anyRequeued reports whether there are jobs to submit again.
func (f *flights) anyRequeued() bool {
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.requeued) > 0
}

// recall returns the jobs whose rows are no longer wanted, of the followers and those to
// submit again. Leaders continue without them. A job that begins to wait after it was
// found wanted is missed: repeat the recall until the partition is handed over.
func (f *flights) recall() (unwanted []*job) {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, v := range f.byKey {
		v.followers, unwanted = splitUnwanted(v.followers, unwanted)
	}
	f.requeued, unwanted = splitUnwanted(f.requeued, unwanted)
	return unwanted
}

// splitUnwanted moves the jobs whose rows are no longer wanted from one list to the
// other. It asks once for each, since the answer may change at any time.
func splitUnwanted(jobs, unwanted []*job) (wanted, more []*job) {
	wanted = slices.DeleteFunc(jobs, func(j *job) bool {
		if j.row.Wanted() {
			return false
		}
		unwanted = append(unwanted, j)
		return true
	})
	return wanted, unwanted
}

// finish ends a flight when its leader is done, and returns the followers that still
// wait. Its answer is remembered if flights have a memory.
func (f *flights) finish(key string) []*job {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.byKey[key]
	if v == nil {
		return nil
	}
	if v.answer == nil || f.memory == 0 {
		delete(f.byKey, key)
		return v.followers
	}
	f.remembered = append(f.remembered, remembered{key, v})
	f.bytes += v.answer.bytes()
	f.forget()
	return nil
}

// forget drops the oldest answers until the rest is within the bounds.
func (f *flights) forget() {
	for len(f.remembered) > rememberedMax || f.bytes > rememberedBytesMax {
		oldest := f.remembered[0]
		f.remembered[0] = remembered{} // or the array behind the slice would keep it alive
		f.remembered = f.remembered[1:]
		f.bytes -= oldest.answer.bytes()
		if f.byKey[oldest.key] == oldest.flight { // and not a later one that began when this was too old
			delete(f.byKey, oldest.key)
		}
	}
}

// leaderOf returns the row whose call a row waits for, and whether it waits for one.
func (f *flights) leaderOf(row *consumer.Row) (leader uint64, follows bool) {
	if f == nil {
		return 0, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, v := range f.byKey {
		if slices.ContainsFunc(v.followers, func(j *job) bool { return j.row == row }) {
			return v.leader.row.Seq, true // it has no answer while it has followers
		}
	}
	return 0, false
}
