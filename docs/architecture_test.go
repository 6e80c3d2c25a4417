package docs_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Each package is on the map of packages, and its comment begins so that go list prints a sentence about it.
func TestTheMapOfPackagesIsTrue(t *testing.T) {
	text := read(t, "../ARCHITECTURE.md")
	for _, dir := range packages(t) {
		if strings.HasPrefix(dir, "llm/template/internal/") { // part of the template engine
			continue
		}
		if !strings.HasPrefix(synopsis(t, dir), "Package "+filepath.Base(dir)+" ") {
			t.Errorf("%s: its comment does not begin with %q", dir, "Package "+filepath.Base(dir))
		}
		if !strings.Contains(text, "`"+dir+"`") {
			t.Errorf("ARCHITECTURE.md does not name %s", dir)
		}
	}
}

// Every file, directory and test that ARCHITECTURE.md, CONTRIBUTING.md and the records of decisions name is there.
func TestArchitectureNamesWhatIsThere(t *testing.T) {
	tests := testsOf(t)
	pages, _ := filepath.Glob("decisions/*.md")
	text := read(t, "../ARCHITECTURE.md") + read(t, "../CONTRIBUTING.md")
	for _, page := range pages {
		text += read(t, page)
	}
	for _, quoted := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(text, -1) {
		name := quoted[1]
		if dir, test, ok := strings.Cut(name, ": "); ok && strings.HasPrefix(test, "Test") {
			name = dir
			if !tests[dir][test] {
				t.Errorf("%s has no test %s", dir, test)
			}
		}
		if top, _, _ := strings.Cut(name, "/"); !slices.Contains([]string{"aimd", "auditlog", "cmd", "consumer", "deploy", "docs", "internal", "llm", "pool", "sequencer", "test", "tools"}, top) || strings.ContainsAny(name, "( ") {
			continue
		}
		if _, err := os.Stat(filepath.Join("..", name)); err != nil {
			t.Errorf("%v", err)
		}
	}
}

// Each function on the way of a row, and of a hand-over, is where the table says.
func TestTheWayOfARowIsTrue(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "../ARCHITECTURE.md"), "### The way of a row")
	table, _, _ = strings.Cut(table, "### Modules")
	code := regexp.MustCompile("`([^`]+)`")
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		if len(cells) < 3 || len(cells) > 4 || !strings.Contains(cells[1], "`") { // the way of a row has the kinds, too
			continue
		}
		rows++
		declared := map[string]bool{}
		for _, place := range code.FindAllStringSubmatch(cells[2], -1) {
			files := []string{filepath.Join("..", place[1])}
			if !strings.HasSuffix(place[1], ".go") {
				files, _ = filepath.Glob(filepath.Join("..", place[1], "*.go"))
			}
			for _, file := range files {
				for _, decl := range parse(t, file, 0).Decls {
					if f, ok := decl.(*ast.FuncDecl); ok {
						declared[f.Name.Name] = true
					}
				}
			}
		}
		for _, function := range code.FindAllStringSubmatch(cells[1], -1) {
			if !declared[function[1]] {
				t.Errorf("%s is not in %s", function[1], cells[2])
			}
		}
	}
	if rows < 15 {
		t.Errorf("the tables have %d steps", rows)
	}
}

// packages are the directories of the module's packages but for main and those of tests, examples and documents.
func packages(t *testing.T) (dirs []string) {
	t.Helper()
	for _, top := range []string{"aimd", "auditlog", "cmd/stage/cli", "consumer", "internal", "llm", "pool", "sequencer"} {
		err := filepath.WalkDir(filepath.Join("..", top), func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return err
			}
			if files, _ := filepath.Glob(path + "/*.go"); len(files) > 0 {
				dirs = append(dirs, filepath.ToSlash(strings.TrimPrefix(path, "../")))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return dirs
}

// synopsis is the first sentence of a package's comment.
func synopsis(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if f := parse(t, file, parser.PackageClauseOnly|parser.ParseComments); f.Doc != nil && !strings.HasSuffix(file, "_test.go") {
			return new(doc.Package).Synopsis(f.Doc.Text())
		}
	}
	return ""
}

// testsOf are the names of all tests by directory.
func testsOf(t *testing.T) map[string]map[string]bool {
	t.Helper()
	tests := map[string]map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		dir := filepath.ToSlash(strings.TrimPrefix(filepath.Dir(path), "../"))
		if tests[dir] == nil {
			tests[dir] = map[string]bool{}
		}
		for _, decl := range parse(t, path, 0).Decls {
			if f, ok := decl.(*ast.FuncDecl); ok {
				tests[dir][f.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tests
}

func parse(t *testing.T, file string, mode parser.Mode) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, mode)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
