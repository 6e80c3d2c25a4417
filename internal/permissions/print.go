package permissions

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/internal/terminal"
)

// WriteConf prints the block that nats-server's configuration has for a user, with the
// reason of each group of subjects.
func (s Set) WriteConf(w io.Writer) error {
	var b strings.Builder
	b.WriteString("permissions {\n")
	s.write(&b, "  ")
	b.WriteString("}\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteJSON prints the same without reasons, for tools.
func (s Set) WriteJSON(w io.Writer) error {
	type responses struct {
		Max     int    `json:"max"`
		Expires string `json:"expires"`
	}
	out := struct {
		Publish   []string   `json:"publish"`
		Subscribe []string   `json:"subscribe"`
		Responses *responses `json:"allow_responses,omitempty"`
	}{s.Publish(), s.Subscribe(), nil}
	if s.Responses > 0 {
		out.Responses = &responses{1, shortest(s.Responses)}
	}
	return terminal.WriteJSON(w, out)
}

// write prints the lists, as they are between the braces of permissions. Reasons tell
// several groups apart.
func (s Set) write(b *strings.Builder, indent string) {
	s.writeList(b, indent, "publish", func(g group) []string { return g.publish })
	s.writeList(b, indent, "subscribe", func(g group) []string { return g.subscribe })
	if s.Responses > 0 {
		fmt.Fprintf(b, "%sallow_responses: { max: 1, expires: %q }\n", indent, shortest(s.Responses))
	}
}

func (s Set) writeList(b *strings.Builder, indent, name string, of func(group) []string) {
	if !slices.ContainsFunc(s.groups, func(g group) bool { return len(of(g)) > 0 }) {
		return
	}
	fmt.Fprintf(b, "%s%s: [\n", indent, name)
	for _, g := range s.groups {
		if len(of(g)) > 0 {
			fmt.Fprintf(b, "%s  # %s\n", indent, g.why)
		}
		for _, subject := range of(g) {
			fmt.Fprintf(b, "%s  %s\n", indent, quote(subject))
		}
	}
	fmt.Fprintf(b, "%s]\n", indent)
}

// quote spells a subject as a string of nats-server's configuration.
func quote(subject string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(subject) + `"`
}

// shortest is 1h for 1h0m0s.
func shortest(d time.Duration) string {
	text := strings.TrimSuffix(d.String(), "0s")
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
