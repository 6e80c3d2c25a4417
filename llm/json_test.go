package llm

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
		if err := json.Unmarshal(appendString(nil, s), &got); err != nil {
			t.Fatalf("appendString(%q) = %s: %v", s, appendString(nil, s), err)
		}
		var want strings.Builder // every bad byte by itself becomes U+FFFD
		for _, r := range s {
			want.WriteRune(r)
		}
		if got != want.String() {
			t.Fatalf("appendString(%q) reads back as %q, want %q", s, got, want.String())
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
		for key, value := range members(raw) {
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
		merged := appendMerged(nil, rawBase, rawExtra)
		if err := json.Unmarshal(merged, &got); err != nil {
			t.Fatalf("%s + %s = %s: %v", rawBase, rawExtra, merged, err)
		}
		if want := mergeMaps(base, extra); !sameJSON(t, got, want) {
			t.Fatalf("%s + %s = %s, want %v", rawBase, rawExtra, merged, want)
		}
	})
}

// mergeMaps is the dumb version of appendMerged.
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
