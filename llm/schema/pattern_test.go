package schema

import (
	"strings"
	"sync"
	"testing"
	"time"
)

// As schema generators write them: z.email() of zod 4.1 (nspady/google-calendar-mcp issue 183 has its output), and
// Decimal of pydantic 2.13 (pydantic/pydantic pull request 13670 quotes it).
const (
	zodEmail        = `{"type":"string","format":"email","pattern":"^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$"}`
	pydanticDecimal = `{"type":"string","pattern":"^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"}`
)

func TestPatternsMayLookAround(t *testing.T) {
	emailPattern := strings.Replace(zodEmail, `"format":"email",`, "", 1)
	for _, tt := range []struct{ schema, value, finding string }{
		{zodEmail, `"a.b+c@example.com"`, ""},
		{zodEmail, `"a@localhost"`, "does not match pattern"},
		{emailPattern, `".a@example.com"`, "does not match pattern"},
		{emailPattern, `"a..b@example.com"`, "does not match pattern"},
		{pydanticDecimal, `"-12.50"`, ""},
		{pydanticDecimal, `"-."`, "does not match pattern"},
		{pydanticDecimal, `"1e5"`, "does not match pattern"},
		{`{"type":"string","pattern":"(?<=\\$)\\d+$"}`, `"costs $12"`, ""},
		{`{"type":"string","pattern":"(?<!\\$)\\b\\d+$"}`, `"costs $12"`, "does not match pattern"},
		{`{"type":"string","pattern":"^(\\w)\\1$"}`, `"aa"`, ""},
		{`{"type":"string","pattern":"^(\\w)\\1$"}`, `"ab"`, "does not match pattern"},
		{`{"type":"string","pattern":"^(?!x)\\p{L}+\\u{1F600}$"}`, `"é😀"`, ""},
		{`{"type":"string","pattern":"^(?!x)a$"}`, `"a\n"`, "does not match pattern"},
		{`{"type":"string","pattern":"^a{1001}$"}`, `"` + strings.Repeat("a", 1001) + `"`, ""},
		{`{"patternProperties":{"^(?!x)":{"type":"string"}}}`, `{"x":1,"y":1}`, "at '/y'"},
		{`{"patternProperties":{"^(?!x)":{"type":"string"}}}`, `{"x":1,"y":"1"}`, ""},
		{`{"type":"string","format":"regex"}`, `"^(?!x)a"`, ""},
		{`{"type":"string","format":"regex"}`, `"(?!x"`, "is not valid regex"},
		{`{"type":"string","format":"regex"}`, `"(?!x)` + strings.Repeat("a", backtrackingBytesMax) + `"`, "at '': '(?!x)aaa"},
	} {
		s := schemaOf(t, tt.schema)
		_, err := s.Validate(tt.value)
		if (err == nil) != (tt.finding == "") || err != nil && !strings.Contains(err.Error(), tt.finding) {
			t.Errorf("%.80s with %.80s: %v, want %q", tt.value, tt.schema, err, tt.finding)
		}
	}
}

// A pattern that takes exponential time ends by its deadline, which is one for the whole reply.
func TestPatternsHaveADeadline(t *testing.T) {
	slow := `"` + strings.Repeat("a", 64) + `!"`
	for _, schema := range []string{
		`{"items":{"type":"string","pattern":"^(?!b)(a+)+$"}}`,
		`{"items":{"not":{"pattern":"^(?!b)(a+)+$"}}}`, // no match would do
	} {
		s := schemaOf(t, schema)
		s.patterns.limit = time.Millisecond
		_, err := s.Validate("[" + strings.Repeat(slow+",", 1000) + slow + "]")
		if err == nil || !strings.Contains(err.Error(), `matching the pattern "^(?!b)(a+)+$" took longer than 1ms`) {
			t.Errorf("%s: %v", schema, err)
		}
		s.patterns.limit = patternTime
		if _, err := s.Validate(`["aaa"]`); (err == nil) == strings.Contains(schema, "not") {
			t.Errorf("%s: the next reply: %v", schema, err)
		}
	}
}

func TestBacktrackingPatternsAreSharedByGoroutines(t *testing.T) {
	s := schemaOf(t, zodEmail)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				if _, err := s.Validate(`"a@example.com"`); err != nil {
					t.Error(err)
				}
				if _, err := s.Validate(`"a..b@example.com"`); err == nil {
					t.Error("no error")
				}
			}
		})
	}
	wg.Wait()
}
