package template

import "testing"

// The values of CSV are strings.
func TestComparingAStringWithANumberHasAHint(t *testing.T) {
	const row = `{"stars":"4","n":3,"price":1.5,"o":{"a b":["x"]},"long":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":"1"}}}}}}}}}}}}}`
	for source, want := range map[string]string{
		`{{ row.stars > 3 }}`:                                   "a string and an integer cannot be ordered (line 1 of prompt.j2); write row.stars | int",
		`{{ 3 <= row.stars }}`:                                  "an integer and a string cannot be ordered (line 1 of prompt.j2); write row.stars | int",
		`{{ 1 < 2 < row["stars"] }}`:                            `an integer and a string cannot be ordered (line 1 of prompt.j2); write row["stars"] | int`,
		`{{ row.stars >= 3.5 }}`:                                "a string and a float cannot be ordered (line 1 of prompt.j2); write row.stars | float",
		`{{ row.stars < row.price }}`:                           "a string and a float cannot be ordered (line 1 of prompt.j2); write row.stars | float",
		`{{ row.o["a b"][0] > row.n }}`:                         `a string and an integer cannot be ordered (line 1 of prompt.j2); write row.o["a b"][0] | int`,
		`{% set s = row.stars %}{{ s > 99999999999999999999 }}`: "a string and an integer cannot be ordered (line 1 of prompt.j2); write s | int",
		`{{ row.n > "3" }}`:                                     "an integer and a string cannot be ordered (line 1 of prompt.j2)",
		`{{ row.stars | upper > 3 }}`:                           "a string and an integer cannot be ordered (line 1 of prompt.j2)",
		`{{ row.stars > none }}`:                                "a string and none cannot be ordered (line 1 of prompt.j2)",
		`{{ row.long.a.a.a.a.a.a.a.a.a.a.a.a > 1 }}`:            "a string and an integer cannot be ordered (line 1 of prompt.j2)",
	} {
		if _, err := render(source, row); err == nil || err.Error() != want {
			t.Errorf("%s\n got %v\nwant %s", source, err, want)
		}
	}
	if got, err := render(`{{ row.stars | int > 3 }} {{ row.stars == 4 }}`, row); got != "True False" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}
