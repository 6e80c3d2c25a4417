package redact_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"math/rand/v2"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/llm-stage/stage/llm/redact"
)

const secret = "sk-very-secret-0123456789"

func redactor(secrets ...string) *redact.Redactor {
	r := new(redact.Redactor)
	r.Add(secrets...)
	return r
}

const oddKey = `sk/very+odd_"key"=&<9>%2F~`

// TestSecretsAreFoundHoweverTheyAreSpelt has one spelling a line, of a key with all the characters that are escaped.
func TestSecretsAreFoundHoweverTheyAreSpelt(t *testing.T) {
	quoted := func(s string) string { b, _ := json.Marshal(s); return string(b[1 : len(b)-1]) }
	every := func(format string) func(string) string {
		return func(s string) (all string) {
			for _, c := range []byte(s) {
				all += fmt.Sprintf(format, c)
			}
			return all
		}
	}
	padded := func(before int, e *base64.Encoding) func(string) string {
		return func(s string) string { return e.EncodeToString([]byte(strings.Repeat("u", before) + s + ":rest")) }
	}
	spellings := map[string]func(string) string{
		"plain":                      func(s string) string { return s },
		"JSON":                       quoted,
		"JSON in JSON":               func(s string) string { return quoted(quoted(s)) },
		"JSON in JSON in JSON":       func(s string) string { return quoted(quoted(quoted(s))) },
		"slashes escaped":            func(s string) string { return strings.ReplaceAll(quoted(s), "/", `\/`) },
		"slashes twice":              func(s string) string { return quoted(strings.ReplaceAll(quoted(s), "/", `\/`)) },
		"all by code":                every(`\u%04x`),
		"all by code, upper":         every(`\u%04X`),
		"all by code, escaped twice": every(`\\u%04x`),
		"Go, Python":                 every(`\x%02x`),
		"query":                      url.QueryEscape,
		"path":                       url.PathEscape,
		"query, lower":               func(s string) string { return strings.ToLower(url.QueryEscape(strings.ToLower(s))) },
		"query twice":                func(s string) string { return url.QueryEscape(url.QueryEscape(s)) },
		"percent, all":               every("%%%02X"),
		"percent, all, lower":        every("%%%02x"),
		"percent in JSON":            func(s string) string { return strings.ReplaceAll(every("%%%02X")(s), "%", `\u0025`) },
		"HTML":                       html.EscapeString,
		"HTML in JSON":               func(s string) string { return quoted(html.EscapeString(s)) },
		"HTML, hex":                  every("&#x%X;"),
		"HTML, decimal":              every("&#%d;"),
		"HTML, names":                func(s string) string { return strings.ReplaceAll(html.EscapeString(s), "/", "&sol;") },
		"HTML, hyphens by name":      func(s string) string { return strings.ReplaceAll(html.EscapeString(s), "-", "&hyphen;") },
		"HTML, dashes by name":       func(s string) string { return strings.ReplaceAll(html.EscapeString(s), "-", "&dash;") },
		"HTML in a query":            func(s string) string { return url.QueryEscape(html.EscapeString(s)) },
		"hex":                        func(s string) string { return hex.EncodeToString([]byte(s)) },
		"hex, upper":                 func(s string) string { return strings.ToUpper(hex.EncodeToString([]byte(s))) },
		"base64 in a query":          func(s string) string { return url.QueryEscape(padded(1, base64.StdEncoding)(s)) },
		"base64, slashes escaped":    func(s string) string { return strings.ReplaceAll(padded(2, base64.StdEncoding)(s), "/", `\/`) },
	}
	for i := range 6 {
		spellings[fmt.Sprintf("base64 after %d", i)] = padded(i, base64.StdEncoding)
		spellings[fmt.Sprintf("base64, no padding, after %d", i)] = padded(i, base64.RawStdEncoding)
		spellings[fmt.Sprintf("base64 for URLs after %d", i)] = padded(i, base64.URLEncoding)
	}
	for _, key := range []string{secret, oddKey, "nvapi-0123", "u0041bcdefgh", "%ab%cd%ef%01", `back\slash-one`, "abcdef0123456789", "///////+"} {
		r := redactor("another-secret", key)
		for name, spell := range spellings {
			if name == "query, lower" {
				r.Add(strings.ToLower(key))
			}
			for _, around := range [][2]string{{"", ""}, {"Incorrect key ", "."}, {`{"a":"`, `"}`}, {`"\\`, `\n"`}, {"?key=", "&x=1"}, {"%20", "%20"}, {"x", "x"}, {`\u4f60\u00e9 `, ` \uffff`}} {
				text := around[0] + spell(key) + around[1]
				got := string(r.Redact([]byte(text)))
				if !strings.Contains(got, "[redacted]") || len(got) > len(around[0]+around[1])+40 {
					t.Errorf("%s of %s: %q becomes %q", name, key, text, got)
				}
				if got != r.RedactString(text) {
					t.Errorf("%s of %s: the string becomes another", name, key)
				}
			}
		}
	}
}

func TestWhatIsNoSecretStays(t *testing.T) {
	r := redactor(secret, "none", "Ollama", "EMPTY", "lm-studio", "sk-no-key-required", "not-needed", "x", "anything", "", "k3y", "pa55word!")
	for text, want := range map[string]string{
		"use ollama, none is EMPTY; lm-studio takes anything": "",
		"sk-very-secret":           "",
		"k3y":                      "[redacted]",
		"(k3y)":                    "([redacted])",
		`"a\nk3y\n"`:               `"a\n[redacted]\n"`,
		"a%20k3y%20":               "a%20[redacted]%20",
		`\u006b3y`:                 "[redacted]",
		"monk3y k3ys k3y3":         "",
		`"monk\u0033y"`:            "",
		"xpa55word!x":              "x[redacted]x",
		"50% of R&D &amp; \\n \\u": "",
	} {
		if want == "" {
			want = text
		}
		if got := r.RedactString(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
	none := (*redact.Redactor)(nil)
	if got := none.RedactString(secret) + string(none.RedactCut([]byte(secret))); got != secret+secret {
		t.Errorf("without a Redactor: %q", got)
	}
}

func TestJSONStaysValidWithoutTheSecret(t *testing.T) {
	for _, key := range []string{secret, "/starts-with-a-slash/", "+plus+plus+plus"} {
		r := redactor(key)
		for _, inside := range []string{
			`\\` + key, `\/` + key, `\\\\` + key, strings.ReplaceAll(key, "/", `\/`), strings.ReplaceAll(key, "+", `\u002b`) + `\\`,
			`\/` + base64.StdEncoding.EncodeToString([]byte("\xff\xff"+key)) + `\/`,
			strings.ReplaceAll(base64.StdEncoding.EncodeToString([]byte("u?"+key+"?>")), "/", `\/`),
			`\u002b` + base64.StdEncoding.EncodeToString([]byte("??" + key))[2:],
		} {
			text := []byte(`{"a":["` + inside + `"]}`)
			if got := r.Redact(text); !json.Valid(text) || !json.Valid(got) || !strings.Contains(string(got), "[redacted]") {
				t.Errorf("%s becomes %s", text, got)
			}
		}
	}
}

func TestBeginningOfASecretAtACutIsRemoved(t *testing.T) {
	r := redactor(oddKey)
	encoded := base64.StdEncoding.EncodeToString([]byte("user:" + oddKey))
	for _, spelt := range []string{oddKey, strings.ReplaceAll(oddKey, "/", `\/`), strings.ReplaceAll(oddKey, "/", `\u002F`), url.QueryEscape(oddKey), html.EscapeString(oddKey)} {
		for end := range len(spelt) {
			got := string(r.RedactCut([]byte("the key is " + spelt[:end])))
			if rest := strings.TrimPrefix(got, "the key is "); end >= 9 && rest != "[redacted]" || len(rest) > max(end, 10) {
				t.Errorf("cut in %s at %d: %q", spelt, end, got)
			}
		}
	}
	for end := 13; end < len(encoded)-2; end++ {
		if got := string(r.RedactCut([]byte(encoded[:end]))); !strings.HasSuffix(got, "[redacted]") {
			t.Errorf("cut base64 at %d: %q", end, got)
		}
	}
	if got := string(r.RedactCut([]byte("all is well"))); got != "all is well" {
		t.Errorf("got %q", got)
	}
}

func TestSecretAddedLeastRecentlyIsForgotten(t *testing.T) {
	r := redactor("still-in-use")
	var keys []string
	for i := range 256 {
		keys = append(keys, fmt.Sprintf("rotated-key-%03d", i))
	}
	r.Add(append(keys, "still-in-use")...)
	r.Add("rotated-key-001")
	r.Add("rotated-key-256")
	if got, want := r.RedactString("rotated-key-000 rotated-key-001 rotated-key-002 rotated-key-003 still-in-use"),
		"rotated-key-000 [redacted] rotated-key-002 [redacted] [redacted]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPassingSecretsPushOutNoOther(t *testing.T) {
	r := redactor("key-that-stays")
	for i := range 33 {
		r.AddPassing(fmt.Sprintf("access-token-%03d", i))
	}
	r.Add("another-key")
	if got, want := r.RedactString("access-token-000 access-token-001 access-token-032 key-that-stays another-key"),
		"access-token-000 [redacted] [redacted] [redacted] [redacted]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSecretsOfTheExtraBody(t *testing.T) {
	r := new(redact.Redactor)
	r.AddExtraBody([]byte(`{"reasoning_effort":"low","user":"customer-service","prompt_cache_key":"customer-cache","promptCacheKey":"camel-cache","stop_tokens":["Observation:"],"eos_token":"<|endoftext|>","max_tokens":12345678,
		"api_key":"sk-in-the-body","metadata":{"authToken":"in-metadata-1"},"list":[{"Password":"in-a-list-22"}],"token":"short",
		"credentials":{"a":["in-an-array"]},"headers":{"Authorization":"Bearer in-a-header-5"},"x-basic-secret":"Basic dXNlcjpoaWRkZW4tcGFzcw=="}`))
	text := "low customer-service customer-cache camel-cache Observation: <|endoftext|> 12345678 short sk-in-the-body in-metadata-1 in-a-list-22 in-an-array in-a-header-5 hidden-pass"
	want := "low customer-service customer-cache camel-cache Observation: <|endoftext|> 12345678 short [redacted] [redacted] [redacted] [redacted] [redacted] [redacted]"
	if got := r.RedactString(text); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestMembersNamedLikeKeysMayHoldWords has names that end in key or token: their values are secret if they look so.
func TestMembersNamedLikeKeysMayHoldWords(t *testing.T) {
	for body, secret := range map[string]string{
		`{"sort_key":"timestamp"}`:                                "",
		`{"session_key":"customer-support"}`:                      "",
		`{"partition_key":"tenant-1"}`:                            "",
		`{"cache_key":"a rather long sentence with 2 digits"}`:    "",
		`{"labels":[{"key":"environment","value":"production"}]}`: "",
		`{"keys":{"a":["alphabetically"]}}`:                       "",
		`{"mask_token":"12345678901234567890"}`:                   "",
		`{"key":"hf0123456789abcdef"}`:                            "hf0123456789abcdef",
		`{"subscription-key":"Bearer 0123456789abcdef"}`:          "0123456789abcdef",
		`{"tokens":{"a":["sk-proj-012345678"]}}`:                  "sk-proj-012345678",
		`{"sort_key":{"password":"passphrase"}}`:                  "passphrase",
		`{"secrets":{"sort_key":"alphabet"}}`:                     "alphabet",
		`{"access_token":"timestamp"}`:                            "timestamp",
		`{"bearer":"timestamp"}`:                                  "timestamp",
		`{"openai-api-key":"timestamp"}`:                          "timestamp",
		`{"apikey":"timestamp"}`:                                  "timestamp",
		`{"x-auth":"timestamp"}`:                                  "timestamp",
		`{"aws_secret_access_key":"timestamp"}`:                   "timestamp",
	} {
		r := new(redact.Redactor)
		r.AddExtraBody([]byte(body))
		for word := range strings.FieldsSeq(strings.Map(func(c rune) rune {
			if strings.ContainsRune(`"{}[]:,`, c) {
				return ' '
			}
			return c
		}, body)) {
			if got := r.RedactString(word); (got != word) != (word == secret) {
				t.Errorf("%s: %s becomes %s", body, word, got)
			}
		}
	}
}

// FuzzRedact writes a key in a random mix of escapes at a random place of a random text, and looks for it in what is left
// with a separate decoder, which undoes one kind of escape at a time as often as it can.
func FuzzRedact(f *testing.F) {
	for seed := range uint64(64) {
		f.Add(seed, "some {text} with \\n and 50% of R&D")
	}
	f.Fuzz(func(t *testing.T, seed uint64, around string) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		key := randomKey(rnd)
		r := redactor(key)
		spelt := randomSpelling(rnd, key)
		at := rnd.IntN(len(around) + 1)
		if around = strings.ReplaceAll(around, key, ""); at > len(around) {
			at = len(around)
		}
		// A digit or letter after a lead would be read as a part of its escape, and so mean another text.
		text := around[:at] + " " + spelt + " " + around[at:]
		if got := string(r.Redact([]byte(text))); naivelyHolds(got, key) {
			t.Errorf("key %q spelt %q: left %q", key, spelt, got)
		}
		cut := around[:at] + " " + spelt[:rnd.IntN(len(spelt)+1)]
		if got := string(r.RedactCut([]byte(cut))); naivelyHolds(got, key[:len(key)-1]) {
			t.Errorf("key %q cut %q: left %q", key, cut, got)
		}
	})
}

func randomKey(rnd *rand.Rand) string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./+=~:"
	key := make([]byte, 8+rnd.IntN(60))
	for i := range key {
		key[i] = letters[rnd.IntN(len(letters))]
	}
	return string(key)
}

// randomSpelling escapes each character in one of many ways, or the whole in base64 or hex.
func randomSpelling(rnd *rand.Rand, key string) string {
	switch rnd.IntN(5) {
	case 0:
		encoding := [...]*base64.Encoding{base64.StdEncoding, base64.RawURLEncoding, base64.URLEncoding, base64.RawStdEncoding}[rnd.IntN(4)]
		return encoding.EncodeToString([]byte("Bearer"[:rnd.IntN(6)] + key + "tail"[:rnd.IntN(4)]))
	case 1:
		return hex.EncodeToString([]byte(key))
	}
	var b strings.Builder
	for _, c := range []byte(key) {
		switch rnd.IntN(10) {
		case 0:
			fmt.Fprintf(&b, `\u%04x`, c)
		case 1:
			fmt.Fprintf(&b, `\u%04X`, c)
		case 2:
			fmt.Fprintf(&b, "%%%02x", c)
		case 3:
			fmt.Fprintf(&b, "%%25%02X", c)
		case 4:
			fmt.Fprintf(&b, "&#x%x;", c)
		case 5:
			fmt.Fprintf(&b, `\\u%04x`, c)
		case 6:
			fmt.Fprintf(&b, "&amp;#%d;", c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

var (
	unicodeEscape = regexp.MustCompile(`\\+u00[0-9a-fA-F]{2}`)
	percentEscape = regexp.MustCompile(`%[0-9a-fA-F]{2}`)
	base64Text    = regexp.MustCompile(`[A-Za-z0-9+/_-]{8,}`)
)

// naivelyHolds undoes escapes until nothing changes, and base64 and hex of every text that looks so.
func naivelyHolds(text, key string) bool {
	of := func(digits string) string {
		n, _ := strconv.ParseUint(digits, 16, 8)
		return string([]byte{byte(n)})
	}
	for {
		if strings.Contains(text, key) {
			return true
		}
		next := unicodeEscape.ReplaceAllStringFunc(text, func(s string) string { return of(s[len(s)-2:]) })
		next = percentEscape.ReplaceAllStringFunc(next, func(s string) string { return of(s[1:]) })
		if next = html.UnescapeString(next); next == text {
			break
		}
		text = next
	}
	for _, part := range base64Text.FindAllString(text, -1) {
		if plain, err := hex.DecodeString(part); err == nil && strings.Contains(string(plain), key) {
			return true
		}
		part = strings.NewReplacer("-", "+", "_", "/").Replace(part)
		for from := range 4 {
			for end := len(part); end > max(from, len(part)-4); end-- {
				if plain, err := base64.RawStdEncoding.DecodeString(part[from:end]); err == nil && strings.Contains(string(plain), key) {
					return true
				}
			}
		}
	}
	return false
}

// BenchmarkRedact is of texts without a secret, as nearly all are.
func BenchmarkRedact(b *testing.B) {
	r := redactor(secret, "sk-ant-api03-0123456789abcdefABCDEF", "in-a-header-of-a-gateway")
	for _, of := range []struct{ name, text string }{
		{"English", "The quick brown fox (50% of R&D) jumps over the lazy dog.\\nIt is \\\"fine\\\". "},
		{"escaped", `\u4f60\u597d\uff0c\u4e16\u754c `},
		{"slashes", `https:\/\/example.com\/a\/b `},
		{"backslashes", `\\\\\\\\\\\\\\\\`},
	} {
		for _, size := range []int{4 << 10, 64 << 10} {
			text := []byte(strings.Repeat(of.text, size/len(of.text))) // not cut within an escape
			b.Run(fmt.Sprintf("text=%s/bytes=%d", of.name, size), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					r.Redact(text)
				}
			})
		}
	}
}

// The secret is long, as a token may be: so far before the end a beginning of it is looked for.
func BenchmarkRedactCut(b *testing.B) {
	r := redactor(strings.Repeat(secret, 200))
	for name, of := range map[string]string{"English": "The quick brown fox. ", "backslashes": `\`, "percents": "%"} {
		text := []byte(strings.Repeat(of, 64<<10/len(of)))
		b.Run("text="+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r.RedactCut(text)
			}
		})
	}
}

func TestURLSecrets(t *testing.T) {
	for address, want := range map[string]string{
		"":                              "[]",
		"http://proxy:8080":             "[]",
		"http://user:pass%2Fword@proxy": "[pass%2Fword pass/word user:pass%2Fword]",
		"http://token@proxy":            "[token]",
		"http://token:@proxy":           "[token token:]",
		"user:pa/ss@proxy:1":            "[pa/ss user:pa/ss]",
		"http://user:pa%zz@proxy":       "[pa%zz user:pa%zz]",
	} {
		if got := fmt.Sprint(redact.URLSecrets(address)); got != want {
			t.Errorf("%s: got %s, want %s", address, got, want)
		}
	}
}

// A key of digits alone may be a number of a reply. The reply stays JSON also behind a byte order mark.
func TestReplyBehindAByteOrderMarkStaysJSON(t *testing.T) {
	r := new(redact.Redactor)
	r.Add("1234567890")
	const mark = "\ufeff"
	for _, body := range []string{`{"a":1234567890}`, mark + `{"a":1234567890}`} {
		want := strings.ReplaceAll(body, "1234567890", "null")
		if got := string(r.RedactJSON([]byte(body))); got != want {
			t.Errorf("%q became %q, want %q", body, got, want)
		}
	}
}
