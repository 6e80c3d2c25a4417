package value

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// Filters are all filters but specialFilters.
var Filters = map[string]Callable{
	"abs":            {Op: filterAbs},
	"batch":          {Op: onItems(filterBatch), Params: "linecount fill_with?"},
	"capitalize":     {Op: onText(capitalize)},
	"center":         {Op: filterCenter, Params: "width?"},
	"count":          {Op: filterLength},
	"dictsort":       {Op: filterDictsort, Params: "case_sensitive? by? reverse?"},
	"e":              {Op: onText(escapeHTML)},
	"escape":         {Op: onText(escapeHTML)},
	"filesizeformat": {Op: filterFilesize, Params: "binary?"},
	"first":          {Op: onItems(filterFirst)},
	"float":          {Op: filterFloat, Params: "default?"},
	"forceescape":    {Op: onText(escapeHTML)},
	"format":         {Op: filterFormat, Free: true},
	"groupby":        {Op: onItems(filterGroupby), Params: "attribute default? case_sensitive?"},
	"indent":         {Op: filterIndent, Params: "width? first? blank?"},
	"int":            {Op: filterInt, Params: "default? base?"},
	"items":          {Op: filterItems},
	"join":           {Op: onItems(filterJoin), Params: "d? attribute?"},
	"last":           {Op: onItems(filterLast)},
	"length":         {Op: filterLength},
	"list":           {Op: onItems(filterList)},
	"lower":          {Op: onText(lower)},
	"max":            {Op: onItems(extreme(1)), Params: "case_sensitive? attribute?"},
	"min":            {Op: onItems(extreme(-1)), Params: "case_sensitive? attribute?"},
	"replace":        {Op: filterReplace, Params: "old new count?"},
	"reverse":        {Op: filterReverse},
	"round":          {Op: filterRound, Params: "precision? method?"},
	"safe":           {Op: opText},
	"slice":          {Op: onItems(filterSlice), Params: "slices fill_with?"},
	"sort":           {Op: onItems(filterSort), Params: "reverse? case_sensitive? attribute?"},
	"string":         {Op: opText},
	"striptags":      {Op: filterStriptags},
	"sum":            {Op: onItems(filterSum), Params: "attribute? start?"},
	"title":          {Op: onText(title)},
	"tojson":         {Op: opToJSON, Params: "indent? ensure_ascii?"},
	"trim":           {Op: trimmer(strings.TrimFunc), Params: "chars?"},
	"truncate":       {Op: filterTruncate, Params: "length? killwords? end? leeway?"},
	"unique":         {Op: onItems(filterUnique), Params: "case_sensitive? attribute?"},
	"upper":          {Op: onText(upper)},
	"urlencode":      {Op: filterURLEncode},
	"wordcount":      {Op: func(r *Run, v any, _ []any) (any, error) { return countText(r, v, countWords) }},
	"xmlattr":        {Op: filterXMLAttr, Params: "autospace?"},
}

// filterFormat is "%s %(name)s"|format(...).
func filterFormat(r *Run, v any, args []any) (any, error) {
	s, err := r.Text(v)
	if err != nil {
		return nil, err
	}
	positional, named := freeArgs(args)
	switch {
	case len(named) == 0:
		return r.formatPercent(s, tuple(positional...))
	case len(positional) > 0:
		return nil, errors.New("arguments must be all positional or all named")
	}
	return r.formatPercent(s, named)
}

// onText is a filter that turns text into text of about the same length.
func onText(f func(string) string) Operation {
	return func(r *Run, v any, _ []any) (any, error) {
		s, err := r.Text(v)
		if err != nil {
			return nil, err
		}
		if err := r.SpendTimes(len(s), 4); err != nil {
			return nil, err
		}
		return f(s), nil
	}
}

// onItems passes op the items of a value.
func onItems(op func(r *Run, items, args []any) (any, error)) Operation {
	return func(r *Run, v any, args []any) (any, error) {
		items, err := r.Items(v)
		if err != nil {
			return nil, err
		}
		return op(r, items, args)
	}
}

func countText(r *Run, v any, f func(string) int) (any, error) {
	s, err := r.Text(v)
	if err != nil {
		return nil, err
	}
	if err := r.Spend(len(s)); err != nil {
		return nil, err
	}
	return int64(f(s)), nil
}

// countWords counts runs of letters, digits and underscores.
func countWords(s string) int {
	n := 0
	for range strings.FieldsFuncSeq(s, func(c rune) bool { return c != '_' && !isAlnum(c) }) { // keeps none of them
		n++
	}
	return n
}

// trimmer is a filter that cuts the characters chars, or spaces, off text.
func trimmer(cut func(s string, f func(rune) bool) string) Operation {
	return func(r *Run, v any, args []any) (any, error) {
		g := given{args: args}
		chars := g.string(0, "")
		s, err := r.Text(v)
		if err := cmp.Or(err, g.err); err != nil {
			return nil, err
		}
		if err := r.SpendTimes(len(s), 1+len(chars)/16); err != nil {
			return nil, err
		}
		if g.left(0) {
			return cut(s, IsSpace), nil
		}
		return cut(s, func(c rune) bool { return strings.ContainsRune(chars, c) }), nil
	}
}

func filterAbs(r *Run, v any, args []any) (any, error) {
	n, ok := number(v)
	switch {
	case !ok:
		return nil, fmt.Errorf("%s is not a number", article(v))
	case math.Signbit(n.f):
		return Negative(r, v, args)
	}
	return Positive(r, v, args)
}

func filterLength(r *Run, v any, _ []any) (any, error) {
	switch v := v.(type) {
	case []any:
		return int64(len(v)), nil
	case *series:
		return int64(len(v.items)), nil
	case map[string]any:
		return int64(len(v)), nil
	case string:
		return countText(r, v, utf8.RuneCountInString)
	}
	return nil, fmt.Errorf("%s has no length", article(v))
}

func filterReplace(r *Run, v any, args []any) (any, error) {
	s, err := r.Text(v)
	from, err1 := r.Text(args[0])
	to, err2 := r.Text(args[1])
	g := given{args: args}
	most := g.int(2, -1)
	if err := cmp.Or(err, err1, err2, g.err); err != nil {
		return nil, err
	}
	if err := r.Spend(len(s)); err != nil {
		return nil, err
	}
	n := strings.Count(s, from)
	if most >= 0 {
		n = int(min(int64(n), most))
	}
	if err := r.SpendTimes(n, len(to)); err != nil {
		return nil, err
	}
	return strings.Replace(s, from, to, n), nil
}

func filterIndent(r *Run, v any, args []any) (any, error) {
	s, ok := v.(string)
	if !ok {
		return nil, fmt.Errorf("%s is not a string; convert it with |string", article(v))
	}
	g := given{args: args}
	width, isText := args[0].(string)
	if !isText {
		n := int(max(0, min(g.int(0, 4), math.MaxInt32)))
		if err := cmp.Or(g.err, r.Spend(n)); err != nil {
			return nil, err
		}
		width = strings.Repeat(" ", n)
	}
	first, blank := g.bool(1, false), g.bool(2, false)
	if err := r.SpendTimes(len(s), ItemCost); err != nil {
		return nil, err
	}
	lines := splitLines(s+"\n", false)
	if err := r.SpendTimes(len(lines), ItemCost+len(width)); err != nil {
		return nil, err
	}
	for i, line := range lines {
		if i == 0 && first || i > 0 && (blank || line != "") {
			lines[i] = width + line
		}
	}
	return strings.Join(lines, "\n"), nil
}

func filterTruncate(r *Run, v any, args []any) (any, error) {
	s, ok := v.(string)
	if !ok {
		return nil, fmt.Errorf("%s is not a string; convert it with |string", article(v))
	}
	g := given{args: args}
	length, killwords, end, leeway := g.int(0, 255), g.bool(1, false), g.string(2, "..."), g.int(3, 5)
	if g.err != nil {
		return nil, g.err
	}
	if err := r.SpendTimes(len(s)+len(end), 4); err != nil {
		return nil, err
	}
	runes := []rune(s)
	length, leeway = min(length, math.MaxInt32), min(leeway, math.MaxInt32)
	keep := length - int64(utf8.RuneCountInString(end))
	switch {
	case keep < 0 || leeway < 0:
		return nil, errors.New("the length is less than that of the end, or the leeway is negative")
	case int64(len(runes)) <= length+leeway:
		return s, nil
	}
	s = string(runes[:keep])
	if at := strings.LastIndexByte(s, ' '); !killwords && at >= 0 {
		s = s[:at]
	}
	return s + end, nil
}

func filterCenter(r *Run, v any, args []any) (any, error) {
	s, err := r.Text(v)
	g := given{args: args}
	width := g.int(0, 80)
	if err := cmp.Or(err, g.err); err != nil {
		return nil, err
	}
	return justify('^')(r, s, []any{width, Missing{}})
}
