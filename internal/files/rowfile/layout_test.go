package rowfile

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
)

func TestLayoutIsThatOfTheFlagsOrTheName(t *testing.T) {
	for _, tt := range []struct {
		name string
		spec Spec
		want string // layout, or what the error says
	}{
		{"a.jsonl", Spec{}, "jsonl"},
		{"a.ndjson.gz", Spec{}, "jsonl"},
		{"a.CSV", Spec{}, "csv"},
		{"a.csv.GZ", Spec{}, "csv"},
		{"a.tsv", Spec{}, "csv delimiter=tab"},
		{"a.tab", Spec{CSVTypes: "string"}, "csv delimiter=tab"},
		{"a.json", Spec{}, "json"},
		{"a.txt", Spec{}, ""},
		{"a.gz", Spec{}, ""},
		{"-", Spec{}, ""},
		{"-", Spec{Format: "csv"}, "csv"},
		{"-", Spec{Format: "tsv"}, "csv delimiter=tab"},
		{"-", Spec{Delimiter: ";"}, "csv delimiter=;"},
		{"-", Spec{CSVTypes: "auto"}, "csv types=auto"},
		{"a.csv", Spec{Format: "jsonl"}, "jsonl"},
		{"a.csv", Spec{Delimiter: "tab", CSVTypes: "auto"}, "csv delimiter=tab types=auto"},
		{"a.csv", Spec{Delimiter: `\t`}, "csv delimiter=tab"},
		{"a.tsv", Spec{Delimiter: "|"}, "csv delimiter=|"},
		{"a.csv", Spec{Format: "xml"}, `error: --format "xml" is unknown: choose jsonl, csv, tsv, json or openai-batch`},
		{"a.csv", Spec{CSVTypes: "int"}, `error: --csv-types "int": choose auto or string`},
		{"a.csv", Spec{Delimiter: "::"}, `error: --delimiter "::": give one ASCII character such as ; or |, or tab`},
		{"a.csv", Spec{Delimiter: "§"}, `error: --delimiter "§": give one ASCII character such as ; or |, or tab`},
		{"a.csv", Spec{Delimiter: `"`}, `error: --delimiter "\"" has a meaning of its own in CSV: give another character`},
		{"a.jsonl", Spec{Delimiter: ";"}, `error: --delimiter ; is for CSV, and a.jsonl is read as jsonl: give --format csv if it is CSV`},
		{"-", Spec{Format: "json", CSVTypes: "auto"}, `error: --csv-types auto is for CSV, and standard input is read as json: give --format csv if it is CSV`},
	} {
		layout, err := tt.spec.Layout(tt.name)
		got := layout.String()
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != tt.want {
			t.Errorf("%s, %+v: got %s, want %s", tt.name, tt.spec, got, tt.want)
		}
	}
}

// What a test of many layouts reads, whole and byte by byte, as many pipes would have it.
func checkRows(t *testing.T, layout Layout, text string, want []string) {
	t.Helper()
	for name, in := range map[string]io.Reader{"whole": strings.NewReader(text), "byte by byte": iotest.OneByteReader(strings.NewReader(text))} {
		if got := readAll(t, in, layout, 100); !slices.Equal(got, want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

func TestRowsOfAnArray(t *testing.T) {
	long := strings.Repeat("x", 200)
	for _, tt := range []struct {
		name, in string
		want     []string
	}{
		{"empty file", "", nil},
		{"empty array", " [ \n] \n", nil},
		{"rows", `[{"a":1},{"a":2}]`, []string{`1 {"a":1}`, `1 {"a":2}`}},
		{"rows over lines", "[\n  {\"a\": 1},\n  {\n    \"a\": [1, 2]\n  }\n]\n", []string{`2 {"a": 1}`, "3 {\n    \"a\": [1, 2]\n  }"}},
		{"mark of UTF-8", "\xef\xbb\xbf[{}]", []string{"1 {}"}},
		{"brackets, commas and quotes in strings", `[{"a":"],[{\"\\"},{"b":"}"}]`, []string{`1 {"a":"],[{\"\\"}`, `1 {"b":"}"}`}},
		{"digits and order are kept", `[{"b":1.50,"a":12345678901234567890}]`, []string{`1 {"b":1.50,"a":12345678901234567890}`}},
		{"any other element is a row", `[1, "x", nothing, [2,[3]], {"a":}]`, []string{"1 1", `1 "x"`, "1 nothing", "1 [2,[3]]", `1 {"a":}`}},
		{"a row that is too large", "[{},\n\"" + long + "\"\n,{}]", []string{"1 {}", "FAULT line 2: a row of 202 bytes, at most 100 can be sent", "3 {}"}},
		{"space after a row is not of the row", "[{}" + strings.Repeat(" ", 200) + "]", []string{"1 {}"}},
		{"cut off", `[{"a":1},{"a"`, []string{`1 {"a":1}`, "END line 1: the row that begins here has no end"}},
		{"cut off between rows", "[{\"a\":1},\n", []string{`1 {"a":1}`, "END line 2: the array has no end: the file was cut off, or a ] is missing"}},
		{"a comma too many", "[{},\n]", []string{"1 {}", "END line 2: a comma too many in the array"}},
		{"a comma first", "[,{}]", []string{"END line 1: a comma too many in the array"}},
		{"text after the end", "[{}]\n[{}]", []string{"1 {}", "END line 2: text after the end of the array: give --format jsonl if each line is a row"}},
		{"a stray brace", "[{}},{}]", []string{"1 {}}", "1 {}"}},
		{"objects on lines instead", "{\"a\":1}\nx\n{}", []string{`1 {"a":1}`, "2 x", "3 {}"}},
		{"an object over lines", "{\n\"a\":1}\n", []string{"END " + errSpread.Problem}},
		{"no JSON", "id,a\n", []string{`END the input is read as JSON, but begins with "i" instead of [ or {: give another --format`}},
	} {
		t.Run(tt.name, func(t *testing.T) { checkRows(t, Layout{Format: FormatJSON}, tt.in, tt.want) })
	}
}

func TestALineOfSpacesIsNoHeader(t *testing.T) {
	for _, layout := range []Layout{{}, {Format: FormatCSV}, {Format: FormatCSV, Strict: true}} {
		checkRows(t, layout, "\n  \n id,text\n1,a\n", []string{`4 {" id":"1","text":"a"}`})
	}
	checkRows(t, Layout{Format: FormatCSV}, " \n", []string{"END line 1: the file is empty: a CSV file begins with a line that names its columns"})
}

func TestAFormatThatIsNotSaidIsRecognised(t *testing.T) {
	for _, tt := range []struct {
		name, in, layout string
		want             []string
	}{
		{"nothing", "", "jsonl", nil},
		{"blank lines", "\n \r\n", "jsonl", nil},
		{"objects", "\n{\"a\":1}\nx\n", "jsonl", []string{`2 {"a":1}`, "3 x"}},
		{"an array", "[\n{\"a\":1}]", "json", []string{`2 {"a":1}`}},
		{"an empty array", "[]", "json", nil},
		{"a bad row that is an array", "[1,2]\n{}\n", "jsonl", []string{"1 [1,2]", "2 {}"}},
		{"a bad row first", "not json\n{}\n", "jsonl", []string{"1 not json", "2 {}"}},
		{"nothing but a bad row", "not, json\n", "jsonl", []string{"1 not, json"}},
		{"CSV without rows", "id,text\n", "", []string{"END " + errNotRows.Problem}},
		{"CSV whose lines end in CR alone", "id,text\r1,one\r", "", []string{"END " + errNotRows.Problem}},
		{"rows that are strings", "\"a\"\n\"b\"\n", "jsonl", []string{`1 "a"`, `2 "b"`}},
		{"CSV", "id,text\n1,\"one\ntwo\"\n2\n", "csv", []string{`2 {"id":"1","text":"one` + `\n` + `two"}`, "FAULT line 4: 1 column, the header has 2"}},
		{"CSV with quotes around names", "\"id\",\"text, long\"\r\n1,2\r\n", "csv", []string{`2 {"id":"1","text, long":"2"}`}},
		{"CSV with a quote within a value", "id,text\n1,TV 24\"\n", "csv", []string{`2 {"id":"1","text":"TV 24\""}`}},
		{"tabs", "id\ttext\n1\ta, b\n", "csv delimiter=tab", []string{`2 {"id":"1","text":"a, b"}`}},
		{"semicolons", "id;text\n1;a\n", "csv delimiter=;", []string{`2 {"id":"1","text":"a"}`}},
		{"one column", "text\ngood\n", "", []string{"END " + errNotRows.Problem}},
		{"prose", "Hello, world\nGood, bye\n", "", []string{"END " + errNotRows.Problem}},
		{"an object over lines", "{\n\"a\":1}\n", "jsonl", []string{"END " + errSpread.Problem}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			checkRows(t, Layout{}, tt.in, tt.want)
			r := NewReader(strings.NewReader(tt.in), Layout{}, 100)
			_, _ = r.Next()
			if got := r.Layout().String(); got != tt.layout {
				t.Errorf("got layout %q, want %q", got, tt.layout)
			}
		})
	}
}

// A pipe may stay silent for long after a row.
func TestARowIsReadBeforeTheNextIsWritten(t *testing.T) {
	for _, format := range []Format{"", FormatJSONL, FormatJSON} {
		in := &lines{t: t, rest: []string{"{\"a\":1}\n", "{\"a\":2}\n"}}
		r := NewReader(in, Layout{Format: format}, 100)
		for range 2 {
			in.admitted++
			if row, err := r.Next(); err != nil || row.Fault != nil {
				t.Fatalf("format %q: got %+v, %v", format, row, err)
			}
		}
	}
}

// lines is a pipe to which one line is written at a time. A read of one that is not admitted
// would block.
type lines struct {
	t        *testing.T
	rest     []string
	admitted int
}

func (l *lines) Read(p []byte) (int, error) {
	if l.admitted == 0 {
		l.t.Fatal("the reader waits for more than it needs")
	}
	l.admitted--
	n := copy(p, l.rest[0])
	l.rest = l.rest[1:]
	return n, nil
}

func TestTypesOfValues(t *testing.T) {
	in := "a\n" + strings.Join([]string{
		"4", "-1.50", "1e3", "12345678901234567890", `" 7 "`, "007", "+1", `"1,000"`, "1e999", "-", "0x10", "NaN",
		"true", "False", "TRUE", "yes", `""`, `"  "`, "null", `"say ""hi"""`, "2026-11-22",
	}, "\n")
	want := []string{
		"4", "-1.50", "1e3", "12345678901234567890", "7", `"007"`, `"+1"`, `"1,000"`, `"1e999"`, `"-"`, `"0x10"`, `"NaN"`,
		"true", "false", "true", `"yes"`, "null", "null", `"null"`, `"say \"hi\""`, `"2026-11-22"`,
	}
	r := NewReader(strings.NewReader(in), Layout{Format: FormatCSV, Typed: true}, 100)
	for _, w := range want {
		row, err := r.Next()
		if err != nil || string(row.Body) != `{"a":`+w+`}` || !json.Valid(row.Body) {
			t.Errorf("got %s, %v; want %s", row.Body, err, w)
		}
	}
}

func TestOtherDelimiters(t *testing.T) {
	checkRows(t, Layout{Format: FormatCSV, Delimiter: ';'}, "a;b\n1,5;\"x;\"\"y\"\n;\n", []string{`2 {"a":"1,5","b":"x;\"y"}`, `3 {"a":"","b":""}`})
	checkRows(t, Layout{Format: FormatCSV, Delimiter: '\t'}, "a\tb\n1\t2\n", []string{`2 {"a":"1","b":"2"}`})
}

func gzipped(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return b.String()
}

func TestGzipIsReadAsTheText(t *testing.T) {
	one, two := gzipped("{\"a\":1}\n"), gzipped("{\"a\":2}\n")
	damaged := []byte(one)
	damaged[len(damaged)-5] ^= 1 // of the checksum
	for _, tt := range []struct {
		name, in string
		want     []string
	}{
		{"one member", one, []string{`1 {"a":1}`}},
		{"two members", one + two, []string{`1 {"a":1}`, `2 {"a":2}`}},
		{"nothing", gzipped(""), nil},
		{"cut off", (one + two)[:len(one)+15], []string{`1 {"a":1}`, "END line 2: the compressed input ends too early: it was cut off"}},
		{"cut off in the header", one[:5], []string{"END line 1: the compressed input ends too early: it was cut off"}},
		{"damaged", string(damaged), []string{`1 {"a":1}`, "END line 2: the compressed input is damaged: its checksum is wrong"}},
		{"followed by text", one + "{\"a\":2, \"b\":3}\n", []string{`1 {"a":1}`, "END line 2: the compressed input is followed by something else, which begins with \"{\\\"a\\\":2, \\\"b\\\":3}\\n\": remove it"}},
		{"padded with zeros", one + two + strings.Repeat("\x00", 100_000), []string{`1 {"a":1}`, `2 {"a":2}`}},
		{"text after zeros", one + "\x00\x00END", []string{`1 {"a":1}`, "END line 2: the compressed input is followed by something else, which begins with \"END\": remove it"}},
		{"a member after zeros", one + "\x00" + two, []string{`1 {"a":1}`, "END line 2: the compressed input is followed by something else, which begins with " + strconv.QuoteToASCII(two[:16]) + ": remove it"}},
		{"cut off in the second header", one + two[:5], []string{`1 {"a":1}`, "END line 2: the compressed input ends too early: it was cut off"}},
		{"cut off in the first bytes", one + two[:1], []string{`1 {"a":1}`, "END line 2: the compressed input ends too early: it was cut off"}},
		{"compressed twice", gzipped(one), []string{"END line 1: the input is compressed twice: decompress it first, as gunzip -c does"}},
	} {
		t.Run(tt.name, func(t *testing.T) { checkRows(t, Layout{}, tt.in, tt.want) })
	}
}

// A file of some kilobytes becomes a row of 24 MiB.
func TestAGzipBombIsNotHeld(t *testing.T) {
	const size = 24 << 20
	for _, format := range []Format{FormatJSONL, FormatCSV, FormatJSON} {
		file, w := io.Pipe()
		go func() {
			z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
			_, _ = io.WriteString(z, "[{\"a\":\"")
			_, _ = io.Copy(z, io.LimitReader(repeat('x'), size))
			_, _ = io.WriteString(z, "\"}]")
			_ = z.Close()
			_ = w.Close()
		}()
		r := NewReader(file, Layout{Format: format}, 1000)
		row, err := r.Next()
		if format == FormatCSV { // the header
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Errorf("%s: got %v", format, err)
			}
		} else if err != nil || row.Fault == nil || !row.Fault.TooLarge || row.Fault.Size < size || len(row.Body) > 2*faultHeadBytes {
			t.Errorf("%s: got %d bytes, fault %v, %v", format, len(row.Body), row.Fault, err)
		}
		if held := cap(r.raw) + cap(r.record.data) + cap(r.record.head); held > 20_000 {
			t.Errorf("%s: %d bytes held for rows of at most 1000", format, held)
		}
		_, _ = io.Copy(io.Discard, file)
	}
}

// A header of many names must not take the square of their number.
func TestAHeaderOfManyColumnsTakesLinearWork(t *testing.T) {
	var header strings.Builder
	for i := range 300_000 {
		if i > 0 {
			header.WriteByte(',')
		}
		for n := i + 1; n > 0; n /= 26 {
			header.WriteByte(byte('a' + n%26))
		}
		header.WriteString(string(rune('0' + i%10)))
	}
	r := NewReader(strings.NewReader(header.String()+"\n"), Layout{Format: FormatCSV}, 8<<20)
	if _, err := r.Next(); !errors.Is(err, io.EOF) || len(r.Columns()) != 300_000 {
		t.Errorf("%d columns, %v", len(r.Columns()), err)
	}
}

// FuzzJSONArrayRows compares the reader with encoding/json, which holds the array whole.
func FuzzJSONArrayRows(f *testing.F) {
	f.Add(`[{"a":"\"]"}, [1,[2]],"x" ,{}]`)
	f.Add("[\n]\n")
	f.Add(`[{},]`)
	f.Fuzz(func(t *testing.T, text string) {
		if isForeign(text) || strings.HasPrefix(text, "\xef\xbb\xbf") {
			return
		}
		var want []json.RawMessage
		valid := json.Unmarshal([]byte(text), &want) == nil && strings.HasPrefix(strings.TrimLeft(text, whiteSpace), "[")
		r := NewReader(iotest.HalfReader(strings.NewReader(text)), Layout{Format: FormatJSON}, 1<<20)
		for i := 0; ; i++ {
			row, err := r.Next()
			switch {
			case err != nil && valid && (!errors.Is(err, io.EOF) || i != len(want)):
				t.Fatalf("row %d of %d: %v", i, len(want), err)
			case err != nil:
				return
			case valid && (i >= len(want) || !bytes.Equal(row.Body, want[i])):
				t.Fatalf("row %d: got %s, want %s", i, row.Body, want)
			}
		}
	})
}

// FuzzAnyRows reads text of any layout, compressed or not: it must end, hold little, and give the
// same rows however the text comes in.
func FuzzAnyRows(f *testing.F) {
	f.Add("id;text\n1;\"a\nb\"\n", false, byte(';'), true)
	f.Add("[{\"a\":1}]", true, byte(0), false)
	f.Add("\x1f\x8b\x08", true, byte('\t'), true)
	f.Fuzz(func(t *testing.T, text string, compress bool, delimiter byte, typed bool) {
		layouts := []Layout{{}, {Format: FormatJSON}}
		if delimiter != '"' && delimiter != '\n' && delimiter != '\r' {
			layouts = append(layouts, Layout{Format: FormatCSV, Delimiter: delimiter, Typed: typed})
		}
		if compress {
			text = gzipped(text)
		}
		for _, layout := range layouts {
			whole := readAll(t, strings.NewReader(text), layout, 50)
			pieces := readAll(t, iotest.OneByteReader(strings.NewReader(text)), layout, 50)
			if layout.Format == FormatCSV {
				checkObjects(t, text, layout)
			}
			recognised := NewReader(strings.NewReader(text), layout, 50)
			_, err := recognised.Next()
			if _, unknown := errors.AsType[*FormatError](err); layout.Format == "" && (unknown || recognised.Layout().Format == FormatJSONL) {
				continue // a line that has come already may show that it is JSONL
			}
			if !slices.Equal(whole, pieces) {
				t.Fatalf("%v: got %q whole, %q in pieces", layout, whole, pieces)
			}
		}
	})
}

// checkObjects checks that the good rows of a CSV file are objects.
func checkObjects(t *testing.T, text string, layout Layout) {
	t.Helper()
	for r := NewReader(strings.NewReader(text), layout, 1000); ; {
		row, err := r.Next()
		if err != nil {
			return
		}
		var object map[string]any
		if row.Fault == nil && json.Unmarshal(row.Body, &object) != nil {
			t.Fatalf("%v: %q is no object", layout, row.Body)
		}
	}
}
