package executor

import (
	"slices"
	"sync"
	"time"

	"github.com/llm-stage/stage/llm"
)

// answer is a reply that serves every row with the same request.
type answer struct {
	Text  string     `json:"text"`
	Model string     `json:"model"`
	Usage *llm.Usage `json:"usage"`
}

// Bounds of what flights remember: landed answers, and the bytes of their texts.
const (
	landedMax      = 4096
	landedBytesMax = 32 << 20
)

// flights are the requests on their way, by their keys. The first job with a key leads: it makes the call. Those that come
// while it is on its way wait for its answer. Safe for concurrent use.
type flights struct {
	// memory is how long an answer serves later jobs too; 0: not at all.
	memory time.Duration

	mu     sync.Mutex
	air    map[string]*flight
	landed []landed // oldest first
	bytes  int
}

type flight struct {
	answer  *answer // once the call has succeeded
	at      time.Time
	waiting []*job
}

type landed struct {
	key string
	*flight
}

func newFlights(memory time.Duration) *flights {
	return &flights{memory: memory, air: make(map[string]*flight)}
}

// join returns the answer if it is known. Else the job leads, or waits to be returned by land, end or recall.
func (f *flights) join(j *job) (known *answer, leads bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.air[j.key]
	switch {
	case v != nil && v.answer == nil:
		v.waiting = append(v.waiting, j)
		return nil, false
	case v != nil && (f.memory == 0 || time.Since(v.at) < f.memory):
		return v.answer, false
	}
	f.air[j.key] = &flight{}
	return nil, true
}

// land notes the answer that the leader was given, and returns the jobs that waited for it.
func (f *flights) land(key string, a *answer) []*job {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.air[key]
	if v == nil {
		return nil
	}
	v.answer, v.at = a, time.Now()
	waiting := v.waiting
	v.waiting = nil
	return waiting
}

// recall returns the waiting jobs whose rows are no longer wanted. Their leader goes on without them.
func (f *flights) recall() (unwanted []*job) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, v := range f.air {
		v.waiting, unwanted = splitUnwanted(v.waiting, unwanted)
	}
	return unwanted
}

// splitUnwanted moves the jobs whose rows are no longer wanted from one list to the other.
func splitUnwanted(jobs, unwanted []*job) (still, more []*job) {
	still = slices.DeleteFunc(jobs, func(j *job) bool {
		if j.row.Wanted() {
			return false
		}
		unwanted = append(unwanted, j)
		return true
	})
	return still, unwanted
}

// end forgets a flight when its leader is done, and returns the jobs that still wait. An answer is forgotten later, if it
// is to be remembered.
func (f *flights) end(key string) []*job {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.air[key]
	if v == nil {
		return nil
	}
	if v.answer == nil || f.memory == 0 {
		delete(f.air, key)
		return v.waiting
	}
	f.landed = append(f.landed, landed{key, v})
	f.bytes += len(v.answer.Text)
	for len(f.landed) > landedMax || f.bytes > landedBytesMax {
		oldest := f.landed[0]
		f.landed[0] = landed{} // let it go
		f.landed = f.landed[1:]
		f.bytes -= len(oldest.answer.Text)
		if f.air[oldest.key] == oldest.flight { // and not one that began since, when it was too old
			delete(f.air, oldest.key)
		}
	}
	return nil
}
