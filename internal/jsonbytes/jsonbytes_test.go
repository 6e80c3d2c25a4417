package jsonbytes

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestStringsAreEscapedAsTheyAreReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := string(rapid.SliceOf(rapid.OneOf(rapid.Byte(), rapid.SampledFrom([]byte("\"\\\x00\n\u2028é")))).Draw(t, "s"))
		var got string
		if err := json.Unmarshal(AppendString(nil, s), &got); err != nil {
			t.Fatalf("AppendString(%q) = %s: %v", s, AppendString(nil, s), err)
		}
		var want strings.Builder // every bad byte by itself becomes U+FFFD
		for _, r := range s {
			want.WriteRune(r)
		}
		if got != want.String() {
			t.Fatalf("AppendString(%q) reads back as %q, want %q", s, got, want.String())
		}
	})
}

func TestMembersAreThoseOfTheObject(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.MapOf(rapid.String(), jsonValue(3)).Draw(t, "object")
		indent := rapid.SampledFrom([]string{"", " ", "\t"}).Draw(t, "indent")
		raw, err := json.MarshalIndent(want, "", indent)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]any{}
		for key, value := range Members(raw) {
			var v any
			if err := json.Unmarshal(value, &v); err != nil {
				t.Fatalf("value %q of %q in %s: %v", value, key, raw, err)
			}
			got[string(key)] = v
		}
		if !sameJSON(t, got, want) {
			t.Fatalf("members of %s are %v", raw, got)
		}
	})
}

func TestExtraBodyIsMergedLikeMaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		object := rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c\n", ""}), jsonValue(3), 0, 4)
		base, extra := object.Draw(t, "base"), object.Draw(t, "extra")
		rawBase, _ := json.Marshal(base)
		rawExtra, _ := json.Marshal(extra)
		var got any
		merged := AppendMerged(nil, rawBase, rawExtra)
		if err := json.Unmarshal(merged, &got); err != nil {
			t.Fatalf("%s + %s = %s: %v", rawBase, rawExtra, merged, err)
		}
		if want := mergeMaps(base, extra); !sameJSON(t, got, want) {
			t.Fatalf("%s + %s = %s, want %v", rawBase, rawExtra, merged, want)
		}
	})
}

// mergeMaps is the dumb version of AppendMerged.
func mergeMaps(base, extra map[string]any) map[string]any {
	merged := maps.Clone(base)
	if merged == nil {
		merged = map[string]any{}
	}
	for key, value := range extra {
		a, ok1 := merged[key].(map[string]any)
		b, ok2 := value.(map[string]any)
		if ok1 && ok2 {
			value = mergeMaps(a, b)
		}
		merged[key] = value
	}
	return merged
}

func jsonValue(depth int) *rapid.Generator[any] {
	scalars := rapid.OneOf(
		rapid.Just(any(nil)), rapid.Bool().AsAny(), rapid.Int32().AsAny(), rapid.String().AsAny(),
		rapid.SampledFrom([]any{"}", "]", `"`, `\`, ",:"}),
	)
	if depth == 0 {
		return scalars
	}
	inner := jsonValue(depth - 1)
	return rapid.OneOf(
		scalars,
		rapid.SliceOfN(inner, 0, 3).AsAny(),
		rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", `"}`}), inner, 0, 3).AsAny(),
	)
}

func sameJSON(t *rapid.T, a, b any) bool {
	rawA, errA := json.Marshal(a)
	rawB, errB := json.Marshal(b)
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	return string(rawA) == string(rawB)
}

func TestValidIsWhatEncodingJSONTakes(t *testing.T) {
	for _, text := range []string{
		nested(DepthMax), nested(DepthMax + 1), "", " ", "\"\xff\"", "{\"\xff\":1}", "1 2", "nul", "-", "01", "1.", "1e", `"\u12"`, "\ufeff{}",
	} {
		if got, want := Valid([]byte(text)), json.Valid([]byte(text)); got != want {
			t.Errorf("Valid(%.40q) = %v, want %v", text, got, want)
		}
	}
}

// nested is an object of the given depth.
func nested(depth int) string {
	return `{"a":` + strings.Repeat("[", depth-1) + strings.Repeat("]", depth-1) + `}`
}

// Each place in a word of eight bytes, before and after bytes of any kind.
func TestStringsEndWhereTheyDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		raw := rapid.SliceOfN(rapid.OneOf(rapid.Byte(), rapid.SampledFrom([]byte("\"\\ \x1f\x00\x7f\x80abcdefgh"))), 0, 40).Draw(t, "text")
		text := append(append([]byte{'"'}, raw...), '"')
		if got, want := Valid(text), json.Valid(text); got != want {
			t.Fatalf("Valid(%q) = %v, want %v", text, got, want)
		}
	})
}

func TestEscapedStringsAreThoseOfEncodingJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := string(rapid.SliceOf(rapid.OneOf(rapid.Byte(), rapid.SampledFrom([]byte("\"\\\x00\n\b\f\xe2\x80\xa8\xa9<&>é")))).Draw(t, "s"))
		var want strings.Builder
		enc := json.NewEncoder(&want)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(s); err != nil {
			t.Fatal(err)
		}
		if got := string(AppendEscaped(nil, s)) + "\n"; got != want.String() {
			t.Fatalf("AppendEscaped(%q) = %s, want %s", s, got, want.String())
		}
		if got := string(AppendEscaped(nil, []byte(s))) + "\n"; got != want.String() {
			t.Fatalf("AppendEscaped([]byte(%q)) = %s, want %s", s, got, want.String())
		}
	})
}

func TestCanonicalFormOfDeepJSONTakesLinearWork(t *testing.T) {
	// Unsorted at each of 5000 levels around a long string: 5 GB if each level were copied.
	deep := strings.Repeat(`{"b":`, 5000) + `"` + strings.Repeat("x", 1<<20) + `"` + strings.Repeat(`,"a":1}`, 5000)
	var c Canonicalizer
	if out := c.Canonical([]byte(deep)); len(out) != len(deep) || !json.Valid(out) {
		t.Fatalf("canonical form of %d bytes has %d", len(deep), len(out))
	}
}

// A value among others ends where it does, at each place in a word of eight bytes, whether it has strings or numbers.
func TestValuesEndWhereTheyDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		numbers := rapid.SliceOfN(rapid.Float32().AsAny(), 0, 30).AsAny()
		value := rapid.SliceOfN(rapid.OneOf(jsonValue(2), numbers, rapid.Float64().AsAny()), 0, 5).Draw(t, "value")
		raw, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		before, after := rapid.StringN(0, 9, 9).Draw(t, "before"), rapid.SampledFrom([]string{"", ",", ",[", "}", " \"]"}).Draw(t, "after")
		text := []byte(before + string(raw) + after)
		if got, want := skipValue(text, len(before)), len(before)+len(raw); got != want {
			t.Fatalf("the value at %d of %s ends at %d, not %d", len(before), text, got, want)
		}
	})
}
