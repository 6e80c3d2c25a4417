package llm

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// Replies are read member by member, without reflection, because one is read for each
// row. A member of a wrong type counts as not reported: servers put different things into
// the same members, and one unusual member must not cost a paid reply. If names repeat,
// the last member counts.

// slot names a member, and where its value goes or which func reads it.
type slot struct {
	name  string
	value *[]byte
	read  func(value []byte)
}

func at(name string, value *[]byte) slot         { return slot{name: name, value: value} }
func each(name string, read func(v []byte)) slot { return slot{name: name, read: read} }

// pick fills the slots from the members of an object. The value of one that is not there
// stays as it was.
func pick(raw []byte, slots ...slot) {
	for key, value := range jsonbytes.Members(raw) {
		for i := range slots {
			s := &slots[i]
			if s.name != string(key) {
				continue
			}
			if s.read != nil {
				s.read(value)
			} else {
				*s.value = value
			}
			break
		}
	}
}

// textOf reads a string. Anything else is empty.
func textOf(raw []byte) string {
	if len(raw) > 0 && raw[0] == '"' {
		return jsonbytes.Text(raw)
	}
	return ""
}

// looseString reads a string, or a number or boolean by its digits: providers spell codes
// both ways, such as "429" and 429. It returns empty for anything else, for false, and
// for a member that was not reported.
func looseString(raw []byte) string {
	switch {
	case len(raw) == 0:
		return ""
	case raw[0] == '"':
		return jsonbytes.Text(raw)
	case raw[0] == '{', raw[0] == '[', raw[0] == 'n', raw[0] == 'f':
		return ""
	}
	return string(raw)
}

// joinParts joins the texts of those parts in a list whose type is one of kinds. Parts of
// other kinds (thinking, images) are skipped.
func joinParts(raw []byte, kinds ...string) string {
	var texts []string
	for part := range jsonbytes.Elements(raw) {
		if kind, text := typed(part, "text"); slices.Contains(kinds, kind) {
			texts = append(texts, looseString(text))
		}
	}
	return strings.Join(texts, "") // of a single one no copy is made
}

// isRefusal reports whether a part of an answer, by its type and its member of that name,
// is a refusal of the model.
func isRefusal(kind string, refusal []byte) bool {
	return kind == "refusal" && string(refusal) != `""`
}

// hasRefusal reports whether a list of parts has a refusal.
func hasRefusal(raw []byte) bool {
	for part := range jsonbytes.Elements(raw) {
		if isRefusal(typed(part, "refusal")) {
			return true
		}
	}
	return false
}

// endOf returns what a finish reason means by the list of a wire format. A reason that it
// does not list is not a natural end: a provider's new reason must not turn half an
// answer into a success.
func endOf(ends map[string]finish, reason string) finish {
	if finish, ok := ends[reason]; ok {
		return finish
	}
	return finishUnfinished
}

// typed returns the type that an object gives itself, and the member of this name.
func typed(raw []byte, name string) (kind string, member []byte) {
	var own []byte
	pick(raw, at("type", &own), at(name, &member))
	return textOf(own), member
}

// isReported reports whether a member is present and not null.
func isReported(raw []byte) bool { return len(raw) > 0 && raw[0] != 'n' }

// firstElement returns a non-empty array from its first element on, which is enough for
// [pick]; ok is false for anything else.
func firstElement(raw []byte) (first []byte, ok bool) {
	if len(raw) == 0 || raw[0] != '[' {
		return nil, false
	}
	first = raw[jsonbytes.SkipSpace(raw, 1):]
	return first, first[0] != ']'
}

// isObject reports whether a member is present and an object.
func isObject(raw []byte) bool { return len(raw) > 0 && raw[0] == '{' }

// isTrue reports whether a member is present and true.
func isTrue(raw []byte) bool { return len(raw) > 0 && raw[0] == 't' }

// isError reports whether a member is an error object with content. Gateways that write
// all members of a reply put an empty one next to a complete answer.
func isError(raw []byte) bool {
	if isObject(raw) {
		for _, value := range jsonbytes.Members(raw) {
			switch string(value) {
			case "null", `""`, "0", "false", "{}", "[]":
			default:
				return true
			}
		}
	}
	return false
}

// count is a number of tokens: reported when it is a whole number from 0 up. Null counts
// as not reported.
type count struct {
	n        int64
	reported bool
	bad      bool // reported, and no such number
}

func countOf(raw []byte) count {
	if n, ok := digits(raw); ok { // as nearly all are
		return count{n: n, reported: true}
	}
	if len(raw) == 0 {
		return count{}
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f < 0 || f > 1<<53 || f != math.Trunc(f) {
		return count{bad: string(raw) != "null"}
	}
	return count{n: int64(f), reported: true}
}

// plus returns the sum of c and a part, which may not be reported.
func (c count) plus(part count) count {
	return count{n: c.n + part.n, reported: c.reported, bad: c.bad || part.bad}
}

// or returns c, or other where c was not reported.
func (c count) or(other count) count {
	if c.reported {
		return c
	}
	return other
}

// usdMax bounds the cost of a call, so that no sum of costs becomes infinite.
const usdMax = 1e9

// amount is a sum of money in USD: reported when it is a number from 0 to usdMax.
type amount struct {
	usd      float64
	reported bool
}

func amountOf(raw []byte) amount {
	if len(raw) == 0 {
		return amount{}
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || !(f >= 0 && f <= usdMax) {
		return amount{}
	}
	return amount{usd: f, reported: true}
}

// digits reads a number of at most 15 digits, and nothing else.
func digits(raw []byte) (n int64, ok bool) {
	if len(raw) == 0 || len(raw) > 15 {
		return 0, false
	}
	for _, c := range raw {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// blank reports whether a reply holds nothing but white space.
func blank(s string) bool { return strings.TrimSpace(s) == "" }
