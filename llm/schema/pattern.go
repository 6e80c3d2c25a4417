package schema

import (
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/dlclark/regexp2/v2"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

const (
	// patternTime bounds what all backtracking patterns together may take of one reply.
	patternTime = time.Second
	// backtrackingBytesMax bounds the length of such a pattern: a reply may hold one,
	// where the schema has the format regex.
	backtrackingBytesMax = 10_000
)

// backtracking holds what the patterns of one schema share that need to backtrack, such
// as those with a lookahead. Go's regexp reads a text in linear time; these may take
// exponential time, so they have a common deadline for each reply. The validator hands no
// context to a pattern: so one reply is validated at a time.
type backtracking struct {
	mu       sync.Mutex
	limit    time.Duration // for one reply
	used     bool          // the schema has such a pattern
	compiled bool          // the schema is compiled: further patterns are in replies
	deadline time.Time
	exceeded *backtrackingPattern // the pattern that met the deadline, or nil
}

// compile is the validator's engine for patterns: Go's, and only for what that refuses
// one that reads all of ECMA-262.
func (b *backtracking) compile(source string) (jsonschema.Regexp, error) {
	re, err := regexp.Compile(source)
	if err == nil {
		return re, nil
	}
	if len(source) > backtrackingBytesMax {
		return nil, err
	}
	ecma, err := regexp2.Compile(source, regexp2.ECMAScript|regexp2.Unicode)
	if err != nil {
		return nil, err
	}
	if !b.compiled {
		b.used = true
	}
	return &backtrackingPattern{ecma, b}, nil
}

// validate is [jsonschema.Schema.Validate] within the deadline.
func (b *backtracking) validate(schema *jsonschema.Schema, value any) error {
	if !b.used {
		return schema.Validate(value)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deadline, b.exceeded = time.Now().Add(b.limit), nil
	err := schema.Validate(value)
	if b.exceeded != nil {
		// What the validator found is not certain: no match may be what "not" asks for.
		return fmt.Errorf("matching the pattern %q took longer than %v", b.exceeded.String(),
			b.limit)
	}
	return err
}

// backtrackingPattern is one of the patterns.
type backtrackingPattern struct {
	*regexp2.Regexp
	shared *backtracking
}

// MatchString implements [jsonschema.Regexp]. A match not found by the deadline counts as
// none.
func (p *backtrackingPattern) MatchString(s string) bool {
	left := time.Until(p.shared.deadline)
	if p.shared.exceeded == nil && left > 0 {
		p.MatchTimeout = left
		matched, err := p.Regexp.MatchString(s)
		if err == nil {
			return matched
		}
	}
	p.shared.exceeded = p
	return false
}
