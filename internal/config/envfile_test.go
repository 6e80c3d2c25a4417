package config

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func writeEnvFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.env")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestEnvFileIsReadAsAShellReadsIt(t *testing.T) {
	text := "\uFEFF# comment\n\n  # another\nPLAIN=one two\nEMPTY=\nCOMMENT=value # of it\nHASH=a#b\nONLY=# nothing\n" +
		"export EXPORTED=yes\nexport\tTABBED = spaced \nSINGLE='a \"b\" $HOME \\n # c' # d\nDOUBLE=\"a\\n\\\"b\\\" \\$x 'c' # d\"\n" +
		"LINES=\"first\n  second\nthird\" # end\nJSON={\"top_p\": 0.9}\nDOLLAR=$HOME/x\nURL=nats://u:p#w@h\r\nexported=lower\nPLAIN2==x=\n"
	want := map[string]string{
		"PLAIN": "one two", "EMPTY": "", "COMMENT": "value", "HASH": "a#b", "ONLY": "", "EXPORTED": "yes", "TABBED": "spaced",
		"SINGLE": `a "b" $HOME \n # c`, "DOUBLE": "a\n\"b\" $x 'c' # d", "LINES": "first\n  second\nthird",
		"JSON": `{"top_p": 0.9}`, "DOLLAR": "$HOME/x", "URL": "nats://u:p#w@h", "exported": "lower", "PLAIN2": "=x=",
	}
	file, err := ReadEnvFile(writeEnvFile(t, text))
	if err != nil || !maps.Equal(file.Values, want) {
		t.Errorf("got %q, %v\nwant %q", file.Values, err, want)
	}
	if got := file.where("JSON"); !strings.HasSuffix(got, "x.env line 16") {
		t.Errorf("JSON is at %s, want line 16, after the value of three lines", got)
	}
}

func TestEnvFileNamesEveryBadLineAndNoValue(t *testing.T) {
	path := writeEnvFile(t, "sk-secret\nNAME\nNA ME=sk-secret\n1A=sk-secret\nA='x' sk-secret\nGOOD=1\nB=\"sk-secret\nsk-secret\n")
	_, err := ReadEnvFile(path)
	want := strings.Join([]string{
		" line 1: not NAME=VALUE: a name has letters, digits and _; put # before a comment",
		" line 2: NAME has no value: write NAME=VALUE",
		" line 3: not NAME=VALUE: a name has letters, digits and _; put # before a comment",
		" line 4: not NAME=VALUE: a name has letters, digits and _; put # before a comment",
		" line 5: A: text follows the closing quote: put the whole value into the quotes",
		" line 7: B: the quote \" is not closed",
	}, "\n"+path)
	if err == nil || err.Error() != path+want {
		t.Errorf("got\n%v\nwant\n%s%s", err, path, want)
	}
	for text, want := range map[string]string{
		strings.Repeat("x\n", 500):                  "line 20: ",
		strings.Repeat("#", envFileBytesMax+1):      "larger than 1MiB",
		"A=\xff":                                    "not UTF-8 text",
		"A=" + strings.Repeat("x", 200_000) + "\n?": "line 2: not NAME=VALUE",
	} {
		_, err := ReadEnvFile(writeEnvFile(t, text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "\n") >= envFileProblems {
			t.Errorf("%.20q…: got %.200v, want %q", text, err, want)
		}
	}
	if _, err := ReadEnvFile("nowhere.env"); err == nil || err.Error() != "nowhere.env: no such file or directory" {
		t.Errorf("got %v", err)
	}
}

// TestEnvFileKeepsAnyQuotedValue writes values as a careful user does, and reads them back.
func TestEnvFileKeepsAnyQuotedValue(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		value := rapid.StringOf(rapid.RuneFrom([]rune("ab #$'\"\\n\n\té="))).Draw(rt, "value")
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(value) + `"`
		text := "A=" + quoted + "\n"
		if !strings.ContainsAny(value, "'") {
			text += "export B='" + value + "' # comment\n"
		}
		file := EnvFile{Values: make(map[string]string), lines: make(map[string]int)}
		if err := file.parse(text); err != nil || file.Values["A"] != value {
			rt.Fatalf("%q: got %q, %v", text, file.Values["A"], err)
		}
		if b, ok := file.Values["B"]; ok && b != value {
			rt.Fatalf("%q: B is %q", text, b)
		}
	})
}

func FuzzEnvFile(f *testing.F) {
	f.Add("A=1\nexport B='x\ny'\nC=\"\\n\" # z")
	f.Fuzz(func(t *testing.T, text string) {
		file := EnvFile{Values: make(map[string]string), lines: make(map[string]int)}
		_ = file.parse(text)
		for name := range file.Values {
			if !variableName.MatchString(name) || file.lines[name] < 1 || file.lines[name] > strings.Count(text, "\n")+1 {
				t.Errorf("%q: %q is at line %d", text, name, file.lines[name])
			}
		}
	})
}
