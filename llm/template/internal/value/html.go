package value

import (
	"cmp"
	"fmt"
	"html"
	"strings"
)

// htmlEscapes are the escapes of MarkupSafe, which Jinja uses.
var htmlEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;")

func escapeHTML(s string) string { return htmlEscapes.Replace(s) }

// filterStriptags removes comments and tags, collapses white space and unescapes entities.
func filterStriptags(_ *Run, s string, _ []any) (any, error) {
	for _, mark := range [][2]string{{"<!--", "-->"}, {"<", ">"}} {
		var b strings.Builder
		for {
			before, rest, opens := strings.Cut(s, mark[0])
			_, after, closes := strings.Cut(rest, mark[1])
			if !opens || !closes {
				break
			}
			b.WriteString(before)
			s = after
		}
		s = b.String() + s
	}
	return html.UnescapeString(strings.Join(strings.FieldsFunc(s, IsSpace), " ")), nil
}

// filterXMLAttr writes a mapping as attributes of an element, but not its none values.
func filterXMLAttr(r *Run, m map[string]any, keys, args []any) (any, error) {
	var b strings.Builder
	for _, k := range keys {
		key, _ := k.(string)
		if m[key] == nil {
			continue
		}
		if strings.ContainsFunc(key, IsSpace) || strings.ContainsAny(key, "/>=") {
			return nil, fmt.Errorf("%q cannot be the name of an attribute", key)
		}
		text, err := r.Text(m[key])
		if err != nil {
			return nil, err
		}
		if err := r.SpendTimes(len(key)+len(text), len("&#34;")); err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, ` %s="%s"`, escapeHTML(key), escapeHTML(text))
	}
	if !truthOr(args[0], true) {
		return strings.TrimPrefix(b.String(), " "), nil
	}
	return b.String(), nil
}

// filterURLEncode escapes a text for a path, or a mapping or pairs for a query.
func filterURLEncode(r *Run, v any, _ []any) (any, error) {
	_, isMapping := v.(map[string]any)
	if _, ok := itemsOf(v); !ok && !isMapping {
		return r.quoteURL(v, "-_.~/")
	}
	pairs, err := r.pairsOf(v)
	if err != nil {
		return nil, err
	}
	parts := make([]string, len(pairs))
	for i, p := range pairs {
		pair, ok := itemsOf(p)
		if !ok || len(pair) != 2 {
			return nil, fmt.Errorf("a query must be pairs of key and value, not %s", article(p))
		}
		key, err := r.quoteURL(pair[0], "-_.~ ")
		value, err1 := r.quoteURL(pair[1], "-_.~ ")
		if err := cmp.Or(err, err1); err != nil {
			return nil, err
		}
		parts[i] = strings.ReplaceAll(key+"="+value, " ", "+")
	}
	return strings.Join(parts, "&"), nil
}

// quoteURL escapes everything but ASCII letters, digits and the characters of safe as %xx.
func (r *Run) quoteURL(v any, safe string) (string, error) {
	s, err := r.Text(v)
	if err != nil {
		return "", err
	}
	if err := r.SpendTimes(len(s), 4); err != nil {
		return "", err
	}
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' || strings.IndexByte(safe, c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String(), nil
}

// filterFilesize writes a number of bytes with a human-readable unit.
func filterFilesize(r *Run, v any, args []any) (any, error) {
	got, err := filterFloat(r, v, []any{nil})
	if err != nil {
		return nil, err
	}
	bytes, ok := got.(float64)
	if !ok {
		return nil, fmt.Errorf("%s is not a number of bytes", article(v))
	}
	base, unit := 1000.0, "B"
	if truthOr(args[0], false) {
		base, unit = 1024, "iB"
	}
	switch {
	case bytes == 1:
		return "1 Byte", nil
	case bytes < base:
		whole, err := truncated(bytes)
		if err != nil {
			return nil, err
		}
		text, err := r.Text(whole)
		return text + " Bytes", err
	}
	const prefixes = "kMGTPEZY"
	prefix, size := 0, base*base
	for ; prefix < len(prefixes)-1 && !(bytes < size); prefix++ {
		size *= base
	}
	name := prefixes[prefix : prefix+1]
	if unit == "iB" {
		name = strings.ToUpper(name)
	}
	text, err := r.written(func(w *writer) { w.format(base*bytes/size, ".1f") })
	return text + " " + name + unit, err
}
