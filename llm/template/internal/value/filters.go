package value

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// Filters are the filters except for specialFilters, which the parser builds.
var Filters = map[string]Callable{
	"abs":            {Op: filterAbs},
	"batch":          typed("linecount:int fill_with?", onItems(filterBatch)),
	"capitalize":     {Op: mapped(capitalize)},
	"center":         typed("width?:int", onText(0, filterCenter)),
	"count":          {Op: filterLength},
	"dictsort":       typed("case_sensitive? by?:str reverse?", onMapping(filterDictsort)),
	"e":              {Op: mapped(escapeHTML)},
	"escape":         {Op: mapped(escapeHTML)},
	"filesizeformat": {Op: filterFilesize, Params: "binary?"},
	"first":          {Op: onItems(itemAt(0))},
	"float":          {Op: filterFloat, Params: "default?"},
	"forceescape":    {Op: mapped(escapeHTML)},
	"format":         {Op: onText(0, filterFormat), Free: true},
	"groupby":        {Op: onItems(filterGroupby), Params: "attribute default? case_sensitive?"},
	"indent":         {Op: onStrings(ItemCost, filterIndent), Params: "width? first? blank?"},
	"int":            typed("default? base?:int", filterInt),
	"items":          method("mapping", "", onMapping(func(r *Run, m map[string]any, keys, _ []any) (any, error) { return r.members(m, keys, pair) })),
	"join":           {Op: onItems(filterJoin), Params: "d? attribute?"},
	"last":           {Op: onItems(itemAt(-1))},
	"length":         {Op: filterLength},
	"list":           {Op: onItems(filterList)},
	"lower":          {Op: mapped(lower)},
	"max":            {Op: onItems(extreme(1)), Params: "case_sensitive? attribute?"},
	"min":            {Op: onItems(extreme(-1)), Params: "case_sensitive? attribute?"},
	"replace":        typed("old new count?:int", onText(1, filterReplace)),
	"reverse":        {Op: filterReverse},
	"round":          typed("precision?:int method?:str", filterRound),
	"safe":           {Op: opText},
	"slice":          typed("slices:int fill_with?", onItems(filterSlice)),
	"sort":           {Op: onItems(filterSort), Params: "reverse? case_sensitive? attribute?"},
	"string":         {Op: opText},
	"striptags":      {Op: onText(ItemCost, filterStriptags)},
	"sum":            {Op: onItems(filterSum), Params: "attribute? start?"},
	"title":          {Op: mapped(title)},
	"tojson":         typed("indent?:int ensure_ascii?", opToJSON),
	"trim":           typed("chars?:str", onText(1, trimmer(strings.TrimFunc))),
	"truncate":       typed("length?:int killwords? end?:str leeway?:int", onStrings(4, filterTruncate)),
	"unique":         {Op: onItems(filterUnique), Params: "case_sensitive? attribute?"},
	"upper":          {Op: mapped(upper)},
	"urlencode":      {Op: filterURLEncode},
	"wordcount":      {Op: onText(1, func(_ *Run, s string, _ []any) (any, error) { return countWords(s), nil })},
	"xmlattr":        {Op: onMapping(filterXMLAttr), Params: "autospace?"},
}

// filterFormat is "%s %(name)s"|format(...).
func filterFormat(r *Run, s string, args []any) (any, error) {
	positional, named := freeArgs(args)
	var values any = named
	switch {
	case len(named) == 0:
		values = tuple(positional...)
	case len(positional) > 0:
		return nil, errors.New("arguments must be all positional or all named")
	}
	return r.written(func(w *writer) { w.percentFormat(s, values) })
}

// countWords counts runs of letters, digits and underscores.
func countWords(s string) (n int64) {
	// The sequence allocates none of the words.
	for range strings.FieldsFuncSeq(s, func(c rune) bool { return c != '_' && !isAlnum(c) }) {
		n++
	}
	return n
}

// trimmer strips the characters of its argument, or white space.
func trimmer(cut func(s string, f func(rune) bool) string) textOperation {
	return func(r *Run, s string, args []any) (any, error) {
		if absent(args[0]) {
			return cut(s, IsSpace), nil
		}
		chars := textOr(args[0], "")
		if err := r.SpendTimes(len(s), len(chars)/16); err != nil {
			return nil, err
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
	if s, ok := v.(string); ok {
		return int64(utf8.RuneCountInString(s)), r.Spend(len(s))
	}
	n, ok := size(v)
	if !ok {
		return nil, fmt.Errorf("%s has no length", article(v))
	}
	return int64(n), nil
}

func filterReplace(r *Run, s string, args []any) (any, error) {
	from, err := r.Text(args[0])
	to, err1 := r.Text(args[1])
	if err := cmp.Or(err, err1); err != nil {
		return nil, err
	}
	n := strings.Count(s, from)
	if most := intOr(args[2], -1); most >= 0 {
		n = int(min(int64(n), most))
	}
	if err := r.SpendTimes(n, len(to)); err != nil {
		return nil, err
	}
	return strings.Replace(s, from, to, n), nil
}

func filterIndent(r *Run, s string, args []any) (any, error) {
	width, isText := args[0].(string)
	if !isText {
		if absent(args[0]) {
			args = []any{int64(4), args[1], args[2]}
		}
		n := fieldWidth(args[0])
		if err := cmp.Or(checkType("int", 0, args[0]), r.Spend(n)); err != nil {
			return nil, err
		}
		width = strings.Repeat(" ", n)
	}
	first, blank := truthOr(args[1], false), truthOr(args[2], false)
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

func filterTruncate(r *Run, s string, args []any) (any, error) {
	end := textOr(args[2], "...")
	if err := r.SpendTimes(len(end), 4); err != nil {
		return nil, err
	}
	runes := []rune(s)
	length, leeway := min(intOr(args[0], 255), math.MaxInt32), min(intOr(args[3], 5), math.MaxInt32)
	keep := length - int64(utf8.RuneCountInString(end))
	switch {
	case keep < 0 || leeway < 0:
		return nil, errors.New("the length is less than that of the end, or the leeway is negative")
	case int64(len(runes)) <= length+leeway:
		return s, nil
	}
	s = string(runes[:keep])
	if at := strings.LastIndexByte(s, ' '); !truthOr(args[1], false) && at >= 0 {
		s = s[:at]
	}
	return s + end, nil
}

func filterCenter(r *Run, s string, args []any) (any, error) {
	return justify('^')(r, s, []any{intOr(args[0], 80), Missing{}})
}
