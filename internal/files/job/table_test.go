package job

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/files/load"
	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm/schema"
	"pgregory.net/rapid"
)

const addedHeader = "F,F_usage_prompt_tokens,F_usage_completion_tokens,F_usage_total_tokens,F_usage_cost,F_model,F_error_reason,F_error\n"

func success(body string) stored.Result { return stored.Result{Seq: 1, Body: []byte(body)} }
func failure(body string) stored.Result {
	return stored.Result{Seq: 1, Body: []byte(body), Failed: true}
}

// tableOf returns the table of results of an input, as text.
func tableOf(t *testing.T, input, rows string, results ...stored.Result) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), input)
	stagetest.Must(t, os.WriteFile(name, []byte(rows), 0o600))
	in := stagetest.Value(load.OpenSource(t.Context(), nil, name, rowfile.Spec{}))(t)
	defer in.File.Close() //nolint:errcheck // read only
	table := stagetest.Value(newTable(t.Context(), "OUT.CSV", in, "F", nil, TableOptions{}))(t)
	var out bytes.Buffer
	stagetest.Must(t, table.writeHeader(t.Context(), &out, nil))
	for _, r := range results {
		stagetest.Must(t, table.write(&out, r))
	}
	return out.String()
}

func TestATableHasTheColumnsOfTheInput(t *testing.T) {
	for _, tt := range []struct{ name, input, rows, want string }{
		{"header of CSV", "a.csv", "z,a,,\"b,c\"\n", `z,a,,"b,c",` + addedHeader},
		{"header of TSV", "a.tsv", "z\ta\n1\t2\n", "z,a," + addedHeader},
		{"members of all rows as they first appear", "a.jsonl", `{"b":1,"a":2}` + "\nbad\n" + `{"a":1,"c":{"d":1}}`, "b,a,c," + addedHeader},
		{"an array", "a.json", `[{"b":1},{"a":{"x":1}}]`, "b,a," + addedHeader},
		{"no rows", "a.jsonl", "", addedHeader},
		{"nothing but bad rows", "a.jsonl", "bad", addedHeader},
		{"what the stage adds replaces columns of that name", "a.csv", "F,F_error,F_usage,F_usage_cost,F_template_hash,id,F_2\n", "id,F_2," + addedHeader},
	} {
		if got := tableOf(t, tt.input, tt.rows); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestValuesOfATable(t *testing.T) {
	got := tableOf(
		t, "a.csv", "a,b\n",
		success(`{"a":"x, \"y\"\nz","b":"","F":"=1+1","F_usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12,"cached_tokens":3,"cost":0.00010},"F_template_hash":"h","F_model":"m"}`),
		success(`{"a":1.50,"b":null,"F":{"score":[1, 2]},"F_usage":null,"F_model":"m"}`),
		failure(`{"b":true,"a":"é","F":"of an earlier job","F_usage":{"total_tokens":1},"F_error":{"reason":"api_call_failed","error":"500: \"no\"","errors":[]}}`),
		failure(`{"F_error":{"reason":"invalid_row","error":"row: empty","body_preview":""}}`),
	)
	want := "a,b," + addedHeader +
		"\"x, \"\"y\"\"\nz\",,=1+1,5,7,12,0.00010,m,,\n" +
		"1.50,,\"{\"\"score\"\":[1, 2]}\",,,,,m,,\n" +
		"é,true,,,,,,,api_call_failed,\"500: \"\"no\"\"\"\n" +
		",,,,,,,,invalid_row,row: empty\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// The rows of a pipe are known one by one, so the header has the columns of the first; nothing of
// the others is lost.
func TestATableOfAPipeHasTheColumnsOfItsFirstRow(t *testing.T) {
	for _, tt := range []struct{ rows, out, want string }{
		{"bad\n{\"b\":1,\"a\":2}\n", "o.csv", "b,a,F_other," + addedHeader + "3,,\"{\"\"c\"\":[1],\"\"d\"\":\"\"x\"\"}\",ok,,,,,,,\n"},
		{"b,c,d\n1,2,3\n", "o.csv", "b,c,d," + addedHeader + "3,[1],x,ok,,,,,,,\n"},
		{"b,c,d\n1,2,3\n", "o.tsv", "b\tc\td\t" + strings.ReplaceAll(addedHeader, ",", "\t") + "3\t[1]\tx\tok\t\t\t\t\t\t\t\n"},
	} {
		in, err := load.OpenSource(t.Context(), strings.NewReader(tt.rows), "-", rowfile.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		table := stagetest.Value(newTable(t.Context(), tt.out, in, "F", nil, TableOptions{}))(t)
		rows := in.Reader(discardLog, 1000)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(os.ErrClosed)
		if err := table.writeHeader(ctx, nil, rows); err == nil {
			t.Error("wrote a header before the first row was read")
		}
		for err == nil {
			_, err = rows.Read()
		}
		var out bytes.Buffer
		stagetest.Must(t, table.writeHeader(t.Context(), &out, rows))
		stagetest.Must(t, table.write(&out, success(`{"b":3,"c":[1],"d":"x","F":"ok"}`)))
		if out.String() != tt.want {
			t.Errorf("got %q, want %q", out.String(), tt.want)
		}
	}
}

func TestAMemberThatTheInputLacksIsNotLost(t *testing.T) {
	table := &table{field: "F", out: csv.NewWriter(nil)}
	stagetest.Must(t, table.setColumns([]string{"a"}))
	err := table.write(nil, success(`{"a":1,"new":2,"F":"x"}`))
	if err == nil || !strings.Contains(err.Error(), `result of row 1 has the member "new", which no row of the input has`) {
		t.Errorf("got %v", err)
	}
}

func TestTooManyColumnsAreRefused(t *testing.T) {
	var row bytes.Buffer
	for i := range 20_000 {
		row.WriteString(map[bool]string{true: `{"`, false: `,"`}[i == 0] + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + string(rune(0x4e00+i)) + `":1`)
	}
	row.WriteByte('}')
	in := stagetest.Value(load.OpenSource(t.Context(), &row, "-", rowfile.Spec{Format: "jsonl"}))(t)
	rows := in.Reader(discardLog, 1<<20)
	stagetest.Value(rows.Read())(t)
	table := stagetest.Value(newTable(t.Context(), "o.csv", in, "F", nil, TableOptions{}))(t)
	if err := table.writeHeader(t.Context(), nil, rows); err == nil || !strings.Contains(err.Error(), "more than 16384 different members") {
		t.Errorf("got %v", err)
	}
}

// What a table holds is read back as it was, whatever the rows and replies are.
func TestATableIsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOfN(rapid.String(), 3, 3).Draw(t, "values")
		out := rapid.SampledFrom([]string{"o.csv", "o.tsv"}).Draw(t, "file")
		table := stagetest.Value(newTable(context.Background(), out, &load.Source{}, "F", nil, TableOptions{}))(t)
		stagetest.Must(t, table.setColumns([]string{"a", "b"}))
		var b bytes.Buffer
		body := []byte(`{"a":`)
		body = append(jsonbytes.AppendString(body, texts[0]), `,"b":`...)
		body = append(jsonbytes.AppendString(body, texts[1]), `,"F":`...)
		body = append(jsonbytes.AppendString(body, texts[2]), '}')
		if err := errors.Join(table.writeHeader(context.Background(), &b, nil), table.write(&b, stored.Result{Body: body})); err != nil {
			t.Fatal(err)
		}
		layout, _ := rowfile.Spec{}.Layout(out)
		row, err := rowfile.NewReader(&b, layout, 1<<20).Next()
		if err != nil || row.Fault != nil {
			t.Fatalf("%v, %v", row.Fault, err)
		}
		for i, name := range []string{"a", "b", "F"} {
			if got := jsonbytes.Text(jsonbytes.Find(row.Body, name)); got != jsonbytes.Text(jsonbytes.AppendString(nil, texts[i])) {
				t.Errorf("%s: got %q, want %q", name, got, texts[i])
			}
		}
	})
}

func TestATableKeepsWhatItsInputHas(t *testing.T) {
	yes, no := true, false
	for _, tt := range []struct {
		name, input, rows, out string
		spec                   rowfile.Spec
		o                      TableOptions
		want                   string // of the beginning
	}{
		{"commas", "a.csv", "a,b\n", "o.csv", rowfile.Spec{}, TableOptions{}, "a,b,F,"},
		{"semicolons", "a.csv", "a;b\n", "o.csv", rowfile.Spec{Delimiter: ";"}, TableOptions{}, "a;b;F;"},
		{"a setting", "a.csv", "sep=|\na|b\n", "o.csv", rowfile.Spec{}, TableOptions{}, "a|b|F|"},
		{"a mark", "a.csv", "\xef\xbb\xbfa;b\n", "o.csv", rowfile.Spec{Delimiter: ";"}, TableOptions{}, "\xef\xbb\xbfa;b;F;"},
		{"tabs belong to another name", "a.tsv", "a\tb\n", "o.csv", rowfile.Spec{}, TableOptions{}, "a,b,F,"},
		{"and so do commas", "a.csv", "a,b\n", "o.tsv", rowfile.Spec{}, TableOptions{}, "a\tb\tF\t"},
		{"tabs", "a.tsv", "\xef\xbb\xbfa\tb\n", "o.tab", rowfile.Spec{}, TableOptions{}, "\xef\xbb\xbfa\tb\tF\t"},
		{"another delimiter, no mark", "a.csv", "\xef\xbb\xbfa,b\n", "o.csv", rowfile.Spec{}, TableOptions{Delimiter: ';', Mark: &no}, "a;b;F;"},
		{"a mark of its own", "a.csv", "a,b\n", "o.csv", rowfile.Spec{}, TableOptions{Mark: &yes}, "\xef\xbb\xbfa,b,F,"},
		{"the mark of another format", "a.jsonl", "\xef\xbb\xbf{\"a\":1}\n", "o.csv", rowfile.Spec{}, TableOptions{}, "a,F,"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), tt.input)
			stagetest.Must(t, os.WriteFile(name, []byte(tt.rows), 0o600))
			for _, path := range []string{name, "-"} { // a pipe is known when its first row is
				if tt.spec.Format = ""; path == "-" {
					tt.spec.Format = strings.TrimPrefix(filepath.Ext(tt.input), ".")
				}
				in, err := load.OpenSource(t.Context(), strings.NewReader(tt.rows), path, tt.spec)
				if err != nil {
					t.Fatal(err)
				}
				defer in.File.Close() //nolint:errcheck // read only
				table := stagetest.Value(newTable(t.Context(), tt.out, in, "F", nil, tt.o))(t)
				rows := in.Reader(discardLog, 1000)
				for err == nil {
					_, err = rows.Read()
				}
				var out bytes.Buffer
				stagetest.Must(t, table.writeHeader(t.Context(), &out, rows))
				got := strings.Replace(out.String(), "F_other"+string(table.out.Comma), "", 1)
				if !strings.HasPrefix(got, tt.want) {
					t.Errorf("%s: got %q, want %q", path, got, tt.want)
				}
			}
		})
	}
}

func TestTheMembersOfAReplyHaveColumns(t *testing.T) {
	source := `{"type":"object","properties":{"category":{"type":"string"},"b":{},"score":{"type":"number"}}}`
	o := TableOptions{Flatten: true}
	response := stagetest.Value(schema.Parse([]byte(source), "schema"))(t)
	fields, err := o.fields("o.csv", response, false)
	if err != nil || !slices.Equal(fields, []string{"category", "b", "score"}) {
		t.Fatalf("got %q, %v", fields, err)
	}
	table := stagetest.Value(newTable(t.Context(), "o.csv", &load.Source{}, "F", fields, o))(t)
	if err := table.setColumns([]string{"a", "F.b"}); err == nil || !strings.Contains(err.Error(), "the input has a column F.b") {
		t.Errorf("a column of the input with the name of a member: %v", err)
	}
	if err := table.setColumns([]string{"a", "F.b", "F"}); err != nil { // the others are of an earlier table
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, r := range []stored.Result{
		success(`{"a":1,"F.b":"old","F":{"score":0.50,"category":"x, y","b":{"c":[1]},"more":1},"F_model":"m"}`),
		success(`{"a":2,"F":{"b":null}}`), success(`{"a":3,"F":"text"}`), success(`{"a":4,"F":[{"b":1}]}`),
		failure(`{"a":5,"F":{"b":1},"F_error":{"reason":"refused","error":"no"}}`),
	} {
		if out.Len() == 0 {
			err = table.writeHeader(t.Context(), &out, nil)
		}
		stagetest.Must(t, errors.Join(err, table.write(&out, r)))
	}
	want := strings.Replace("a,"+addedHeader, "F,", "F,F.category,F.b,F.score,", 1) +
		"1,\"{\"\"score\"\":0.50,\"\"category\"\":\"\"x, y\"\",\"\"b\"\":{\"\"c\"\":[1]},\"\"more\"\":1}\",\"x, y\",\"{\"\"c\"\":[1]}\",0.50,,,,,m,,\n" +
		"2,\"{\"\"b\"\":null}\",,,,,,,,,,\n" + "3,text,,,,,,,,,,\n" + "4,\"[{\"\"b\"\":1}]\",,,,,,,,,,\n" + "5,,,,,,,,,,refused,no\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestFlatColumnsAreOfASchema(t *testing.T) {
	yes := true
	for _, tt := range []struct {
		name, out, source string
		fansOut           bool
		o                 TableOptions
		want              []string
		problem           string
	}{
		{"a reference", "o.csv", `{"$ref":"#/$defs/T~1x","$defs":{"T/x":{"type":"object","properties":{"z":{},"y":{}}}}}`, false, TableOptions{Flatten: true}, []string{"z", "y"}, ""},
		{"no schema", "o.csv", "", false, TableOptions{Flatten: true}, nil, "--flatten: the columns are those of the response schema: set STAGE_RESPONSE_SCHEMA_FILE"},
		{"no object", "o.csv", `{"type":"string"}`, false, TableOptions{Flatten: true}, nil, "names no properties"},
		{"no properties", "o.csv", `{"type":"object","properties":{}}`, false, TableOptions{Flatten: true}, nil, "names no properties"},
		{"fan-out", "o.csv", `{"properties":{"a":{}}}`, true, TableOptions{Flatten: true}, nil, "STAGE_FOREACH"},
		{"lines", "o.jsonl", `{"properties":{"a":{}}}`, false, TableOptions{Flatten: true}, nil, "--flatten is for results as CSV: give -o FILE.csv"},
		{"lines with a mark", "", "", false, TableOptions{Mark: &yes}, nil, "--bom is for results as CSV"},
		{"lines with a delimiter", "", "", false, TableOptions{Delimiter: ';'}, nil, "--out-delimiter is for results as CSV"},
		{"nothing asked for", "", "", false, TableOptions{}, nil, ""},
	} {
		var response *schema.Schema
		if tt.source != "" {
			var err error
			if response, err = schema.Parse([]byte(tt.source), "schema"); err != nil {
				t.Fatal(err)
			}
		}
		got, err := tt.o.fields(tt.out, response, tt.fansOut)
		if !slices.Equal(got, tt.want) || (err != nil) != (tt.problem != "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
			t.Errorf("%s: got %q, %v", tt.name, got, err)
		}
	}
}
