package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/llm-stage/stage/llm"
)

const (
	// dryRunPrompts is how many prompts a dry run shows.
	dryRunPrompts = 3
	// bytesPerToken is the rule of thumb for English text; a dry run says roughly.
	bytesPerToken = 4
)

// dryRun renders the prompt of each row and shows the first ones. It calls nobody and stores nothing.
func dryRun(ctx context.Context, env *Env, cfg *Config, input string, o processOptions) error {
	in, err := openSource(env, input, o.format)
	if err != nil {
		return err
	}
	defer in.file.Close() //nolint:errcheck // read only
	p, err := loadPrompt(cfg)
	if err != nil {
		return exitWith(exitUsage, err)
	}
	rows := NewRowReader(in.file, in.format, processPayloadBytes-messageOverhead)
	var read, bad, bytes int64
	for ctx.Err() == nil && (o.limit == 0 || read < o.limit) {
		row, err := rows.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return exitWith(exitUsage, fmt.Errorf("%s: %w", input, err))
		}
		read++
		prompt, err := renderRow(p, row)
		if err != nil {
			bad++
			say(env.Stderr, "line %d: %v", row.Line, err)
			continue
		}
		bytes += int64(len(prompt) + len(p.base.System))
		if read-bad <= dryRunPrompts {
			say(env.Stdout, "--- line %d\n%s", row.Line, strings.TrimRight(prompt, "\n"))
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	say(env.Stdout, "---\n%d rows, %d of them would fail before any call, about %d prompt tokens; nothing was called or stored", read, bad, bytes/bytesPerToken)
	return nil
}

// renderRow renders one row of a file.
func renderRow(p *prompt, row InputRow) (string, error) {
	if row.Fault != nil {
		return "", errors.New(row.Fault.Problem)
	}
	parsed, err := llm.ParseRow(row.Body)
	if err != nil {
		return "", err
	}
	r, _, err := p.request(parsed)
	return r.Prompt, err
}
