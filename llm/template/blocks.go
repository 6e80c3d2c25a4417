package template

import (
	"errors"
	"fmt"
	"strings"

	controls "github.com/nikolalohinski/gonja/v2/builtins/control_structures"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// templateBlock is a block of ours: gonja's own keep their expressions to themselves, so
// that the compiler could not reach them. Only "if" is gonja's.
type templateBlock interface {
	exec.ControlStructure
	// compile compiles the block's expressions and what stands in it.
	compile(c *templateCompiler) error
}

// blocks returns the blocks that gonja may parse.
func (c *templateCompiler) blocks() map[string]parser.ControlStructureParser {
	all := map[string]parser.ControlStructureParser{
		"for": parseFor, "set": parseSet, "with": parseWith, "filter": parseFilter, "raw": parseRaw,
	}
	all["if"], _ = controls.All.Get("if")
	for name, parse := range all {
		all[name] = func(p, args *parser.Parser) (b nodes.ControlStructure, err error) {
			at := args.Current()
			defer func() {
				if recover() != nil { // gonja goes on behind the last word of a block
					err = errors.New("an expression ends too early")
				}
				err = c.blockError(name, at, err)
			}()
			return parse(p, args)
		}
	}
	return all
}

// blockError gives an error of a block's parser the place of the block, if it has none.
func (c *templateCompiler) blockError(name string, at *tokens.Token, err error) error {
	if _, ok := errors.AsType[*templateFault](err); err == nil || ok {
		return err
	}
	f := &templateFault{msg: err.Error()}
	if e, ok := errors.AsType[*parser.SyntaxError](err); ok {
		if e.Line > 0 {
			return err // a better place than ours
		}
		f.msg = e.Message
	}
	if at != nil && at.Type != tokens.EOF {
		f.line = c.source.line(at.Pos)
	}
	f.msg = fmt.Sprintf("%s: %s", name, strings.TrimSuffix(f.msg, "."))
	return f
}

// blockAt is the part that all blocks of ours have.
type blockAt struct {
	location *tokens.Token
	body     *nodes.Wrapper
	line     int
}

func (b *blockAt) Position() *tokens.Token { return b.location }
func (b *blockAt) String() string          { return "block" }

// parseBody reads what stands in a block up to one of ends.
func (b *blockAt) parseBody(p, args *parser.Parser, ends ...string) error {
	if !args.End() {
		return args.Error("unexpected", args.Current())
	}
	b.location = p.Current()
	body, endArgs, err := p.WrapUntil(ends...)
	if err != nil {
		return err
	}
	b.body = body
	if !endArgs.End() {
		return endArgs.Error("unexpected", endArgs.Current())
	}
	return nil
}

// run renders what stands in the block, in a scope of its own in which set sets names.
func (b *blockAt) run(r *exec.Renderer, set func(*exec.Context) error) error {
	sub := r.Inherit()
	if err := set(sub.Environment.Context); err != nil {
		return err
	}
	return nodes.Walk(sub, b.body)
}

// capture renders what stands in the block and returns it.
func (b *blockAt) capture(r *exec.Renderer) (string, error) {
	sub := r.Inherit()
	out := &templateWriter{r: renderingOf(r.Evaluator()), max: outputMax(r)}
	sub.Output = out
	if err := nodes.Walk(sub, b.body); err != nil {
		return "", err
	}
	return out.text.String(), nil
}

func outputMax(r *exec.Renderer) int {
	w, _ := r.Output.(*templateWriter)
	return w.max
}

// rawBlock is text that only looks like tags. gonja's lexer has it as one piece.
type rawBlock struct{ blockAt }

func parseRaw(p, args *parser.Parser) (nodes.ControlStructure, error) {
	b := &rawBlock{}
	return b, b.parseBody(p, args, "endraw")
}

func (b *rawBlock) compile(c *templateCompiler) error { return c.body(b.body) }

func (b *rawBlock) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	return nodes.Walk(r, b.body)
}

// forBlock is a loop.
type forBlock struct {
	blockAt
	target    *target
	items     nodes.Expression
	test      nodes.Expression // nil: none
	otherwise *blockAt         // nil: none
	parts     int              // in the body: what one turn costs
}

func parseFor(p, args *parser.Parser) (nodes.ControlStructure, error) {
	b := &forBlock{}
	var err error
	if b.target, err = parseTarget(args, false); err != nil {
		return nil, err
	}
	if args.Match(tokens.In) == nil {
		return nil, args.Error(`"in" is missing`, args.Current())
	}
	if b.items, err = parseTuple(args); err != nil {
		return nil, err
	}
	if args.MatchName("if") != nil {
		if b.test, err = args.ParseExpression(); err != nil {
			return nil, err
		}
	}
	if args.MatchName("recursive") != nil {
		return nil, args.Error("recursive loops are not available", args.Current())
	}
	if err := b.parseBody(p, args, "else", "endfor"); err != nil || b.body.EndTag == "endfor" {
		return b, err
	}
	b.otherwise = &blockAt{}
	return b, b.otherwise.parseBody(p, args, "endfor")
}

func (b *forBlock) compile(c *templateCompiler) (err error) {
	b.line = c.line
	if b.items, err = c.expression(b.items); err != nil {
		return err
	}
	c.set = b.target.names(c.set)
	before := c.parts
	if b.test != nil { // in which loop is that of a loop around
		if b.test, err = c.expression(b.test); err != nil {
			return err
		}
	}
	c.loopOpen++
	err = c.body(b.body)
	c.loopOpen--
	b.parts = c.parts - before + 1
	if err == nil && b.otherwise != nil {
		err = c.body(b.otherwise.body)
	}
	return err
}

func (b *forBlock) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	run := renderingOf(r.Evaluator())
	items, err := b.turns(r, run)
	if err != nil {
		return err
	}
	if len(items) == 0 {
		if b.otherwise == nil {
			return nil
		}
		return b.otherwise.run(r, func(*exec.Context) error { return nil })
	}
	l := &loopState{items: items}
	for i := range items {
		// What a turn runs is bounded by what stands in the block, so pay for all of it.
		if err := run.spend(turnCost + b.parts*stepCost); err != nil {
			return run.fail(b.line, err)
		}
		l.index = i
		err := b.run(r, func(ctx *exec.Context) error {
			ctx.Set("loop", l)
			return b.bind(run, ctx, items[i])
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// turns returns the items to loop over: all that pass the test.
func (b *forBlock) turns(r *exec.Renderer, run *rendering) ([]any, error) {
	v := r.Eval(b.items)
	if v.IsError() {
		return nil, v
	}
	items, err := run.items(valueOf(v))
	if err != nil {
		return nil, run.fail(b.line, err)
	}
	if b.test == nil {
		return items, nil
	}
	passed := []any{}
	for _, item := range items {
		if err := run.spend(turnCost + b.parts*stepCost); err != nil {
			return nil, run.fail(b.line, err)
		}
		sub := r.Inherit()
		if err := b.bind(run, sub.Environment.Context, item); err != nil {
			return nil, err
		}
		ok := sub.Eval(b.test)
		if ok.IsError() {
			return nil, ok
		}
		if truthy(valueOf(ok)) {
			passed = append(passed, item)
		}
	}
	return passed, nil
}

// bind gives the loop's names the values of one item.
func (b *forBlock) bind(run *rendering, ctx *exec.Context, item any) error {
	if err := b.target.set(run, ctx, item); err != nil {
		return run.fail(b.line, err)
	}
	return nil
}

// loopState is what a loop knows about its progress. Templates see it as loop.
type loopState struct {
	items []any
	index int
	seen  []any // by loop.changed, at its last call
}
