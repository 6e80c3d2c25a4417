// Package template renders the prompt of a row from a Jinja template, in bounded time and memory.
//
// A template sees the row and a [Lookup], and reaches nothing else: no file, no Go value, no method of one.
package template

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"
)

// Defaults of [Options].
const (
	DefaultOutput = 4 << 20
	DefaultWork   = 64 << 20
)

// Options say how a template is compiled and what one rendering may use. The zero
// value is a template given inline, without a lookup, with default limits.
type Options struct {
	// Source is the path as configured, which results tell and errors use the last part
	// of. Empty: the template was given inline.
	Source string
	// Lookup is what the template sees as lookup. Nil: it sees none.
	Lookup *Lookup
	// MaxOutput bounds the prompt in bytes. 0: 4 MiB.
	MaxOutput int
	// MaxWork bounds time and memory of one rendering together: each step costs 64, each turn of a loop 512, each
	// byte of text made on the way 1, each element of a list made on the way 16. 0: 64 Mi,
	// which takes about a second.
	MaxWork int
}

// Template is a compiled prompt template in Jinja, as docs/templates.md describes it.
// Whatever it says, rendering it ends, in bounded memory, and reaches nothing but the row
// and the lookup, which it cannot change. It is safe for concurrent use. Its zero value is
// of no use: see [Parse].
type Template struct {
	tpl         *exec.Template
	config      *config.Config
	environment *exec.Environment // without a context
	name        string
	hash        string
	source      string
	lookup      *Lookup

	maxOutput, maxWork int
}

// Parse compiles a template. Errors name the line and what is there instead:
// syntax, blocks, filters, tests, functions and methods that are not available, wrong
// arguments, and names that nothing sets.
func Parse(source []byte, o Options) (t *Template, err error) {
	t = &Template{
		name:      "the template",
		hash:      llm.Hash(source),
		source:    o.Source,
		lookup:    o.Lookup,
		maxOutput: o.MaxOutput,
		maxWork:   o.MaxWork,
	}
	if o.Source != "" {
		t.name = path.Base(o.Source)
	}
	if t.maxOutput <= 0 {
		t.maxOutput = DefaultOutput
	}
	if t.maxWork <= 0 {
		t.maxWork = DefaultWork
	}
	if err = t.compile(source); err != nil {
		return nil, fmt.Errorf("template: %w", t.fault(err))
	}
	return t, nil
}

// compile has gonja parse source and puts our own operations in the tree.
func (t *Template) compile(source []byte) (err error) {
	read, err := readSource(source)
	if err != nil {
		return err
	}
	// gonja's parser panics on some templates that are none.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the template cannot be parsed: %v", p)
		}
	}()
	c := newTemplateCompiler(read, t.lookup != nil)
	loader, err := loaders.NewMemoryLoader(map[string]string{"/template": string(read.tidy)})
	if err != nil {
		return err
	}
	t.config = config.New()
	t.config.StrictUndefined = true
	t.config.KeepTrailingNewline = true // its last one is gone already
	t.environment = &exec.Environment{
		Filters:           exec.NewFilterSet(c.filters),
		Tests:             exec.NewTestSet(nil),
		ControlStructures: exec.NewControlStructureSet(c.blocks()),
	}
	if t.tpl, err = exec.NewTemplate("/template", t.config, loader, t.environment); err != nil {
		return c.syntaxError(err)
	}
	return c.template(t.tpl.Root())
}

// Provenance says where prompts of the template come from.
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

// Render returns the prompt for a row. It fails with an [*Error] of the reason
// [ReasonTemplateRenderingFailed] and the class [Permanent], which names what is wrong,
// the template and the line.
func (t *Template) Render(row *row.Row) (prompt string, err error) {
	r := &rendering{work: t.maxWork, maxWork: t.maxWork}
	r.row = row.Variables()
	r.out = templateWriter{r: r, max: t.maxOutput}
	defer func() {
		// A template must not be able to end the process, whatever it finds in gonja.
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
		if err != nil {
			prompt, err = "", t.renderingFailed(r, err)
		}
	}()
	variables := map[string]any{renderingName: r, "row": &r.row}
	if t.lookup != nil {
		variables["lookup"] = t.lookup.value
	}
	// gonja's own Execute makes more for each rendering, for inheritance and macros, which templates here don't have.
	environment := *t.environment
	environment.Context = exec.NewContext(variables)
	renderer := &exec.Renderer{Config: t.config, Environment: &environment, Template: t.tpl, RootNode: t.tpl.Root(), Output: &r.out}
	if err := renderer.Execute(); err != nil {
		return "", err
	}
	return r.out.text.String(), nil
}

// renderingFailed builds the error of a rendering. What gonja returns has been wrapped as
// text, so the fault that began it is kept in r.
func (t *Template) renderingFailed(r *rendering, err error) *llm.Error {
	if r.fault != nil {
		err = r.fault
	}
	var source any
	if t.source != "" {
		source = t.source
	}
	return &llm.Error{
		Class:  llm.Permanent,
		Reason: llm.ReasonTemplateRenderingFailed,
		Facts:  map[string]any{"template_hash": t.hash, "template_source": source},
		Err:    t.fault(err),
	}
}

// fault writes an error with its place in this template.
func (t *Template) fault(err error) error {
	f, ok := errors.AsType[*templateFault](err)
	if !ok {
		return fmt.Errorf("%w (%s)", err, t.name)
	}
	var b strings.Builder
	b.WriteString(f.msg)
	if f.line > 0 {
		fmt.Fprintf(&b, " (line %d of %s)", f.line, t.name)
	} else {
		fmt.Fprintf(&b, " (%s)", t.name)
	}
	hint := f.hint
	if f.written != "" {
		hint = f.undefinedHint()
	}
	if hint != "" {
		b.WriteString("; " + hint)
	}
	return errors.New(b.String())
}

// templateFault is what is wrong with a template or one rendering.
type templateFault struct {
	line int // counted from 1; 0: unknown
	msg  string
	hint string // how to mend it, or what there is instead
	// undefined: a name or field does not exist. The default filter forgives that, so
	// the hint waits until it is needed: in is where written was looked for.
	undefined bool
	in        any
	written   string
}

func (f *templateFault) Error() string { return f.msg }

// rendering is what one rendering has left, and its fault. gonja hands errors on as text,
// so the last one is kept here; an error that travels through gonja is always the last.
type rendering struct {
	work, maxWork int
	fault         *templateFault
	row           row.Variables
	out           templateWriter // of the prompt
}

// renderingName is where a rendering is in gonja's context. No template can name it.
const renderingName = " rendering"

// Costs in units of work; a byte costs one.
const (
	stepCost = 64
	turnCost = 512 // of a loop, beside the steps in it
	itemCost = 16
)

// spend pays for n units of work. Everything that takes time or memory does so through
// it, before it is done.
func (r *rendering) spend(n int) error {
	if n > r.work {
		r.work = 0
		return fmt.Errorf("the limit of %d units of work is used up", r.maxWork)
	}
	r.work -= n
	return nil
}

// spendTimes pays for n things that cost each.
func (r *rendering) spendTimes(n, each int) error {
	if each > 0 && n > r.work/each {
		return r.spend(r.work + 1)
	}
	return r.spend(n * each)
}

// fail notes err as the rendering's fault, with the line where it has none.
func (r *rendering) fail(line int, err error) error {
	f, ok := err.(*templateFault) //nolint:errorlint // faults of ours are never wrapped
	if !ok {
		f = &templateFault{msg: err.Error()}
	}
	if f.line == 0 {
		f.line = line
	}
	r.fault = f
	return f
}

// forgive forgets the rendering's fault if it is that something is undefined.
func (r *rendering) forgive() bool {
	if r.fault == nil || !r.fault.undefined {
		return false
	}
	r.fault = nil
	return true
}

// templateWriter takes a rendering's text, up to a bound.
type templateWriter struct {
	r    *rendering
	text strings.Builder
	max  int
}

func (w *templateWriter) Write(p []byte) (int, error) { return w.WriteString(string(p)) }

// WriteString is what gonja calls.
func (w *templateWriter) WriteString(s string) (int, error) {
	if len(s) > w.max-w.text.Len() {
		return 0, w.r.fail(0, fmt.Errorf("the text is larger than %d bytes", w.max))
	}
	if err := w.r.spend(len(s)); err != nil {
		return 0, w.r.fail(0, err)
	}
	return w.text.WriteString(s)
}
