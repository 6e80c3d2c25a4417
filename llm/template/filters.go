package template

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// filters are all filters but default, map, select, reject, selectattr and rejectattr,
// which need more than the values of their arguments.
var filters = map[string]callable{
	"abs":            {op: filterAbs},
	"batch":          {op: filterBatch, params: "linecount fill_with?"},
	"capitalize":     {op: onText(capitalize)},
	"center":         {op: filterCenter, params: "width?"},
	"count":          {op: filterLength},
	"dictsort":       {op: filterDictsort, params: "case_sensitive? by? reverse?"},
	"e":              {op: onText(escapeHTML)},
	"escape":         {op: onText(escapeHTML)},
	"filesizeformat": {op: filterFilesize, params: "binary?"},
	"first":          {op: filterFirst},
	"float":          {op: filterFloat, params: "default?"},
	"forceescape":    {op: onText(escapeHTML)},
	"format":         {op: filterFormat, free: true},
	"groupby":        {op: filterGroupby, params: "attribute default? case_sensitive?"},
	"indent":         {op: filterIndent, params: "width? first? blank?"},
	"int":            {op: filterInt, params: "default? base?"},
	"items":          {op: filterItems},
	"join":           {op: filterJoin, params: "d? attribute?"},
	"last":           {op: filterLast},
	"length":         {op: filterLength},
	"list":           {op: filterList},
	"lower":          {op: onText(lower)},
	"max":            {op: extreme(1), params: "case_sensitive? attribute?"},
	"min":            {op: extreme(-1), params: "case_sensitive? attribute?"},
	"replace":        {op: filterReplace, params: "old new count?"},
	"reverse":        {op: filterReverse},
	"round":          {op: filterRound, params: "precision? method?"},
	"safe":           {op: opText},
	"slice":          {op: filterSlice, params: "slices fill_with?"},
	"sort":           {op: filterSort, params: "reverse? case_sensitive? attribute?"},
	"string":         {op: opText},
	"striptags":      {op: filterStriptags},
	"sum":            {op: filterSum, params: "attribute? start?"},
	"title":          {op: onText(title)},
	"tojson":         {op: opToJSON, params: "indent? ensure_ascii?"},
	"trim":           {op: trimmer(strings.TrimFunc), params: "chars?"},
	"truncate":       {op: filterTruncate, params: "length? killwords? end? leeway?"},
	"unique":         {op: filterUnique, params: "case_sensitive? attribute?"},
	"upper":          {op: onText(upper)},
	"urlencode":      {op: filterURLEncode},
	"wordcount":      {op: func(r *run, v any, _ []any) (any, error) { return countText(r, v, countWords) }},
	"xmlattr":        {op: filterXMLAttr, params: "autospace?"},
}

// Arguments. Those left out, and only those, have their default.

func intArg(args []any, i int, otherwise int64) (int64, error) {
	switch a := args[i].(type) {
	case missing, nil:
		return otherwise, nil
	case int64:
		return a, nil
	case bool:
		n, _ := number(a)
		return n.i, nil
	case json.Number:
		return 0, fmt.Errorf("argument %d is an integer of more than 64 bits", i+1)
	}
	return 0, fmt.Errorf("argument %d is an integer, not %s", i+1, article(args[i]))
}

func boolArg(args []any, i int, otherwise bool) bool {
	if args[i] == any(missing{}) {
		return otherwise
	}
	return truthy(args[i])
}

func stringArg(args []any, i int, otherwise string) (string, error) {
	switch a := args[i].(type) {
	case missing, nil:
		return otherwise, nil
	case string:
		return a, nil
	}
	return "", fmt.Errorf("argument %d is a string, not %s", i+1, article(args[i]))
}

// filterFormat is "%s %(name)s"|format(...).
func filterFormat(r *run, v any, args []any) (any, error) {
	s, err := r.text(v)
	if err != nil {
		return nil, err
	}
	positional, named := freeArgs(args)
	switch {
	case len(named) == 0:
		return r.formatPercent(s, tuple(positional...))
	case len(positional) > 0:
		return nil, errors.New("arguments have names or not, all of them")
	}
	return r.formatPercent(s, named)
}

// onText is a filter that turns text into text of about the same length.
func onText(f func(string) string) operation {
	return func(r *run, v any, _ []any) (any, error) {
		s, err := r.text(v)
		if err != nil {
			return nil, err
		}
		if err := r.spendTimes(len(s), 4); err != nil {
			return nil, err
		}
		return f(s), nil
	}
}

func countText(r *run, v any, f func(string) int) (any, error) {
	s, err := r.text(v)
	if err != nil {
		return nil, err
	}
	if err := r.spend(len(s)); err != nil {
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
func trimmer(cut func(s string, f func(rune) bool) string) operation {
	return func(r *run, v any, args []any) (any, error) {
		s, err := r.text(v)
		if err != nil {
			return nil, err
		}
		chars, err := stringArg(args, 0, "")
		if err != nil {
			return nil, err
		}
		if err := r.spendTimes(len(s), 1+len(chars)/16); err != nil {
			return nil, err
		}
		if args[0] == any(missing{}) || args[0] == nil {
			return cut(s, isSpace), nil
		}
		return cut(s, func(c rune) bool { return strings.ContainsRune(chars, c) }), nil
	}
}

func filterAbs(r *run, v any, args []any) (any, error) {
	n, ok := number(v)
	switch {
	case !ok:
		return nil, fmt.Errorf("%s is no number", article(v))
	case math.Signbit(n.f):
		return opNegative(r, v, args)
	}
	return opPositive(r, v, args)
}

func filterLength(r *run, v any, _ []any) (any, error) {
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

func filterReplace(r *run, v any, args []any) (any, error) {
	s, err := r.text(v)
	if err != nil {
		return nil, err
	}
	from, err := r.text(args[0])
	if err != nil {
		return nil, err
	}
	to, err := r.text(args[1])
	if err != nil {
		return nil, err
	}
	most, err := intArg(args, 2, -1)
	if err != nil {
		return nil, err
	}
	if err := r.spend(len(s)); err != nil {
		return nil, err
	}
	n := strings.Count(s, from)
	if most >= 0 {
		n = int(min(int64(n), most))
	}
	if err := r.spendTimes(n, len(to)); err != nil {
		return nil, err
	}
	return strings.Replace(s, from, to, n), nil
}

func filterIndent(r *run, v any, args []any) (any, error) {
	s, ok := v.(string)
	if !ok {
		return nil, fmt.Errorf("%s is no string; convert it with |string", article(v))
	}
	width, isText := args[0].(string)
	if !isText {
		n, err := intArg(args, 0, 4)
		if err != nil {
			return nil, err
		}
		if err := r.spendTimes(1, int(max(0, min(n, math.MaxInt32)))); err != nil {
			return nil, err
		}
		width = strings.Repeat(" ", int(max(0, n)))
	}
	first := boolArg(args, 1, false)
	blank := boolArg(args, 2, false)
	if err := r.spendTimes(len(s), itemCost); err != nil {
		return nil, err
	}
	lines := splitLines(s+"\n", false)
	if err := r.spendTimes(len(lines), itemCost+len(width)); err != nil {
		return nil, err
	}
	for i, line := range lines {
		if i == 0 && first || i > 0 && (blank || line != "") {
			lines[i] = width + line
		}
	}
	return strings.Join(lines, "\n"), nil
}

func filterTruncate(r *run, v any, args []any) (any, error) {
	s, ok := v.(string)
	if !ok {
		return nil, fmt.Errorf("%s is no string; convert it with |string", article(v))
	}
	length, err := intArg(args, 0, 255)
	if err != nil {
		return nil, err
	}
	killwords := boolArg(args, 1, false)
	end, err := stringArg(args, 2, "...")
	if err != nil {
		return nil, err
	}
	leeway, err := intArg(args, 3, 5)
	if err != nil {
		return nil, err
	}
	if err := r.spendTimes(len(s)+len(end), 4); err != nil {
		return nil, err
	}
	runes := []rune(s)
	length, leeway = min(length, math.MaxInt32), min(leeway, math.MaxInt32)
	keep := length - int64(utf8.RuneCountInString(end))
	switch {
	case keep < 0 || leeway < 0:
		return nil, errors.New("the length is below that of the end, or the leeway below 0")
	case int64(len(runes)) <= length+leeway:
		return s, nil
	}
	s = string(runes[:keep])
	if at := strings.LastIndexByte(s, ' '); !killwords && at >= 0 {
		s = s[:at]
	}
	return s + end, nil
}

func filterCenter(r *run, v any, args []any) (any, error) {
	s, err := r.text(v)
	if err != nil {
		return nil, err
	}
	width, err := intArg(args, 0, 80)
	if err != nil {
		return nil, err
	}
	return justify('^')(r, s, []any{width, missing{}})
}
