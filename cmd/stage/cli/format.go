package cli

import (
	"github.com/llm-stage/stage/internal/rowfile"
	"github.com/spf13/cobra"
)

// addFormatFlags adds the flags that say how the rows lie in the input.
func addFormatFlags(cmd *cobra.Command, spec *rowfile.Spec) {
	cmd.Flags().StringVar(&spec.Format, "format", "", "format of the input: jsonl, csv, tsv or json (an array); default: by file name, else by the first lines")
	cmd.Flags().StringVar(&spec.Delimiter, "delimiter", "", "character between the columns of CSV, or tab; default: a comma, a tab in TSV")
	cmd.Flags().StringVar(&spec.CSVTypes, "csv-types", "string", "values of CSV: string keeps all as strings, auto makes numbers, true, false and, of empty ones, null")
	for flag, words := range map[string][]string{
		"format": {"jsonl", "csv", "tsv", "json"}, "delimiter": {"tab", ";", "|"}, "csv-types": {"auto", "string"},
	} {
		if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic("flag --" + flag + ": " + err.Error()) // the flag was added before
		}
	}
}
