package excerpt

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// valueBytesMin is the length from which a value of a row is withheld as a whole.
	// Shorter ones are words that a message may have of its own.
	valueBytesMin = 6
	// runBytesMin is the length from which a part of a value is.
	runBytesMin = 12
	// blockBytes is the length of the blocks of a value that the message is searched for.
	// A run of runBytesMin holds a whole one wherever it begins.
	blockBytes = 6
	// blocksMax bounds how many blocks are looked at, of a row that repeats itself.
	blocksMax = 100_000
	// withheld stands for what was withheld.
	withheld = "[…]"
)

// Without returns the start of a message as [Of] does, without what it quotes of a row:
// strings and numbers of six bytes and more, and parts of them of twelve and more. So a
// log can show the message of a provider, which may quote the prompt. Names of members
// stay: they are what most messages are about. A row that is not JSON is one string.
func Without(message string, row []byte) string {
	w := newWithholder(message)
	w.withholdRow(row)
	return w.String()
}

// WithoutAll is [Without] for several texts, of which each may be a row or what was made
// of one. They are looked for in the whole message: what two of them have in common does
// not divide a quote of the second into parts that are too short to be withheld.
func WithoutAll(message string, texts ...string) string {
	w := newWithholder(message)
	for _, text := range texts {
		w.withholdRow([]byte(text))
	}
	return w.String()
}

// withholder marks the bytes of a text that are withheld.
type withholder struct {
	text   string
	hidden []bool
	blocks map[string][]int // where each block of the text begins
	looked int              // at so many blocks of the row
	all    bool             // it was too much to look at
}

func newWithholder(message string) *withholder {
	text := Of(message)
	w := &withholder{text: text, hidden: make([]bool, len(text)), blocks: make(map[string][]int)}
	for i := 0; i+blockBytes <= len(text); i++ {
		block := text[i : i+blockBytes]
		w.blocks[block] = append(w.blocks[block], i)
	}
	return w
}

// withholdRow marks what the text quotes of a row, or of a text that was made of one.
func (w *withholder) withholdRow(row []byte) {
	if w.text == "" {
		return
	}
	decoder := json.NewDecoder(bytes.NewReader(row))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		value = string(row)
	}
	w.looked = 0
	w.withhold(value)
	w.all = w.all || w.looked > blocksMax
}

// withhold marks what the text quotes of a value.
func (w *withholder) withhold(value any) {
	switch v := value.(type) {
	case map[string]any:
		for _, member := range v {
			w.withhold(member)
		}
	case []any:
		for _, element := range v {
			w.withhold(element)
		}
	case json.Number:
		w.quoted(v.String())
	case string:
		w.quoted(v)
		for _, escaped := range escapedForms(v) {
			w.quoted(escaped)
		}
	}
}

// escapedForms are a string as it stands inside JSON, where that is another text: a
// provider that quotes a request quotes bytes of its body. The second form is of encoders
// that write ASCII alone. Without them `say "hi" to Zoë` in `bad input: {"content":"say
// \"hi\" to Zo\u00eb"}` would be three runs, each too short to be withheld.
func escapedForms(value string) (forms []string) {
	if strings.IndexFunc(value, func(r rune) bool { return r < ' ' || r == '"' || r == '\\' || r >= utf8.RuneSelf }) < 0 {
		return nil
	}
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(value) != nil {
		return nil
	}
	quoted := strings.TrimSuffix(b.String(), "\n")
	form := quoted[1 : len(quoted)-1]
	if form != value {
		forms = append(forms, form)
	}
	b.Reset()
	ascii := false
	for _, r := range form {
		switch {
		case r < utf8.RuneSelf:
			b.WriteRune(r)
			continue
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		}
		ascii = true
	}
	if ascii {
		forms = append(forms, b.String())
	}
	return forms
}

// quoted marks what the text quotes of one string.
func (w *withholder) quoted(value string) {
	least := runBytesMin
	if value = strings.TrimSpace(value); len(value) >= valueBytesMin {
		least = min(least, len(value))
	}
	for at := 0; at+blockBytes <= len(value) && w.looked <= blocksMax; at += blockBytes {
		for _, i := range w.blocks[value[at:at+blockBytes]] {
			w.run(value, at, i, least)
		}
	}
}

// run marks the longest run that is the same in value, around the byte at, and in the
// text, around the byte i.
func (w *withholder) run(value string, at, i, least int) {
	if w.looked++; w.looked > blocksMax {
		return
	}
	from, to := i, i+blockBytes
	for shift := at - i; from > 0 && from+shift > 0 && w.text[from-1] == value[from+shift-1]; {
		from--
	}
	for shift := at - i; to < len(w.text) && to+shift < len(value) && w.text[to] == value[to+shift]; {
		to++
	}
	if to-from < least {
		return
	}
	for k := from; k < to; k++ {
		w.hidden[k] = true
	}
}

// String returns the text, with one sign in the place of each run that is withheld. Where
// it was too much to look at, all is.
func (w *withholder) String() string {
	if w.all {
		return withheld
	}
	var b strings.Builder
	for i := range len(w.text) {
		switch {
		case !w.hidden[i]:
			b.WriteByte(w.text[i])
		case i == 0 || !w.hidden[i-1]:
			b.WriteString(withheld)
		}
	}
	return strings.ToValidUTF8(b.String(), "")
}
