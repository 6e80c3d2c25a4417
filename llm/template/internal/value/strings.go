package value

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Methods are the methods of strings and mappings, the two of lists and tuples, and loop.cycle. None changes
// anything.
var Methods = map[string]Callable{
	"capitalize":   onStrings("", onText(capitalize)),
	"casefold":     onStrings("", onText(casefold)),
	"center":       onStrings("width fillchar?", justify('^')),
	"count":        {Op: methodCount, Params: "sub start? end?"},
	"changed":      {Op: methodChanged, Free: true},
	"cycle":        {Op: methodCycle, Free: true},
	"endswith":     onStrings("suffix start? end?", affix(strings.HasSuffix)),
	"expandtabs":   onStrings("tabsize?", methodExpandtabs),
	"find":         onStrings("sub start? end?", finder(strings.Index, false)),
	"format":       onStringsFree(methodFormat),
	"get":          {Op: methodGet, Params: "key default?"},
	"index":        {Op: methodIndex, Params: "sub start? end?"},
	"isalnum":      onStrings("", all(isAlnum)),
	"isalpha":      onStrings("", all(unicode.IsLetter)),
	"isascii":      onStrings("", onString(isASCII)),
	"isdecimal":    onStrings("", all(unicode.IsDigit)),
	"isdigit":      onStrings("", all(isDigit)),
	"islower":      onStrings("", testCase(isLower, isUpper)),
	"isnumeric":    onStrings("", all(isNumeric)),
	"isspace":      onStrings("", all(IsSpace)),
	"istitle":      onStrings("", onString(isTitle)),
	"isupper":      onStrings("", testCase(isUpper, isLower)),
	"items":        view(kindItems, (*Run).pairs),
	"join":         onStrings("items", methodJoin),
	"keys":         view(kindKeys, keysOf),
	"ljust":        onStrings("width fillchar?", justify('<')),
	"lower":        onStrings("", onText(lower)),
	"lstrip":       onStrings("chars?", trimmer(strings.TrimLeftFunc)),
	"partition":    onStrings("sep", partition(strings.Index)),
	"removeprefix": onStrings("prefix", onTwo(strings.TrimPrefix)),
	"removesuffix": onStrings("suffix", onTwo(strings.TrimSuffix)),
	"replace":      onStrings("old new count?", methodReplace),
	"rfind":        onStrings("sub start? end?", finder(strings.LastIndex, false)),
	"rindex":       onStrings("sub start? end?", finder(strings.LastIndex, true)),
	"rjust":        onStrings("width fillchar?", justify('>')),
	"rpartition":   onStrings("sep", partition(strings.LastIndex)),
	"rsplit":       onStrings("sep? maxsplit?", methodRsplit),
	"rstrip":       onStrings("chars?", trimmer(strings.TrimRightFunc)),
	"split":        onStrings("sep? maxsplit?", methodSplit),
	"splitlines":   onStrings("keepends?", methodSplitlines),
	"startswith":   onStrings("prefix start? end?", affix(strings.HasPrefix)),
	"strip":        onStrings("chars?", trimmer(strings.TrimFunc)),
	"swapcase":     onStrings("", onText(swapcase)),
	"title":        onStrings("", onText(titleWords)),
	"upper":        onStrings("", onText(upper)),
	"values":       view(kindValues, valuesOf),
	"zfill":        onStrings("width", methodZfill),
}

// onStrings is a method that only strings have.
func onStrings(params string, op Operation) Callable {
	return Callable{Params: params, Op: func(r *Run, v any, args []any) (any, error) {
		if _, ok := v.(string); !ok {
			return nil, fmt.Errorf("%s has no such method", article(v))
		}
		return op(r, v, args)
	}}
}

func onStringsFree(op Operation) Callable {
	c := onStrings("", op)
	c.Free = true
	return c
}

// onString is a predicate on a string.
func onString(f func(s string) bool) Operation {
	return func(r *Run, v any, _ []any) (any, error) {
		s, _ := v.(string)
		return f(s), r.SpendTimes(len(s), 4)
	}
}

// all is a method that is true where all characters are as is says, and there is one at least.
func all(is func(rune) bool) Operation {
	return onString(func(s string) bool {
		return s != "" && strings.IndexFunc(s, func(c rune) bool { return !is(c) }) < 0
	})
}

// onTwo is a method of a string and another one.
func onTwo(f func(s, t string) string) Operation {
	return func(r *Run, v any, args []any) (any, error) {
		s, _ := v.(string)
		t, ok := args[0].(string)
		if !ok {
			return nil, fmt.Errorf("argument 1 must be a string, not %s", article(args[0]))
		}
		return f(s, t), r.Spend(len(t))
	}
}

// span returns the part of s from the character args[1] to args[2], and how many characters are before it; found is
// false where the part begins after the end, where not even "" is found.
func (r *Run) span(s string, args []any) (part string, before int, found bool, err error) {
	if args[1] == any(Missing{}) && args[2] == any(Missing{}) {
		return s, 0, true, r.Spend(len(s))
	}
	if err := r.SpendTimes(len(s), 2); err != nil {
		return "", 0, false, err
	}
	bounds := []any{nil, nil, nil}
	for i, a := range args[1:3] {
		if a != any(Missing{}) {
			bounds[i] = a
		}
	}
	n := int64(utf8.RuneCountInString(s))
	start, end, _, err := sliceBounds(bounds, n)
	if err != nil {
		return "", 0, false, err
	}
	if first, ok := bounds[0].(int64); ok && first > n || start > end {
		return "", 0, false, nil
	}
	from, to := runeOffset(s, int(start)), runeOffset(s, int(end))
	return s[from:to], int(start), true, nil
}

// runeOffset returns where the n-th character of s begins.
func runeOffset(s string, n int) int {
	for i := range s {
		if n == 0 {
			return i
		}
		n--
	}
	return len(s)
}

// affix is startswith or endswith, of one string or any of a tuple.
func affix(has func(s, t string) bool) Operation {
	return func(r *Run, v any, args []any) (any, error) {
		s, _ := v.(string)
		part, _, found, err := r.span(s, args)
		if err != nil {
			return nil, err
		}
		options := []any{args[0]}
		if kindOf(args[0]) == kindTuple {
			options, _ = itemsOf(args[0])
		}
		g := given{args: options}
		for i := range options {
			t := g.want(i)
			if err := cmp.Or(g.err, r.Spend(StepCost+len(t))); err != nil {
				return nil, err
			}
			if found && has(part, t) {
				return true, nil
			}
		}
		return false, nil
	}
}

// finder is find, rfind or rindex: those that must find it are errors otherwise.
func finder(index func(s, sub string) int, must bool) Operation {
	return func(r *Run, v any, args []any) (any, error) {
		s, _ := v.(string)
		g := given{args: args}
		sub := g.want(0)
		part, before, found, err := r.span(s, args)
		if err := cmp.Or(g.err, err); err != nil {
			return nil, err
		}
		at := -1
		if found {
			at = index(part, sub)
		}
		switch {
		case at >= 0:
			return int64(before + utf8.RuneCountInString(part[:at])), r.SpendTimes(len(s), 2)
		case must:
			return nil, errors.New("the text is not found; find returns -1 instead")
		}
		return int64(-1), r.Spend(len(s))
	}
}

// methodIndex is index of a string, list or tuple.
func methodIndex(r *Run, v any, args []any) (any, error) {
	if _, ok := v.(string); ok {
		return finder(strings.Index, true)(r, v, args)
	}
	items, ok := places(v)
	if !ok || args[1] != any(Missing{}) || args[2] != any(Missing{}) {
		return nil, fmt.Errorf("%s has no such method", article(v))
	}
	for i, item := range items {
		if same, err := r.equal(item, args[0], 0); err != nil {
			return nil, err
		} else if same {
			return int64(i), nil
		}
	}
	return nil, errors.New("the value is not in the list; check with \"in\" first")
}

// methodCount is count of a string, list or tuple.
func methodCount(r *Run, v any, args []any) (any, error) {
	if s, ok := v.(string); ok {
		g := given{args: args}
		sub := g.want(0)
		part, _, found, err := r.span(s, args)
		if err := cmp.Or(g.err, err); err != nil || !found {
			return int64(0), err
		}
		return int64(strings.Count(part, sub)), r.Spend(len(s))
	}
	items, ok := places(v)
	if !ok {
		return nil, fmt.Errorf("%s has no such method", article(v))
	}
	n := int64(0)
	for _, item := range items {
		same, err := r.equal(item, args[0], 0)
		if err != nil {
			return nil, err
		}
		if same {
			n++
		}
	}
	return n, nil
}

func methodReplace(r *Run, v any, args []any) (any, error) {
	g := given{args: args}
	if g.want(0); g.err == nil {
		g.want(1)
	}
	if g.err != nil {
		return nil, g.err
	}
	return filterReplace(r, v, args)
}

func methodJoin(r *Run, v any, args []any) (any, error) {
	items, err := r.Items(args[0])
	if err != nil {
		return nil, err
	}
	for _, item := range items {
		if _, ok := item.(string); !ok {
			return nil, fmt.Errorf("it joins strings, not %s; the filter join takes any value", article(item))
		}
	}
	return filterJoin(r, items, []any{v, Missing{}})
}

// partition is the text before a separator, the separator and the text after it.
func partition(index func(s, sep string) int) Operation {
	return func(r *Run, v any, args []any) (any, error) {
		s, _ := v.(string)
		g := given{args: args}
		sep := g.want(0)
		if g.err != nil {
			return nil, g.err
		}
		if sep == "" {
			return nil, errEmptySeparator
		}
		if err := r.Spend(len(s) + 3*ItemCost); err != nil {
			return nil, err
		}
		switch at := index(s, sep); {
		case at >= 0:
			return tuple(s[:at], sep, s[at+len(sep):]), nil
		case index("xx", "x") == 1: // searched from the end
			return tuple("", "", s), nil
		}
		return tuple(s, "", ""), nil
	}
}

// justify is ljust, rjust or center.
func justify(align byte) Operation {
	return func(r *Run, v any, args []any) (any, error) {
		s, _ := v.(string)
		g := given{args: args}
		width, fill := g.int(0, 0), g.string(1, " ")
		if g.err != nil {
			return nil, g.err
		}
		if utf8.RuneCountInString(fill) != 1 {
			return nil, errors.New("argument 2 must be a single character")
		}
		spec := formatSpec{align: align, width: int(max(0, min(width, math.MaxInt32))), precision: -1}
		spec.fill, _ = utf8.DecodeRuneInString(fill)
		if missing := spec.width - utf8.RuneCountInString(s); align == '^' && missing > 0 && missing&spec.width&1 == 1 {
			// str.center, unlike a format, has the odd one in front where the width is odd.
			spec.width--
			s, err := spec.text(r, s)
			return fill + s, err
		}
		return spec.text(r, s)
	}
}

func methodZfill(r *Run, v any, args []any) (any, error) {
	s, _ := v.(string)
	g := given{args: args}
	width := g.int(0, 0)
	if g.err != nil {
		return nil, g.err
	}
	sign := ""
	if strings.HasPrefix(s, "-") || strings.HasPrefix(s, "+") {
		sign, s = s[:1], s[1:]
	}
	spec := formatSpec{fill: '0', align: '=', width: int(max(0, min(width, math.MaxInt32)))}
	return spec.pad(r, sign, s, '=')
}

func methodExpandtabs(r *Run, v any, args []any) (any, error) {
	s, _ := v.(string)
	g := given{args: args}
	size := max(0, min(g.int(0, 8), math.MaxInt32))
	if g.err != nil {
		return nil, g.err
	}
	if err := r.SpendTimes(1+strings.Count(s, "\t"), int(size)); err != nil {
		return nil, err
	}
	var b strings.Builder
	column := int64(0)
	for _, c := range s {
		switch c {
		case '\t':
			if size > 0 {
				n := size - column%size
				b.WriteString(strings.Repeat(" ", int(n)))
				column += n
			}
		case '\n', '\r':
			b.WriteRune(c)
			column = 0
		default:
			b.WriteRune(c)
			column++
		}
	}
	return b.String(), r.SpendTimes(len(s), 2)
}

var errEmptySeparator = errors.New("the separator is empty")

// splitArgs are those of split and rsplit. none: at spaces.
func splitArgs(r *Run, v any, args []any) (s, sep string, spaces bool, most int, err error) {
	s, _ = v.(string)
	g := given{args: args}
	sep = g.string(0, "")
	n := g.int(1, -1)
	if g.err != nil {
		return "", "", false, 0, g.err
	}
	if n < 0 || n > math.MaxInt32 {
		n = math.MaxInt32
	}
	if spaces = g.left(0); !spaces && sep == "" {
		return "", "", false, 0, errEmptySeparator
	}
	return s, sep, spaces, int(n), r.SpendTimes(len(s), 2*ItemCost)
}

func methodSplit(r *Run, v any, args []any) (any, error) {
	s, sep, spaces, most, err := splitArgs(r, v, args)
	switch {
	case err != nil:
		return nil, err
	case !spaces:
		return stringList(strings.SplitN(s, sep, most+1)), nil
	}
	var parts []string
	for s = strings.TrimLeftFunc(s, IsSpace); s != ""; s = strings.TrimLeftFunc(s, IsSpace) {
		end := strings.IndexFunc(s, IsSpace)
		if end < 0 || len(parts) == most {
			parts = append(parts, s)
			break
		}
		parts, s = append(parts, s[:end]), s[end:]
	}
	return stringList(parts), nil
}

func methodRsplit(r *Run, v any, args []any) (any, error) {
	s, sep, spaces, most, err := splitArgs(r, v, args)
	if err != nil {
		return nil, err
	}
	var parts []string
	for len(parts) < most {
		if spaces {
			s = strings.TrimRightFunc(s, IsSpace)
		}
		at, size := strings.LastIndex(s, sep), len(sep)
		if spaces {
			at = strings.LastIndexFunc(s, IsSpace)
			_, size = utf8.DecodeRuneInString(s[max(at, 0):])
		}
		if at < 0 {
			break
		}
		parts, s = append(parts, s[at+size:]), s[:at]
	}
	if spaces {
		s = strings.TrimRightFunc(s, IsSpace)
	}
	if s != "" || !spaces {
		parts = append(parts, s)
	}
	slices.Reverse(parts)
	return stringList(parts), nil
}

func methodSplitlines(r *Run, v any, args []any) (any, error) {
	s, _ := v.(string)
	if err := r.SpendTimes(len(s), 2*ItemCost); err != nil {
		return nil, err
	}
	g := given{args: args}
	return stringList(splitLines(s, g.bool(0, false))), nil
}

// splitLines splits at every line boundary that Python knows.
func splitLines(s string, keepEnds bool) (lines []string) {
	for s != "" {
		end := strings.IndexFunc(s, isLineEnd)
		if end < 0 {
			return append(lines, s)
		}
		_, size := utf8.DecodeRuneInString(s[end:])
		if strings.HasPrefix(s[end:], "\r\n") {
			size = 2
		}
		line := s[:end]
		if keepEnds {
			line = s[:end+size]
		}
		lines, s = append(lines, line), s[end+size:]
	}
	return lines
}

func stringList(parts []string) []any {
	out := make([]any, len(parts))
	for i, s := range parts {
		out[i] = s
	}
	return out
}
