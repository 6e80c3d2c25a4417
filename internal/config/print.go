package config

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Settings returns the configuration by variable, as text, with every secret replaced by
// whether it is set. Variables without a value are omitted.
func (c *Config) Settings() map[string]string {
	settings := make(map[string]string)
	for _, f := range Fields() {
		if text := f.text(c); text != "" {
			settings[f.Variable] = text
		}
	}
	return settings
}

// given reports whether the variable was set, rather than left at its default.
func (c *Config) given(f *Field) bool {
	from := c.from.origins[f.Variable]
	return from != fromDefault && from != ""
}

// Deprecated returns the deprecated variables that were set.
func (c *Config) Deprecated() (set []*Field) {
	for _, f := range Fields() {
		if f.Deprecated != "" && c.given(f) {
			set = append(set, f)
		}
	}
	return set
}

// WriteConfig prints the effective configuration, one variable per line with the origin
// of its value:
//
//	VARIABLE         VALUE  FROM
//	STAGE_NAME       stage  default
//	STAGE_POOL_SIZE  32     flag
//
// A deprecated variable has a line only where it was set.
func WriteConfig(w io.Writer, c *Config) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "VARIABLE\tVALUE\tFROM") //nolint:errcheck // Flush returns it
	for _, f := range Fields() {
		if f.Deprecated != "" && !c.given(f) {
			continue
		}
		text := f.text(c)
		if quoted := strconv.Quote(text); text == "" || quoted != `"`+text+`"` {
			text = quoted
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", f.Variable, text, c.from.origins[f.Variable]) //nolint:errcheck // as above
	}
	return table.Flush()
}

// WriteMarkdown prints the table of docs/settings.md, without deprecated variables.
// Variables that every provider has take one line each.
func WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString("| variable | default | meaning |\n| --- | --- | --- |\n")
	written := make(map[string]bool)
	for _, f := range Fields() {
		variable, help := cmp.Or(f.generic, f.Variable), markdownCell(f.Help)
		if written[variable] || f.Deprecated != "" {
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
		case strings.HasSuffix(f.leaf.Tag.Get("env"), "noinit"):
			fallback = "unset"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", variable, fallback, help)
	}
	b.WriteString("| `OTEL_*` | unset | the usual OpenTelemetry variables switch tracing and the " +
		"export of metrics on: see docs/tracing.md |\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// markdownCell escapes the characters that have a meaning in tables or HTML.
func markdownCell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", `\<`).Replace(text)
}
