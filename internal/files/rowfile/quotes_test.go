package rowfile

import (
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// The fields are those that csv.reader of Python 3.11 returns for the same records.
func TestStrayQuotesAreReadAsPythonReadsThem(t *testing.T) {
	for _, tt := range []struct {
		record string
		want   []string
	}{
		{"1,TV 24\" black,37°36'37.8\"N", []string{"1", "TV 24\" black", "37°36'37.8\"N"}},
		{"3,a \"b\" c,y", []string{"3", "a \"b\" c", "y"}},
		{"\"x\"y,z", []string{"xy", "z"}},
		{"\"x\"y\"z\",w", []string{"xy\"z\"", "w"}},
		{"\"x\"\"y\"z,1", []string{"x\"yz", "1"}},
		{"a\"b,c\"d", []string{"a\"b", "c\"d"}},
		{" \"a, b\",z", []string{" \"a", " b\"", "z"}},
		{"\"a\" ,b", []string{"a ", "b"}},
		{"\"a\"\t\"b\",c", []string{"a\t\"b\"", "c"}},
		{"\"\",\"\"x", []string{"", "x"}},
		{"\"\"\"\",x", []string{"\"", "x"}},
		{"\"\" \"\",x", []string{" \"\"", "x"}},
		{"5' 6\",tall", []string{"5' 6\"", "tall"}},
		{"\"a\"b\"c,d\"e", []string{"ab\"c", "d\"e"}},
		{"x\"\",y", []string{"x\"\"", "y"}},
		{"\"a\nb\"c,d", []string{"a\nbc", "d"}},
		{"\"a\"\",b\"c,d", []string{"a\",bc", "d"}},
	} {
		text := tt.record + "\nlast\n"
		for name, in := range map[string]io.Reader{"whole": strings.NewReader(text), "byte by byte": iotest.OneByteReader(strings.NewReader(text))} {
			r := NewReader(in, Layout{Format: FormatCSV}, 100)
			rec, err := r.readRecord()
			if err != nil || rec.problem != "" || !slices.Equal(rec.fields(), tt.want) {
				t.Errorf("%s: %s: got %q, %s, %v; want %q", name, tt.record, rec.fields(), rec.problem, err, tt.want)
			}
			if next, err := r.readRecord(); err != nil || !slices.Equal(next.fields(), []string{"last"}) {
				t.Errorf("%s: %s: got %q, %v behind it", name, tt.record, next.fields(), err)
			}
		}
	}
}

func TestStrictReadingRefusesStrayQuotes(t *testing.T) {
	layout := Layout{Format: FormatCSV, Strict: true}
	checkRows(t, layout, "a,b\n1,x\"y\"\n\"1\"2,3\n\"1\n2\"3,4\n1,2\n", []string{
		"FAULT line 2: a quote within column 2, which does not begin with one",
		"FAULT line 3: text after the quote that closes column 1",
		"FAULT line 4: text after the quote that closes column 1",
		`6 {"a":"1","b":"2"}`,
	})
	checkRows(t, layout, "a\"b\n1\n", []string{"END line 1: header: a quote within column 1, which does not begin with one"})
}

func TestStrayQuotesAreNoted(t *testing.T) {
	for text, want := range map[string]bool{"a,b\n\"x\",\"\"\"y\"\n": false, "a,b\nx,5\"\n": true, "a,b\n\"x\"y,z\n": true, "a\"b\n1\n": true} {
		for _, strict := range []bool{false, true} {
			r := NewReader(strings.NewReader(text), Layout{Format: FormatCSV, Strict: strict}, 100)
			for {
				if _, err := r.Next(); err != nil {
					break
				}
			}
			if r.StrayQuotes() != want {
				t.Errorf("%q, strict %t: got %t, want %t", text, strict, r.StrayQuotes(), want)
			}
		}
	}
}

func TestAFirstLineMaySetTheDelimiter(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     []string
	}{
		{"semicolons", "sep=;\r\na;b\r\n1,5;2\r\n", []string{`3 {"a":"1,5","b":"2"}`}},
		{"after a mark, in quotes, in capitals", "\xef\xbb\xbf\"SEP=|\"\na|b\n1|2\n", []string{`3 {"a":"1","b":"2"}`}},
		{"tabs", "sep=\t\na\tb\n1\t2\n", []string{`3 {"a":"1","b":"2"}`}},
		{"commas", "sep=,\na,b\n1,2\n", []string{`3 {"a":"1","b":"2"}`}},
		{"nothing else", "sep=;\n", []string{"END line 1: the file is empty: a CSV file begins with a line that names its columns"}},
		{"a column of that name", "sep=\n1\n", []string{`2 {"sep=":"1"}`}},
		{"columns of such names", "sep=;x\n1\n", []string{`2 {"sep=;x":"1"}`}},
		{"a column that begins so", "se,p\n1,2\n", []string{`2 {"se":"1","p":"2"}`}},
		{"a quote that is not closed", "\"sep=;\na\",b\n1,2\n", []string{`3 {"sep=;\na":"1","b":"2"}`}},
		{"a short file", "s\n1\n", []string{`2 {"s":"1"}`}},
	} {
		t.Run(tt.name, func(t *testing.T) { checkRows(t, Layout{Format: FormatCSV}, tt.in, tt.want) })
	}
	r := NewReader(strings.NewReader("sep=;\na;b\n1;2\n"), Layout{}, 100)
	if row, err := r.Next(); err != nil || string(row.Body) != `{"a":"1","b":"2"}` || r.Layout().String() != "csv delimiter=;" {
		t.Errorf("recognised: got %s, %v, layout %s", row.Body, err, r.Layout())
	}
}
