package llm

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// filters are all filters but default, map, select, reject, selectattr and rejectattr,
// which need more than the values of their arguments.
var filters = map[string]callable{
	"abs":        {op: filterAbs},
	"capitalize": {op: onText(capitalize)},
	"count":      {op: filterLength},
	"dictsort":   {op: filterDictsort},
	"first":      {op: filterFirst},
	"float":      {op: filterFloat, params: "default?"},
	"format":     {op: filterFormat, params: "a? b? c? d? e? f? g? h?"},
	"groupby":    {op: filterGroupby, params: "attribute"},
	"indent":     {op: filterIndent, params: "width? first? blank?"},
	"int":        {op: filterInt, params: "default?"},
	"items":      {op: methodItems},
	"join":       {op: filterJoin, params: "d? attribute?"},
	"last":       {op: filterLast},
	"length":     {op: filterLength},
	"list":       {op: func(r *rendering, v any, _ []any) (any, error) { return r.items(v) }},
	"lower":      {op: onText(strings.ToLower)},
	"max":        {op: extreme(1), params: "attribute?"},
	"min":        {op: extreme(-1), params: "attribute?"},
	"replace":    {op: filterReplace, params: "old new count?"},
	"reverse":    {op: filterReverse},
	"round":      {op: filterRound, params: "precision? method?"},
	"sort":       {op: filterSort, params: "reverse? case_sensitive? attribute?"},
	"string":     {op: opText},
	"sum":        {op: filterSum, params: "attribute? start?"},
	"title":      {op: onText(title)},
	"tojson":     {op: opToJSON, params: "indent? ensure_ascii?"},
	"trim":       {op: trimmer(strings.Trim), params: "chars?"},
	"truncate":   {op: filterTruncate, params: "length? killwords? end? leeway?"},
	"unique":     {op: filterUnique, params: "case_sensitive? attribute?"},
	"upper":      {op: onText(strings.ToUpper)},
	"wordcount":  {op: func(r *rendering, v any, _ []any) (any, error) { return countText(r, v, countWords) }},
}

// Arguments. Those left out, and only those, have their default.

func intArg(args []any, i int, otherwise int64) (int64, error) {
	switch a := args[i].(type) {
	case missing, nil:
		return otherwise, nil
	case int64:
		return a, nil
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

// given returns the arguments that are not left out.
func given(args []any) []any {
	n := len(args)
	for n > 0 && args[n-1] == any(missing{}) {
		n--
	}
	return args[:n]
}

func filterFormat(r *rendering, v any, args []any) (any, error) {
	s, err := r.text(v)
	if err != nil {
		return nil, err
	}
	return r.format(s, given(args))
}

// onText is a filter that turns text into text of about the same length.
func onText(f func(string) string) operation {
	return func(r *rendering, v any, _ []any) (any, error) {
		s, err := r.text(v)
		if err != nil {
			return nil, err
		}
		if err := r.spendTimes(len(s), 2); err != nil {
			return nil, err
		}
		return f(s), nil
	}
}

func countText(r *rendering, v any, f func(string) int) (any, error) {
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
	return len(strings.FieldsFunc(s, func(c rune) bool { return !isNameRune(c) }))
}

func capitalize(s string) string {
	_, size := utf8.DecodeRuneInString(s)
	return strings.ToUpper(s[:size]) + strings.ToLower(s[size:])
}

// title begins each word with a capital; words begin behind spaces and opening brackets
// and behind a hyphen.
func title(s string) string {
	begins := true
	return strings.Map(func(c rune) rune {
		was := begins
		begins = unicode.IsSpace(c) || strings.ContainsRune("-({[<", c)
		if was {
			return unicode.ToUpper(c)
		}
		return unicode.ToLower(c)
	}, s)
}

// trimmer is a filter that cuts the characters chars, or spaces, off text.
func trimmer(cut func(s, chars string) string) operation {
	return func(r *rendering, v any, args []any) (any, error) {
		s, err := r.text(v)
		if err != nil {
			return nil, err
		}
		chars, err := stringArg(args, 0, " \t\n\r\v\f\u0085\u00a0\u2028\u2029\u3000")
		if err != nil {
			return nil, err
		}
		return cut(s, chars), r.spendTimes(len(s), 1+len(chars)/16)
	}
}

func filterAbs(r *rendering, v any, args []any) (any, error) {
	i, f, isInt, ok := number(v)
	switch {
	case !ok:
		return nil, fmt.Errorf("%s is no number", article(v))
	case isInt && i < 0, !isInt && f < 0:
		return opNegative(r, v, args)
	case isInt:
		return i, nil
	}
	return v, nil
}

func filterLength(r *rendering, v any, _ []any) (any, error) {
	switch v := v.(type) {
	case []any:
		return int64(len(v)), nil
	case map[string]any:
		return int64(len(v)), nil
	case string:
		return countText(r, v, utf8.RuneCountInString)
	}
	return nil, fmt.Errorf("%s has no length", article(v))
}

func filterFloat(_ *rendering, v any, args []any) (any, error) {
	if _, f, _, ok := number(v); ok {
		return f, nil
	}
	if s, ok := v.(string); ok {
		if f, err := strconv.ParseFloat(strings.TrimSpace(s), 64); err == nil {
			return f, nil
		}
	}
	if args[0] == any(missing{}) {
		return 0.0, nil
	}
	return args[0], nil
}

func filterInt(_ *rendering, v any, args []any) (any, error) {
	i, f, isInt, ok := number(v)
	if s, isString := v.(string); isString {
		s = strings.TrimSpace(s)
		n, err := strconv.ParseInt(s, 10, 64)
		if err == nil {
			return n, nil
		}
		f, err = strconv.ParseFloat(s, 64)
		ok = err == nil
	}
	switch {
	case isInt:
		return i, nil
	case ok && math.Abs(f) < 1<<63:
		return int64(f), nil
	case args[0] == any(missing{}):
		return int64(0), nil
	}
	return args[0], nil
}

func filterRound(_ *rendering, v any, args []any) (any, error) {
	i, f, isInt, ok := number(v)
	precision, err := intArg(args, 0, 0)
	if err != nil {
		return nil, err
	}
	method, err := stringArg(args, 1, "common")
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, fmt.Errorf("%s is no number", article(v))
	case precision < -300 || precision > 300:
		return nil, errors.New("the precision is between -300 and 300")
	}
	scale := math.Pow(10, float64(precision))
	switch method {
	case "ceil":
		return math.Ceil(f*scale) / scale, nil
	case "floor":
		return math.Floor(f*scale) / scale, nil
	case "common":
		if isInt && precision >= 0 {
			return i, nil
		}
		if precision < 0 {
			f = math.RoundToEven(f*scale) / scale
		} else {
			// By its digits: 0.285 is below the half, 0.5 goes to the even 0.
			f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(precision), 64), 64)
		}
		if isInt {
			return int64(f), nil
		}
		return f, nil
	}
	return nil, fmt.Errorf(`the method is "common", "ceil" or "floor", not %q`, method)
}

func filterReplace(r *rendering, v any, args []any) (any, error) {
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

func filterIndent(r *rendering, v any, args []any) (any, error) {
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
	if err := r.spendTimes(1+strings.Count(s, "\n"), itemCost+len(width)); err != nil {
		return nil, err
	}
	lines := strings.SplitAfter(s, "\n")
	for i, line := range lines {
		if i == 0 && !first || i > 0 && !blank && (line == "\n" || line == "") {
			continue
		}
		lines[i] = width + line
	}
	return strings.Join(lines, ""), r.spend(len(s))
}

func filterTruncate(r *rendering, v any, args []any) (any, error) {
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
