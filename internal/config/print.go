package config

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Settings returns the configuration by variable, as text, with every secret replaced by whether it is set. Variables
// without a value are left out.
func (c *Config) Settings() map[string]string {
	settings := make(map[string]string)
	for i := range Fields() {
		f := &Fields()[i]
		if text := f.text(c); text != "" {
			settings[f.Variable] = text
		}
	}
	return settings
}

// WriteConfig prints the effective configuration, one variable a line with where it came from.
func WriteConfig(w io.Writer, c *Config) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "VARIABLE\tVALUE\tFROM") //nolint:errcheck // Flush returns it
	for i := range Fields() {
		f := &Fields()[i]
		text := f.text(c)
		if quoted := strconv.Quote(text); text == "" || quoted != `"`+text+`"` {
			text = quoted
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", f.Variable, text, c.origins[f.Variable]) //nolint:errcheck // as above
	}
	return table.Flush()
}

// WriteMarkdown prints the table of all variables that the README holds. The variables of providers, which are alike,
// take one line each.
func WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString("| variable | default | meaning |\n| --- | --- | --- |\n")
	written := make(map[string]bool)
	for _, f := range Fields() {
		variable, help := documentedName(&f), markdownCell(f.Help)
		if written[variable] {
			continue
		}
		written[variable] = true
		if f.Secret {
			help += "; secret: `" + variable + FileSuffix + "` gives the path of a file instead"
		}
		fallback := "empty"
		switch {
		case f.Fallback != "":
			fallback = "`" + f.Fallback + "`"
		case f.leaf.Tag.Get("env") != strings.TrimSuffix(f.leaf.Tag.Get("env"), "noinit"):
			fallback = "unset"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", variable, fallback, help)
	}
	b.WriteString("| `OTEL_*` | unset | the usual OpenTelemetry variables switch tracing on: see docs/tracing.md |\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// documentedName is the variable, with <PROVIDER> for the name of the provider where each has the same variable.
func documentedName(f *Field) string {
	if f.Group != groupProviders {
		return f.Variable
	}
	for _, name := range []string{"BASE_URL", "API_KEY"} {
		if strings.HasSuffix(f.Variable, "_"+name) {
			return VariablePrefix + "LLM_<PROVIDER>_" + name
		}
	}
	return f.Variable
}

// groupProviders is the heading of the variables that each provider has.
const groupProviders = "Providers of fallbacks"

// markdownCell escapes what a table or HTML would take as its own.
func markdownCell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", `\<`).Replace(text)
}
