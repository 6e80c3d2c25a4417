package throttle

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"math/big"
	"os"
	"regexp"
	"strings"
	"testing"
)

// lawFiles have the constants of the adaptive law. The search for a queue has its own.
var lawFiles = []string{"adaptive", "adaptive_estimate", "adaptive_hint", "adaptive_noise", "adaptive_probe", "adaptive_slots", "adaptive_sporadic"}

// The names and values in constants.md are those of the code, and their number is what constants.md and targets.md say.
func TestTheTableOfConstantsIsOfThisLaw(t *testing.T) {
	law, listed := map[string]string{}, map[string]string{} // values as fractions, such as 1/20
	for _, name := range lawFiles {
		addConstants(t, "../../aimd/"+name+".go", law)
	}
	delete(law, "none") // these two stand for instants that never come
	delete(law, "farSec")

	constants, targets := readPage(t, "constants.md"), readPage(t, "targets.md")
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([0-9./]+)").FindAllStringSubmatch(constants, -1) {
		listed[row[1]] = fraction(t, row[2])
	}
	for name, value := range law {
		if got := listed[name]; got != value {
			t.Errorf("constants.md has %q for %s, which is %s", got, name, value)
		}
	}
	for name := range listed {
		if _, ok := law[name]; !ok {
			t.Errorf("constants.md has %s, which the law has not", name)
		}
	}
	if say := fmt.Sprintf("has %d constants", len(law)); !strings.Contains(constants, say) {
		t.Errorf("constants.md does not say that the law %s", say)
	}
	if say := fmt.Sprintf("| 40 | %d |", len(law)); !strings.Contains(targets, say) {
		t.Errorf("targets.md does not say that the law has %d constants", len(law))
	}
}

// addConstants adds the untyped constants of a file.
func addConstants(t *testing.T, path string, to map[string]string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			spec := spec.(*ast.ValueSpec)
			if spec.Type != nil {
				continue
			}
			for i, value := range spec.Values {
				tv, err := types.Eval(token.NewFileSet(), nil, token.NoPos, types.ExprString(value))
				if err != nil {
					t.Fatalf("%s: %v", path, err)
				}
				to[spec.Names[i].Name] = fraction(t, tv.Value.ExactString())
			}
		}
	}
}

// fraction writes a number in lowest terms.
func fraction(t *testing.T, number string) string {
	t.Helper()
	r, ok := new(big.Rat).SetString(number)
	if !ok {
		t.Fatalf("%q is no number", number)
	}
	return r.RatString()
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
