package rowfile

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"
)

// readAll returns one line of text for each row: its line in the file and its body, or what is
// wrong with it.
func readAll(t *testing.T, r io.Reader, layout Layout, bytesMax int) []string {
	t.Helper()
	var got []string
	reader := NewReader(r, layout, bytesMax)
	for {
		row, err := reader.Next()
		if err != nil {
			if _, again := reader.Next(); !errors.Is(again, err) {
				t.Errorf("Next after the end: got %v, want %v again", again, err)
			}
			if !errors.Is(err, io.EOF) {
				got = append(got, "END "+err.Error())
			}
			return got
		}
		if row.Fault != nil {
			got = append(got, "FAULT "+row.Fault.Error())
			var object map[string]any
			if json.Unmarshal(row.Body, &object) == nil {
				t.Errorf("body of a bad row is a JSON object, so it would be taken for a good one: %s", row.Body)
			}
			continue
		}
		got = append(got, fmt.Sprintf("%d %s", row.Line, row.Body))
	}
}

func TestRowsOfAFile(t *testing.T) {
	long := strings.Repeat("x", 200)
	for _, tt := range []struct {
		name   string
		format Format
		in     string
		want   []string
	}{
		{"empty", FormatJSONL, "", nil},
		{"lines", FormatJSONL, "{\"a\":1}\n{\"a\":2}\n", []string{`1 {"a":1}`, `2 {"a":2}`}},
		{"no newline at the end", FormatJSONL, "{}\n{\"a\":2}", []string{"1 {}", `2 {"a":2}`}},
		{"blank lines are skipped and counted", FormatJSONL, "\n  \t\r\n{}\n\n", []string{"3 {}"}},
		{"DOS line ends and the mark of UTF-8", FormatJSONL, "\xef\xbb\xbf{}\r\n{}\r\n", []string{"1 {}", "2 {}"}},
		{"any other line is a row", FormatJSONL, "not json\n[1]\n \xff \n", []string{"1 not json", "2 [1]", "3  \xff "}},
		{"a line that is too long", FormatJSONL, "{}\n" + long + "\n{}\n", []string{"1 {}", "FAULT line 2: a row of 200 bytes, at most 100 can be sent", "3 {}"}},
		{"an object, then more space than a row may have", FormatJSONL, "{}" + strings.Repeat(" ", 200), []string{"FAULT line 1: a row of 202 bytes, at most 100 can be sent"}},
		{"as long as a row may be", FormatJSONL, long[:100] + "\r\n" + long[:100], []string{"1 " + long[:100], "2 " + long[:100]}},
		{"compressed by zstd", FormatJSONL, "\x28\xb5\x2f\xfd", []string{"END line 1: the input is compressed by zstd: decompress it first, as zstd -dc does"}},
		{"a workbook", FormatCSV, "PK\x03\x04", []string{"END line 1: the input is a ZIP archive or a workbook: unpack it, as unzip -p does, or save the sheet as CSV"}},
		{"UTF-16", FormatCSV, "\xff\xfea\x00", []string{"END line 1: the input is UTF-16LE with a byte order mark: convert it to UTF-8, as iconv -f UTF-16 -t UTF-8 does"}},
		{"compressed by bzip2", FormatJSONL, "BZh91AY&SY", []string{"END line 1: the input is compressed by bzip2: decompress it first, as bzip2 -dc does"}},
		{"Parquet", FormatJSONL, "PAR1\x15\x04", []string{"END line 1: the input is Parquet: convert it to JSONL or CSV first"}},
		{"text that begins as an archive does", FormatCSV, "PAR1,BZh9\n1,2\n", []string{`2 {"PAR1":"1","BZh9":"2"}`}},
		{"no more text than an archive begins with", FormatCSV, "BZh", nil},

		{"csv", FormatCSV, "id,text\n1,one\n2,two\n", []string{`2 {"id":"1","text":"one"}`, `3 {"id":"2","text":"two"}`}},
		{"csv: nothing but a header", FormatCSV, "id,text", nil},
		{"csv: no header", FormatCSV, "\n\n", []string{"END line 1: the file is empty: a CSV file begins with a line that names its columns"}},
		{"csv: quotes, commas and lines within", FormatCSV, "\xef\xbb\xbf\"a\",\"b \"\"c\"\"\"\r\n\"1,2\",\"x\r\ny\"\r\n3,\r\n", []string{`2 {"a":"1,2","b \"c\"":"x\r\ny"}`, `4 {"a":"3","b \"c\"":""}`}},
		{"csv: lines that end in CR alone", FormatCSV, "a,b\r1,2\r3,4\r", []string{`END line 1: header: lines end in CR alone: convert them, as tr '\r' '\n' does`}},
		{"csv: quotes and lines that end in CR alone", FormatCSV, "\"a\",\"b\"\r1,2\r", []string{`END line 1: header: lines end in CR alone: convert them, as tr '\r' '\n' does`}},
		{"csv: a CR in text", FormatCSV, "\"a\rb\"\n1\r2\n", []string{`2 {"a\rb":"1\r2"}`}},
		{"csv: escapes", FormatCSV, "a\n\"\\ \t\x01\u2028é<&>\"\n", []string{"2 {\"a\":\"\\\\ \\t\\u0001\u2028é<&>\"}"}},
		{"csv: blank lines are skipped", FormatCSV, "\na\n\n\r\n1\n\"\"\n", []string{`5 {"a":"1"}`, `6 {"a":""}`}},
		{"csv: wrong number of columns", FormatCSV, "a,b\n1\n1,2,3\n1,2\n", []string{"FAULT line 2: 1 column, the header has 2", "FAULT line 3: 3 columns, the header has 2", `4 {"a":"1","b":"2"}`}},
		{"csv: a bad row that looks like an object", FormatCSV, "a,b\n{}\n", []string{"FAULT line 2: 1 column, the header has 2"}},
		{"csv: a quote that stays open", FormatCSV, "a\n1\n\"2\n3\n", []string{`2 {"a":"1"}`, "END line 3: the quote opened here is never closed"}},
		{"csv: two columns of one name", FormatCSV, "a,b,a\n1,2,3\n", []string{`END line 1: header: two columns are called "a"`}},
		{"csv: a column without a name", FormatCSV, ",b\n1,2\n", []string{`2 {"":"1","b":"2"}`}},
		{"csv: not UTF-8", FormatCSV, "a,b\n\xc3,\xa9\n", []string{"FAULT line 2: column 1 is not UTF-8: convert the file with iconv"}},
		{"csv: a row that is too large", FormatCSV, "a\n" + long + "\n1\n", []string{"FAULT line 2: a row of 201 bytes, at most 100 can be sent", `3 {"a":"1"}`}},
		{"csv: too large as JSON only", FormatCSV, "a\n" + strings.Repeat("\t", 60) + "\n", []string{"FAULT line 2: a row of 128 bytes, at most 100 can be sent"}},
		{"csv: more columns than bytes", FormatCSV, "a\n" + strings.Repeat(",", 150) + "\n", []string{"FAULT line 2: a row of 151 bytes, at most 100 can be sent"}},
		{"csv: a header that is too large", FormatCSV, long + "\n", []string{"END line 1: header: larger than 100 bytes"}},
		{"csv: a lone carriage return is text", FormatCSV, "a,b\nx\ry,\r\n", []string{`2 {"a":"x\ry","b":""}`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for name, in := range map[string]io.Reader{"whole": strings.NewReader(tt.in), "byte by byte": iotest.OneByteReader(strings.NewReader(tt.in))} {
				if got := readAll(t, in, Layout{Format: tt.format}, 100); !slices.Equal(got, tt.want) {
					t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
				}
			}
		})
	}
}

func TestErrorOfTheFileNamesTheLine(t *testing.T) {
	broken := errors.New("disk on fire")
	for format, want := range map[Format]string{FormatJSONL: "line 3: disk on fire", FormatCSV: "line 3: disk on fire"} {
		in := io.MultiReader(strings.NewReader("a\nb\nc"), iotest.ErrReader(broken))
		reader := NewReader(in, Layout{Format: format}, 100)
		var err error
		for err == nil {
			_, err = reader.Next()
		}
		if !errors.Is(err, broken) || err.Error() != want {
			t.Errorf("%s: got %v, want %s", format, err, want)
		}
	}
}

// A line of 64 MiB is passed over without being held.
func TestLongLinesAreNotHeld(t *testing.T) {
	const size = 64 << 20
	for _, format := range []Format{FormatJSONL, FormatCSV} {
		in := io.MultiReader(strings.NewReader("a\n"), io.LimitReader(repeat('x'), size), strings.NewReader("\n{}\n"))
		reader := NewReader(in, Layout{Format: format}, 1000)
		if format == FormatJSONL {
			if _, err := reader.Next(); err != nil {
				t.Fatal(err)
			}
		}
		row, err := reader.Next()
		if err != nil || row.Fault == nil || !row.Fault.TooLarge || row.Fault.Size < size || len(row.Body) > 2*faultHeadBytes {
			t.Fatalf("%s: got line %d, %d bytes, fault %v, %v", format, row.Line, len(row.Body), row.Fault, err)
		}
		if row, err = reader.Next(); err != nil || row.Line != 3 || row.Fault != nil {
			t.Errorf("%s: got line %d, fault %v, %v; want the row of line 3", format, row.Line, row.Fault, err)
		}
		if held := cap(reader.raw) + cap(reader.record.data) + cap(reader.record.head) + 8*cap(reader.record.ends); held > 20_000 {
			t.Errorf("%s: %d bytes held for rows of at most 1000", format, held)
		}
	}
}

type repeat byte

func (r repeat) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r)
	}
	return len(p), nil
}

// isForeign reports whether a text is taken for a file that is no text.
func isForeign(text string) bool {
	encoding, _ := encodingOf([]byte(text[:min(len(text), encodingSample)]))
	return encoding != "" || slices.ContainsFunc(archives, func(a struct{ magic, problem string }) bool { return strings.HasPrefix(text, a.magic) })
}

// FuzzJSONLRows compares the reader with splitting the whole text.
func FuzzJSONLRows(f *testing.F) {
	f.Add("{}\n\n{\"a\":1}\r\n  \n x", 20)
	f.Add(strings.Repeat("x", 50)+"\n{}", 10)
	f.Add("   \n", 1) // a blank line longer than a row may be
	f.Fuzz(func(t *testing.T, text string, bytesMax int) {
		if bytesMax < 1 || bytesMax > 1<<16 || isForeign(text) {
			return
		}
		var want []string
		for i, line := range strings.Split(strings.TrimPrefix(text, "\xef\xbb\xbf"), "\n") {
			line = strings.TrimSuffix(line, "\r")
			switch {
			case strings.Trim(line, " \t\r\v\f") == "":
			case len(line) > bytesMax:
				want = append(want, fmt.Sprintf("FAULT line %d: a row", i+1))
			default:
				want = append(want, fmt.Sprintf("%d %s", i+1, line))
			}
		}
		got := readAll(t, strings.NewReader(text), Layout{Format: FormatJSONL}, bytesMax)
		if len(got) != len(want) {
			t.Fatalf("got %d rows %q, want %d %q", len(got), got, len(want), want)
		}
		for i := range got {
			if fault := strings.HasPrefix(want[i], "FAULT"); got[i] != want[i] && (!fault || !strings.HasPrefix(got[i], want[i])) {
				t.Errorf("row %d: got %q, want %q", i, got[i], want[i])
			}
		}
	})
}

// FuzzCSVRows compares strict reading with encoding/csv, which holds each record whole and
// normalises line ends.
func FuzzCSVRows(f *testing.F) {
	f.Add("a,b\n1,2\n\"x\ny\",\"\"\"\"\n\n3\n")
	f.Add("a\n\"1\"2\nx\"y\n\"open")
	f.Add(",\n\"\"\xff,\n")
	f.Fuzz(func(t *testing.T, text string) {
		_, setting, _ := csvSetting([]byte(strings.TrimPrefix(text, "\xef\xbb\xbf")))
		if strings.Contains(text, "\r") || isForeign(text) || setting > 0 {
			return
		}
		oracle := csv.NewReader(strings.NewReader(strings.TrimPrefix(text, "\xef\xbb\xbf")))
		oracle.FieldsPerRecord = -1
		reader := NewReader(strings.NewReader(text), Layout{Format: FormatCSV, Strict: true}, 1<<20)
		header, headerErr := oracle.Read()
		for headerErr == nil && len(header) == 1 && strings.Trim(header[0], whiteSpace) == "" { // names no column
			header, headerErr = oracle.Read()
		}
		for {
			row, err := reader.Next()
			if _, ok := errors.AsType[*Error](err); ok && reader.keys == nil {
				distinct := slices.Compact(slices.Sorted(slices.Values(header)))
				if headerErr == nil && len(distinct) == len(header) && utf8.ValidString(strings.Join(header, "\x00")) {
					t.Fatalf("header refused: %v, encoding/csv takes %q", err, header)
				}
				return
			}
			record, want := oracle.Read()
			switch {
			case errors.Is(want, io.EOF):
				if !errors.Is(err, io.EOF) {
					t.Fatalf("got row %+v, %v after the last", row, err)
				}
				return
			case err != nil:
				if want == nil {
					t.Fatalf("got %v where encoding/csv reads %q", err, record)
				}
				return
			case want != nil:
				if row.Fault == nil {
					t.Fatalf("got %s where encoding/csv returns %v", row.Body, want)
				}
			case len(record) != len(header) || !utf8.ValidString(strings.Join(record, "\x00")):
				if row.Fault == nil {
					t.Fatalf("got %s for %q under %q", row.Body, record, header)
				}
			default:
				fields := make(map[string]string)
				if err := json.Unmarshal(row.Body, &fields); err != nil || row.Fault != nil || !utf8.Valid(row.Body) {
					t.Fatalf("got %s, fault %v, %v for %q", row.Body, row.Fault, err, record)
				}
				for i, name := range header {
					if fields[name] != record[i] {
						t.Fatalf("column %q: got %q, want %q", name, fields[name], record[i])
					}
				}
				if line, _ := oracle.FieldPos(0); int64(line) != row.Line {
					t.Fatalf("got line %d, want %d", row.Line, line)
				}
			}
		}
	})
}

func BenchmarkRowReader(b *testing.B) {
	object := `{"id":12345,"text":"` + strings.Repeat("lorem ipsum ", 80) + `"}` + "\n"
	record := `12345,"` + strings.Repeat("lorem ipsum ", 80) + `"` + "\n"
	for _, bench := range []struct {
		format Format
		in     string
	}{
		{FormatJSONL, strings.Repeat(object, 1000)},
		{FormatCSV, "id,text\n" + strings.Repeat(record, 1000)},
	} {
		b.Run("format="+string(bench.format), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(bench.in)))
			for b.Loop() {
				reader := NewReader(bytes.NewReader([]byte(bench.in)), Layout{Format: bench.format}, 1<<20)
				rows := 0
				for ; ; rows++ {
					if _, err := reader.Next(); err != nil {
						break
					}
				}
				if rows != 1000 {
					b.Fatalf("got %d rows", rows)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/row")
		})
	}
}
