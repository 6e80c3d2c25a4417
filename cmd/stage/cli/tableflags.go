package cli

import (
	"github.com/llm-stage/stage/internal/job"
	"github.com/llm-stage/stage/internal/rowfile"
	"github.com/spf13/cobra"
)

// tableFlags are the flags of process for results as CSV.
type tableFlags struct {
	cmd       *cobra.Command
	delimiter string
	mark      bool
	flatten   bool
}

// addTableFlags adds the flags for results as CSV.
func addTableFlags(cmd *cobra.Command) *tableFlags {
	t := &tableFlags{cmd: cmd}
	cmd.Flags().StringVar(&t.delimiter, "out-delimiter", "", "character between the columns of results as CSV, or tab; default: that of a CSV input (--delimiter), a comma, or a tab in .tsv")
	cmd.Flags().BoolVar(&t.mark, "bom", false, "begin results as CSV with the byte order mark by which Excel knows UTF-8; default: as a CSV input does")
	cmd.Flags().BoolVar(&t.flatten, "flatten", false, "give each member of the reply's object a column in results as CSV, such as llm_response.category, by STAGE_RESPONSE_SCHEMA_FILE")
	completeWords(cmd, "out-delimiter", "tab", ";", "|")
	return t
}

// set sets the options of a job of that input. Where the input has no columns, --delimiter is about the results.
func (t *tableFlags) set(o *job.Options, input string) (err error) {
	o.Table = job.TableOptions{Flatten: t.flatten}
	if t.cmd.Flags().Changed("bom") {
		o.Table.Mark = &t.mark
	}
	if o.Format.Delimiter != "" && job.IsTable(o.Out) && o.Format.IsJSON(input) {
		o.Table.Delimiter, err = rowfile.ParseDelimiter("--delimiter", o.Format.Delimiter)
		o.Format.Delimiter = ""
	}
	if t.delimiter != "" && err == nil {
		o.Table.Delimiter, err = rowfile.ParseDelimiter("--out-delimiter", t.delimiter)
	}
	return err
}
