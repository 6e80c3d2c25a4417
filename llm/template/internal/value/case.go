package value

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// Properties of characters that Python has and Go's package unicode lacks. Python 3.11
// has Unicode 14.

// ideographNumbers are the letters that are also numbers.
const ideographNumbers = "㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅卌叁参參叄四壱壹幺廾廿弌弍弎弐拾捌柒漆玖百肆萬貮貳贰阡陆陌陸零\uf96b\uf973\uf978\uf9b2\uf9d1\uf9d3\uf9fd" +
	"\U00020001\U00020064\U000200e2\U00020121\U0002092a\U00020983\U0002098c\U0002099c\U00020aea\U00020afd" +
	"\U00020b19\U00022390\U00022998\U00023b1b\U0002626d\U0002f890"

// upper is str.upper.
func upper(s string) string {
	if isASCII(s) {
		return strings.ToUpper(s)
	}
	return cases.Upper(language.Und).String(valid(s))
}

// valid returns s with U+FFFD in place of each byte that is not UTF-8. The package cases
// would leave it as it is.
func valid(s string) string { return strings.Map(func(c rune) rune { return c }, s) }

// mapRunes joins what f returns for each character of s and its position.
func mapRunes(s string, f func(at int, c rune) string) string {
	var b strings.Builder
	for at, c := range s {
		b.WriteString(f(at, c))
	}
	return b.String()
}

// lower is str.lower.
func lower(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	return cases.Lower(language.Und).String(valid(s))
}

// lowerRune returns c, the character at s[at:], in lower case. A sigma at the end of a
// word has a special form.
func lowerRune(s string, at int, c rune) string {
	if c == 'Σ' && endsWord(s, at) {
		return "ς"
	}
	return lower(string(c))
}

// endsWord reports whether a letter precedes the character at s[at:] and none follows it,
// ignoring accents and apostrophes.
func endsWord(s string, at int) bool {
	ignored := func(c rune) bool {
		return unicode.In(c, unicode.Mn, unicode.Me, unicode.Cf, unicode.Lm, unicode.Sk) || strings.ContainsRune("'.:·’‘․‧", c)
	}
	before, _ := utf8.DecodeLastRuneInString(strings.TrimRightFunc(s[:at], ignored))
	_, size := utf8.DecodeRuneInString(s[at:])
	after, _ := utf8.DecodeRuneInString(strings.TrimLeftFunc(s[at+size:], ignored))
	return isCased(before) && !isCased(after)
}

// titleRune returns c as the first letter of a word.
func titleRune(c rune) string { return cases.Title(language.Und, cases.NoLower).String(string(c)) }

// capitalize is str.capitalize.
func capitalize(s string) string {
	c, size := utf8.DecodeRuneInString(s)
	if size == 0 {
		return ""
	}
	return titleRune(c) + lower(s)[len(lower(s[:size])):]
}

// titleWords is str.title: a word begins after anything but a letter.
func titleWords(s string) string {
	inWord := false
	return mapRunes(s, func(at int, c rune) string {
		begins := !inWord
		inWord = isCased(c)
		if begins {
			return titleRune(c)
		}
		return lowerRune(s, at, c)
	})
}

// title is Jinja's filter: a word begins after spaces, hyphens and opening brackets.
func title(s string) string {
	var b strings.Builder
	for s != "" {
		begins := func(c rune) bool { return IsSpace(c) || strings.ContainsRune("-({[<", c) }
		end := strings.IndexFunc(s, begins)
		if end < 0 {
			end = len(s)
		}
		if end > 0 {
			_, size := utf8.DecodeRuneInString(s)
			b.WriteString(upper(s[:size]) + lower(s[size:end]))
		}
		word := len(s[end:]) - len(strings.TrimLeftFunc(s[end:], begins))
		b.WriteString(s[end : end+word])
		s = s[end+word:]
	}
	return b.String()
}

// swapcase is str.swapcase.
func swapcase(s string) string {
	return mapRunes(s, func(at int, c rune) string {
		switch {
		case isUpper(c):
			return lowerRune(s, at, c)
		case isLower(c):
			return upper(string(c))
		}
		return string(c)
	})
}

// casefold is str.casefold. Of the two cases of a Cherokee letter Python takes the capital,
// as Unicode does, and the package cases the small one.
func casefold(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.Is(unicode.Cherokee, c) {
			return unicode.ToUpper(c)
		}
		return c
	}, cases.Fold().String(valid(s)))
}

func isUpper(c rune) bool { return unicode.In(c, unicode.Lu, unicode.Other_Uppercase) }
func isLower(c rune) bool { return unicode.In(c, unicode.Ll, unicode.Other_Lowercase) }
func isCased(c rune) bool { return isUpper(c) || isLower(c) || unicode.Is(unicode.Lt, c) }

// isTitle is str.istitle: capitals begin the words, and only those.
func isTitle(s string) bool {
	inWord, cased := false, false
	for _, c := range s {
		begins := isUpper(c) || unicode.Is(unicode.Lt, c)
		if begins && inWord || isLower(c) && !inWord {
			return false
		}
		inWord = begins || isLower(c)
		cased = cased || inWord
	}
	return cased
}

// allCased returns a test that there are letters that match is, and none that match not.
func allCased(is, not func(rune) bool) func(s string) bool {
	return func(s string) bool {
		wrong := func(c rune) bool { return not(c) || unicode.Is(unicode.Lt, c) }
		return strings.IndexFunc(s, is) >= 0 && strings.IndexFunc(s, wrong) < 0
	}
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// IsSpace is str.isspace of a character: Unicode's spaces and four ASCII separators.
func IsSpace(c rune) bool { return unicode.IsSpace(c) || c >= 0x1c && c <= 0x1f }

// isLineEnd reports whether str.splitlines ends a line at c.
func isLineEnd(c rune) bool {
	return c >= '\n' && c <= '\r' || c >= 0x1c && c <= 0x1e || c == 0x85 || c == 0x2028 || c == 0x2029
}

// moreDigits are the digits that are not decimal.
const moreDigits = "²³¹፩፪፫፬፭፮፯፰፱᧚⁰⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉①②③④⑤⑥⑦⑧⑨⑴⑵⑶⑷⑸⑹⑺⑻⑼⒈⒉⒊⒋⒌⒍⒎⒏⒐⓪⓵⓶⓷⓸⓹⓺⓻⓼⓽⓿❶❷❸❹❺❻❼❽❾➀➁➂➃➄➅➆➇➈➊➋➌➍➎➏➐➑➒" +
	"𐩀𐩁𐩂𐩃𐹠𐹡𐹢𐹣𐹤𐹥𐹦𐹧𐹨𑁒𑁓𑁔𑁕𑁖𑁗𑁘𑁙𑁚🄀🄁🄂🄃🄄🄅🄆🄇🄈🄉🄊"

func isDigit(c rune) bool { return unicode.IsDigit(c) || strings.ContainsRune(moreDigits, c) }
func isNumeric(c rune) bool {
	return unicode.In(c, unicode.N) || strings.ContainsRune(ideographNumbers, c)
}
func isAlnum(c rune) bool { return unicode.IsLetter(c) || unicode.In(c, unicode.N) }
