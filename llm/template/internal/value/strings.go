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

// Methods are the methods of strings, mappings, lists, tuples and loops. None modifies a
// value but loop.changed, which remembers its arguments.
var Methods = map[string]Callable{
	"capitalize":   method("string", "", mapped(capitalize)),
	"casefold":     method("string", "", mapped(casefold)),
	"center":       method("string", "width:int fillchar?:str", onText(0, justify('^'))),
	"count":        {Op: methodCount, Params: "sub start? end?"},
	"changed":      freeMethod("loop", methodChanged),
	"cycle":        freeMethod("loop", methodCycle),
	"endswith":     method("string", "suffix start? end?", onText(0, affix(strings.HasSuffix))),
	"expandtabs":   method("string", "tabsize?:int", onText(2, methodExpandtabs)),
	"find":         method("string", "sub:str start? end?", onText(0, finder(strings.Index, false))),
	"format":       freeMethod("string", methodFormat),
	"get":          method("mapping", "key default?", methodGet),
	"index":        {Op: methodIndex, Params: "sub start? end?"},
	"isalnum":      method("string", "", mapped(all(isAlnum))),
	"isalpha":      method("string", "", mapped(all(unicode.IsLetter))),
	"isascii":      method("string", "", mapped(isASCII)),
	"isdecimal":    method("string", "", mapped(all(unicode.IsDigit))),
	"isdigit":      method("string", "", mapped(all(isDigit))),
	"islower":      method("string", "", mapped(allCased(isLower, isUpper))),
	"isnumeric":    method("string", "", mapped(all(isNumeric))),
	"isspace":      method("string", "", mapped(all(IsSpace))),
	"istitle":      method("string", "", mapped(isTitle)),
	"isupper":      method("string", "", mapped(allCased(isUpper, isLower))),
	"items":        view(kindItems, pair),
	"join":         method("string", "items", onText(0, methodJoin)),
	"keys":         view(kindKeys, func(key, _ any) any { return key }),
	"ljust":        method("string", "width:int fillchar?:str", onText(0, justify('<'))),
	"lower":        method("string", "", mapped(lower)),
	"lstrip":       method("string", "chars?:str", onText(1, trimmer(strings.TrimLeftFunc))),
	"partition":    method("string", "sep:str", onText(1, partition(strings.Index))),
	"removeprefix": method("string", "prefix:str", onText(0, onTwo(strings.TrimPrefix))),
	"removesuffix": method("string", "suffix:str", onText(0, onTwo(strings.TrimSuffix))),
	"replace":      method("string", "old:str new:str count?:int", onText(1, filterReplace)),
	"rfind":        method("string", "sub:str start? end?", onText(0, finder(strings.LastIndex, false))),
	"rindex":       method("string", "sub:str start? end?", onText(0, finder(strings.LastIndex, true))),
	"rjust":        method("string", "width:int fillchar?:str", onText(0, justify('>'))),
	"rpartition":   method("string", "sep:str", onText(1, partition(strings.LastIndex))),
	"rsplit":       method("string", "sep?:str maxsplit?:int", onText(2*ItemCost, splitter(rsplit))),
	"rstrip":       method("string", "chars?:str", onText(1, trimmer(strings.TrimRightFunc))),
	"split":        method("string", "sep?:str maxsplit?:int", onText(2*ItemCost, splitter(split))),
	"splitlines":   method("string", "keepends?", onText(2*ItemCost, methodSplitlines)),
	"startswith":   method("string", "prefix start? end?", onText(0, affix(strings.HasPrefix))),
	"strip":        method("string", "chars?:str", onText(1, trimmer(strings.TrimFunc))),
	"swapcase":     method("string", "", mapped(swapcase)),
	"title":        method("string", "", mapped(titleWords)),
	"upper":        method("string", "", mapped(upper)),
	"values":       view(kindValues, func(_, v any) any { return v }),
	"zfill":        method("string", "width:int", onText(0, methodZfill)),
}

func freeMethod(of string, op Operation) Callable {
	c := method(of, "", op)
	c.Free = true
	return c
}

// all returns a test that all characters match is, and that there is at least one.
func all(is func(rune) bool) func(s string) bool {
	return func(s string) bool {
		return s != "" && strings.IndexFunc(s, func(c rune) bool { return !is(c) }) < 0
	}
}

// onTwo is a method of a string and another one.
func onTwo(f func(s, t string) string) textOperation {
	return func(r *Run, s string, args []any) (any, error) {
		t := textOr(args[0], "")
		return f(s, t), r.Spend(len(t))
	}
}

// span returns the part of s from the character args[1] to args[2], and the number of
// characters before it. found is false if the part begins after the end, where not even
// "" is found.
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
func affix(has func(s, t string) bool) textOperation {
	return func(r *Run, s string, args []any) (any, error) {
		part, _, found, err := r.span(s, args)
		if err != nil {
			return nil, err
		}
		options := args[:1]
		if kindOf(args[0]) == kindTuple {
			options, _ = itemsOf(args[0])
		}
		for i, t := range options {
			t, ok := t.(string)
			if !ok {
				return nil, checkType("str", i, options[i])
			}
			if err := r.Spend(StepCost + len(t)); err != nil {
				return nil, err
			}
			if found && has(part, t) {
				return true, nil
			}
		}
		return false, nil
	}
}

// finder is find, rfind or rindex. If it must find the text, a text that is not found is
// an error.
func finder(index func(s, sub string) int, must bool) textOperation {
	return func(r *Run, s string, args []any) (any, error) {
		part, before, found, err := r.span(s, args)
		if err != nil {
			return nil, err
		}
		at := -1
		if found {
			at = index(part, textOr(args[0], ""))
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
	if s, ok := v.(string); ok {
		if err := checkType("str", 0, args[0]); err != nil {
			return nil, err
		}
		return finder(strings.Index, true)(r, s, args)
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
		part, _, found, err := r.span(s, args)
		if err := cmp.Or(checkType("str", 0, args[0]), err); err != nil || !found {
			return int64(0), err
		}
		return int64(strings.Count(part, textOr(args[0], ""))), r.Spend(len(s))
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

func methodJoin(r *Run, s string, args []any) (any, error) {
	items, err := r.Items(args[0])
	if err != nil {
		return nil, err
	}
	for _, item := range items {
		if _, ok := item.(string); !ok {
			return nil, fmt.Errorf("it joins strings, not %s; the filter join takes any value", article(item))
		}
	}
	return filterJoin(r, items, []any{s, Missing{}})
}

// partition is the text before a separator, the separator and the text after it.
func partition(index func(s, sep string) int) textOperation {
	return func(r *Run, s string, args []any) (any, error) {
		sep := textOr(args[0], "")
		if sep == "" {
			return nil, errEmptySeparator
		}
		if err := r.Spend(3 * ItemCost); err != nil {
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

// fieldWidth returns an argument as a width, within the bounds of formats.
func fieldWidth(arg any) int { return int(max(0, min(intOr(arg, 0), math.MaxInt32))) }

// justify is ljust, rjust or center.
func justify(align byte) textOperation {
	return func(r *Run, s string, args []any) (any, error) {
		fill := textOr(args[1], " ")
		if utf8.RuneCountInString(fill) != 1 {
			return nil, errors.New("argument 2 must be a single character")
		}
		spec := formatSpec{align: align, width: fieldWidth(args[0]), precision: -1}
		spec.fill, _ = utf8.DecodeRuneInString(fill)
		return r.written(func(w *writer) {
			if missing := spec.width - utf8.RuneCountInString(s); align == '^' && missing > 0 && missing&spec.width&1 == 1 {
				// str.center, unlike a format, puts the odd one in front if the width is
				// odd.
				spec.width--
				w.dst = append(w.dst, fill...)
			}
			spec.text(w, s)
		})
	}
}

func methodZfill(r *Run, s string, args []any) (any, error) {
	digits := strings.TrimLeft(s[:min(1, len(s))], "+-") + s[min(1, len(s)):]
	spec := formatSpec{fill: '0', align: '=', width: fieldWidth(args[0])}
	return r.written(func(w *writer) { spec.pad(w, s[:len(s)-len(digits)], digits, '=') })
}

func methodExpandtabs(r *Run, s string, args []any) (any, error) {
	size := max(0, min(intOr(args[0], 8), math.MaxInt32))
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
	return b.String(), nil
}

var errEmptySeparator = errors.New("the separator is empty")

// splitter is split or rsplit. f splits s at a separator, at most that many times; the
// separator "" is white space.
func splitter(f func(s, sep string, most int) []string) textOperation {
	return func(_ *Run, s string, args []any) (any, error) {
		sep, most := textOr(args[0], ""), intOr(args[1], -1)
		if sep == "" && !absent(args[0]) {
			return nil, errEmptySeparator
		}
		if most < 0 || most > math.MaxInt32 {
			most = math.MaxInt32
		}
		return stringList(f(s, sep, int(most))), nil
	}
}

func split(s, sep string, most int) (parts []string) {
	if sep != "" {
		return strings.SplitN(s, sep, most+1)
	}
	for s = strings.TrimLeftFunc(s, IsSpace); s != ""; s = strings.TrimLeftFunc(s, IsSpace) {
		end := strings.IndexFunc(s, IsSpace)
		if end < 0 || len(parts) == most {
			return append(parts, s)
		}
		parts, s = append(parts, s[:end]), s[end:]
	}
	return parts
}

func rsplit(s, sep string, most int) (parts []string) {
	for spaces := sep == ""; ; {
		if spaces {
			s = strings.TrimRightFunc(s, IsSpace)
		}
		at, size := strings.LastIndex(s, sep), len(sep)
		if spaces {
			at = strings.LastIndexFunc(s, IsSpace)
			_, size = utf8.DecodeRuneInString(s[max(at, 0):])
		}
		if at < 0 || len(parts) == most {
			if s != "" || !spaces {
				parts = append(parts, s)
			}
			slices.Reverse(parts)
			return parts
		}
		parts, s = append(parts, s[at+size:]), s[:at]
	}
}

func methodSplitlines(_ *Run, s string, args []any) (any, error) {
	return stringList(splitLines(s, truthOr(args[0], false))), nil
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
