package logging

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

const (
	// sampleInterval is how long lines of a kind are gathered.
	sampleInterval = 10 * time.Second
	// sampleBurst is how many lines of a kind are written before the rest is gathered.
	sampleBurst = 5
	// sampleKindsMax bounds the kinds at a time; beyond it the message alone is the kind.
	sampleKindsMax = 256
	// sampleWordMax is the longest value that is part of a kind, in bytes: a word, not a
	// text, which may differ each time.
	sampleWordMax = 48
)

// sampler is a handler that keeps storms out of the log. Of the warnings and errors of
// one kind it writes the first few at once and gathers the rest for an interval; then it
// writes the last of them with how many more there were, and when the first and the last
// of them happened: that line is written up to ten seconds after the last one, among
// lines of later events. So a count is never lost, and a storm of any size is one line
// per kind and interval. Info and debug pass untouched.
//
//	12:00:09 WARN a call failed … and_more=41 first=2026-01-01T12:00:01.2Z last=2026-01-01T12:00:09.8Z
//
// Lines are of one kind if they have the same message, level and attributes of the
// logger, and the same values of [sampleKeys]. Libraries that sample drop lines without a
// count.
type sampler struct {
	next  slog.Handler
	scope string // attributes and groups of the logger
	kinds *sampleKinds
}

// sampleKeys are the attributes of a line that are part of its kind.
var sampleKeys = map[string]bool{
	"area": true, "class": true, "provider": true, "reason": true, "status_code": true, "variable": true, "what": true,
}

// sampleKinds are the kinds of lines with an interval running. Safe for concurrent use.
type sampleKinds struct {
	mu      sync.Mutex
	byKey   map[string]*sampleKind
	writing sync.WaitGroup // intervals that have ended and whose line is not written yet
}

// sampleKind is one kind of line in its present interval.
type sampleKind struct {
	passed int               // lines written at once, at most sampleBurst
	held   int               // lines gathered
	first  time.Time         // when the first of them happened
	last   slog.Record       // of those gathered
	write  func(slog.Record) // writes last as the logger does that it came from
	timer  *time.Timer       // ends the interval
}

func newSampler(next slog.Handler) *sampler {
	return &sampler{next: next, kinds: &sampleKinds{byKey: make(map[string]*sampleKind)}}
}

// Enabled implements [slog.Handler].
func (s *sampler) Enabled(ctx context.Context, level slog.Level) bool {
	return s.next.Enabled(ctx, level)
}

// WithAttrs implements [slog.Handler].
func (s *sampler) WithAttrs(attrs []slog.Attr) slog.Handler {
	scope := []string{s.scope}
	for _, a := range attrs {
		scope = append(scope, a.String())
	}
	return &sampler{next: s.next.WithAttrs(attrs), scope: strings.Join(scope, "\x00"), kinds: s.kinds}
}

// WithGroup implements [slog.Handler].
func (s *sampler) WithGroup(name string) slog.Handler {
	return &sampler{next: s.next.WithGroup(name), scope: s.scope + "\x00" + name, kinds: s.kinds}
}

// Handle implements [slog.Handler].
func (s *sampler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		return s.next.Handle(ctx, r)
	}
	later := context.WithoutCancel(ctx)
	write := func(last slog.Record) { _ = s.next.Handle(later, last) } // there is nowhere to report that it failed
	if s.kinds.pass(s.key(&r), write, &r) {
		return s.next.Handle(ctx, r)
	}
	return nil
}

// key returns the kind of a line.
func (s *sampler) key(r *slog.Record) string {
	var b strings.Builder
	b.WriteString(r.Message + "\x00" + r.Level.String() + s.scope)
	r.Attrs(func(a slog.Attr) bool {
		if sampleKeys[a.Key] {
			if word := a.Value.String(); len(word) <= sampleWordMax {
				b.WriteString("\x00" + a.Key + "=" + word)
			}
		}
		return true
	})
	return b.String()
}

// pass reports whether the line must be written at once. Otherwise it is kept for the end
// of the interval.
func (k *sampleKinds) pass(key string, write func(slog.Record), r *slog.Record) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	kind := k.byKey[key]
	if kind == nil && len(k.byKey) >= sampleKindsMax {
		key = r.Message // messages are constant, so there are few
		kind = k.byKey[key]
	}
	if kind == nil {
		kind = &sampleKind{}
		kind.timer = time.AfterFunc(sampleInterval, func() { k.release(key) })
		k.byKey[key] = kind
	}
	if kind.passed < sampleBurst {
		kind.passed++
		return true
	}
	if kind.held++; kind.held == 1 {
		kind.first = r.Time
	}
	kind.last, kind.write = r.Clone(), write
	return false
}

// release ends an interval: the last line gathered is written. A kind without one is
// forgotten.
func (k *sampleKinds) release(key string) {
	k.mu.Lock()
	kind := k.byKey[key]
	if kind == nil {
		k.mu.Unlock()
		return
	}
	out := *kind
	k.writing.Add(1)
	defer k.writing.Done()
	if kind.held == 0 {
		delete(k.byKey, key)
	} else {
		kind.passed, kind.held = sampleBurst, 0 // the storm continues: one line an interval from now on
		kind.timer.Reset(sampleInterval)
	}
	k.mu.Unlock()
	out.emit()
}

// emit writes the last line gathered with the times of the first and the last, and how
// many more there were.
func (kind *sampleKind) emit() {
	if kind.held == 0 {
		return
	}
	if more := kind.held - 1; more > 0 {
		kind.last.AddAttrs(slog.Int("and_more", more))
	}
	kind.last.AddAttrs(slog.Time("first", kind.first.UTC()), slog.Time("last", kind.last.Time.UTC()))
	kind.write(kind.last)
}

// Flush writes what a logger of [New], or one derived from it, has gathered. It is called
// when the work has ended, and may be called again.
func Flush(log *slog.Logger) {
	s, ok := log.Handler().(*sampler)
	if !ok {
		return
	}
	k := s.kinds
	k.mu.Lock()
	gathered := make([]*sampleKind, 0, len(k.byKey))
	for _, kind := range k.byKey {
		kind.timer.Stop()
		gathered = append(gathered, kind)
	}
	clear(k.byKey)
	k.mu.Unlock()
	k.writing.Wait() // an interval that has just ended took its line already: the process must not end before it is written
	for _, kind := range gathered {
		kind.emit()
	}
}
