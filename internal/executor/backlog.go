package executor

import "sync"

// backlog is the work that waits for a goroutine which renders rows: the one in
// [Executor.Run], or the one in [laneRows.run]. The goroutine sleeps until ready holds a
// token, and then does all that it can, so one token stands for any amount of work. Whoever
// adds something, or changes what may begin, leaves a token after that. With a token left
// before, the goroutine could look too early, and sleep on beside work that it could do.
//
// Described jobs have a lock of their own. The queue holds its lock while it asks the
// [mediaLookups] whether a row may begin, and that holds its lock while it adds a job
// here: with one lock for both, the two would wait for each other.
//
// It is safe for concurrent use.
type backlog struct {
	queue *rowQueue
	ready chan struct{} // holds a token while there may be something to do

	mu        sync.Mutex // guards described
	described []*job     // their media have been looked up
}

func newBacklog() *backlog {
	return &backlog{queue: newRowQueue(), ready: make(chan struct{}, 1)}
}

// wake makes the goroutine look at everything again. It does not block.
func (b *backlog) wake() {
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// add adds a row, or the elements of one.
func (b *backlog) add(w entry) {
	b.queue.add(w)
	b.wake()
}

// addPrompt adds a prompt.
func (b *backlog) addPrompt(p *prompt) {
	b.queue.addPrompt(p)
	b.wake()
}

// resume makes the goroutine look again at rows that could not begin.
func (b *backlog) resume() {
	b.queue.resume()
	b.wake()
}

// addDescribed adds a job whose media have been looked up.
func (b *backlog) addDescribed(j *job) {
	b.mu.Lock()
	b.described = append(b.described, j)
	b.mu.Unlock()
	b.wake()
}

// takeDescribed takes out the jobs whose media have been looked up, in the order in which
// they were added.
func (b *backlog) takeDescribed() []*job {
	b.mu.Lock()
	defer b.mu.Unlock()
	jobs := b.described
	b.described = nil
	return jobs
}

// hasDescribed reports whether there are jobs to take whose media have been looked up.
func (b *backlog) hasDescribed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.described) > 0
}
