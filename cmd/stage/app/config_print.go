package app

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
	for i := range configFields() {
		f := &configFields()[i]
		if text := f.text(c); text != "" {
			settings[f.variable] = text
		}
	}
	return settings
}

// writeConfig prints the effective configuration, one variable a line with where it came from.
func writeConfig(w io.Writer, c *Config) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "VARIABLE\tVALUE\tFROM") //nolint:errcheck // Flush returns it
	for i := range configFields() {
		f := &configFields()[i]
		text := f.text(c)
		if quoted := strconv.Quote(text); text == "" || quoted != `"`+text+`"` {
			text = quoted
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", f.variable, text, c.origins[f.variable]) //nolint:errcheck // as above
	}
	return table.Flush()
}

// writeMarkdown prints the table of all variables that the README holds. The variables of providers, which are alike,
// take one line each.
func writeMarkdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString("| variable | default | meaning |\n| --- | --- | --- |\n")
	written := make(map[string]bool)
	for _, f := range configFields() {
		variable, help := documentedName(&f), markdownCell(f.help)
		if written[variable] {
			continue
		}
		written[variable] = true
		if f.secret {
			help += "; secret: `" + variable + fileSuffix + "` gives the path of a file instead"
		}
		fallback := "empty"
		switch {
		case f.fallback != "":
			fallback = "`" + f.fallback + "`"
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
func documentedName(f *field) string {
	if f.group != groupProviders {
		return f.variable
	}
	for _, name := range []string{"BASE_URL", "API_KEY"} {
		if strings.HasSuffix(f.variable, "_"+name) {
			return variablePrefix + "LLM_<PROVIDER>_" + name
		}
	}
	return f.variable
}

// groupProviders is the heading of the variables that each provider has.
const groupProviders = "Providers of fallbacks"

// markdownCell escapes what a table or HTML would take as its own.
func markdownCell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", `\<`).Replace(text)
}
