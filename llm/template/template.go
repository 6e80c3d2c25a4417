// Package template renders the prompt of a row from a Jinja template, in bounded time and
// memory.
//
//	t, err := template.Parse([]byte("Label this: {{ row.text | truncate(500) }}"), o)
//	prompt, err := t.Render(r) // "Label this: The printer is on fire"
//
// A template sees the row and a [Lookup], and reaches nothing else: no file, no Go value,
// no method of one.
//
// It is compiled once and rendered for each row:
//
//	scan.go     text and tags                   "Label this: ", {{ row.text … }}
//	tokens.go   the words of a tag              row . text | truncate ( 500 )
//	parse.go, blocks.go                         a tree of nodes: text, outputs, blocks
//	expressions.go, calls.go                    and of the expressions in them
//	names.go                                    the names that they read and set
//	render.go, eval.go                          the tree for one row, within its bounds
//
// conversation.go does the same for a file of messages, each string of which is a template,
// and lookup.go reads the lookup. The values and what can be done with them are in package
// value.
//
// The bound on its work ([Options].MaxWork) replaces a deadline. A rendering that costs more
// than 64 Mi units fails on every machine and every time, where a deadline would fail on a
// busy one only.
package template

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
	"github.com/llm-stage/stage/llm/template/internal/value"
)

// Defaults of [Options].
const (
	DefaultOutput = 4 << 20
	DefaultWork   = 64 << 20
)

// Options say how a template is compiled and what one rendering may use. The zero
// value is a template given inline, without a lookup, with default limits.
type Options struct {
	// Source is the path as configured, which results report; errors use its last
	// part. It is empty if the template was given inline.
	Source string
	// Name is what errors call a template that was given inline. The default is "the
	// template".
	Name string
	// Lookup is what the template sees as lookup. With nil the name is not defined.
	Lookup *Lookup
	// Item says that the template also sees item and loop: an element of an array of the
	// row and its place there. It is rendered by [Template.RenderItem], any other by
	// [Template.Render].
	Item bool
	// NoItem is what to change, for the error of a template that reads item or loop
	// without Item. It is empty if there is nothing to add.
	NoItem string
	// MaxOutput bounds the prompt in bytes. The default is 4 MiB.
	MaxOutput int
	// MaxWork bounds time and memory of one rendering together: each step costs 64, each
	// turn of a loop 512, each byte of text produced 1, each element of a list produced
	// 16. The default is 64 Mi, which takes about a second.
	MaxWork int
}

// Template is a compiled prompt template in Jinja, as docs/templates.md describes it.
// Rendering any template ends, in bounded memory, and reaches nothing but the row and the
// lookup, which it cannot modify. It is safe for concurrent use. Its zero value is not
// usable: see [Parse].
type Template struct {
	nodes  []node
	names  int // their number
	name   string
	hash   string
	source string
	lookup *Lookup

	maxOutput, maxWork int
}

// Parse compiles a template. It fails on syntax errors, blocks, filters, tests, functions
// and methods that are not available, wrong arguments, and names that nothing sets.
// Errors name the line and what is available instead.
func Parse(source []byte, o Options) (t *Template, err error) {
	t = newTemplate(source, &o)
	if t.nodes, t.names, err = parse(source, &o); err != nil {
		return nil, fmt.Errorf("template: %w", t.located(err))
	}
	return t, nil
}

// IsTemplate reports whether a text has anything that a template would replace.
func IsTemplate(text string) bool {
	return strings.Contains(text, "{{") || strings.Contains(text, "{%") || strings.Contains(text, "{#")
}

// newTemplate returns a template without nodes.
func newTemplate(source []byte, o *Options) *Template {
	t := &Template{
		name:      cmp.Or(o.Name, "the template"),
		hash:      llm.Hash(source),
		source:    o.Source,
		lookup:    o.Lookup,
		maxOutput: cmp.Or(max(0, o.MaxOutput), DefaultOutput),
		maxWork:   cmp.Or(max(0, o.MaxWork), DefaultWork),
	}
	if o.Source != "" {
		t.name = path.Base(o.Source)
	}
	return t
}

// Provenance returns the hashes and sources of the template and the lookup.
func (t *Template) Provenance() row.Provenance {
	p := row.Provenance{TemplateHash: t.hash, TemplateSource: t.source}
	if t.lookup != nil {
		p.LookupHash, p.LookupSource = t.lookup.hash, t.lookup.source
	}
	return p
}

// Hash returns the SHA-256 of the template's bytes in hexadecimal.
func (t *Template) Hash() string { return t.hash }

// Source returns the path as configured, or "" for a template given inline.
func (t *Template) Source() string { return t.source }

// Lookup returns the lookup, or nil.
func (t *Template) Lookup() *Lookup { return t.lookup }

// Render returns the prompt for a row. It fails with an [*llm.Error] of the reason
// [llm.ReasonTemplateRenderingFailed] and the class [llm.Permanent], which names the
// problem, the template and the line.
func (t *Template) Render(row *row.Row) (prompt string, err error) {
	prompt, _, err = t.run(row, nil, 0)
	return prompt, err
}

// RenderItem returns the prompt for the element at an index of items, as Render does for
// a row. Its loop has index0, index, length, first and last, and the members of Jinja's
// that follow from these.
func (t *Template) RenderItem(items *row.Items, index int) (prompt string, err error) {
	prompt, _, err = t.run(items.Row(), items, index)
	return prompt, err
}

// run renders the template for a row, or for one of its items unless these are nil. The
// messages are pieces of the text.
func (t *Template) run(row *row.Row, items *row.Items, index int) (text string, messages []messageSpans, err error) {
	var out strings.Builder
	r := &rendering{
		Run: value.NewRun(t.maxWork), row: row.Variables(), out: &out,
		innermost: make([]int, t.names), maxOut: t.maxOutput,
	}
	defer func() {
		// A row that triggers a bug of ours fails, instead of ending the process each
		// time it is delivered.
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
		if err != nil {
			text, messages, err = "", nil, t.renderingFailed(err)
		}
	}()

	r.set(rowNumber, &r.row)
	if t.lookup != nil {
		r.set(lookupNumber, t.lookup.value)
	}
	if items != nil {
		r.set(itemNumber, items.Value(index))
		r.set(loopNumber, &value.Loop{Length: items.Len(), Index: index})
	}

	r.open()
	err = renderAll(r, t.nodes)
	return out.String(), r.messages, err
}

func (t *Template) renderingFailed(err error) *llm.Error {
	var source any
	if t.source != "" {
		source = t.source
	}
	return &llm.Error{
		Class:  llm.Permanent,
		Reason: llm.ReasonTemplateRenderingFailed,
		Facts:  map[string]any{"template_hash": t.hash, "template_source": source},
		Err:    t.located(err),
	}
}

// located returns an error that names the place in this template, and how to fix it.
func (t *Template) located(err error) error {
	place, hint := t.name, ""
	if f, ok := errors.AsType[*fault](err); ok {
		place, hint = fmt.Sprintf("line %d of %s", f.line, t.name), f.hint
	}
	if u, ok := errors.AsType[*value.Undefined](err); ok && hint == "" {
		hint = u.Hint()
	}
	if hint != "" {
		hint = "; " + hint
	}
	// A new error, since err may refer to values of the row, which would stay in memory
	// for as long as the error does.
	return errors.New(err.Error() + " (" + place + ")" + hint)
}
