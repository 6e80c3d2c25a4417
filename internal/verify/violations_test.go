package verify

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestTheDocsListWhatVerifyChecks(t *testing.T) {
	docs, err := os.ReadFile("../../docs/reliability.md")
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	for _, c := range checks {
		fmt.Fprintf(&table, "| `%s` | %s |\n", c.kind, c.means)
	}
	if want := "| kind | violation |\n| --- | --- |\n" + table.String() + "\n"; !strings.Contains(string(docs), want) {
		t.Errorf("docs/reliability.md lacks this table:\n%s", want)
	}
}
