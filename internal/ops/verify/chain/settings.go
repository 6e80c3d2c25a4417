package chain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go/jetstream"
)

// find determines the settings of each stage from its last run in the audit stream. A
// stage whose runs have expired gets the present configuration, as corrected by guess.
func (c *chain) find(ctx context.Context, cfg *config.Config) error {
	for i, name := range c.report.Chain {
		found, known, err := c.settingsOf(ctx, cfg, name)
		if err != nil {
			return err
		}
		if !known {
			if err := c.exists(ctx, found); err != nil {
				return err
			}
			c.report.note("stage %s: no run of it is in stream %s: its streams are taken to be those of the present settings, its input that of its claims and consumers", name, found.Audit.Stream)
			var before *config.Config
			if i > 0 {
				before = c.stages[i-1]
			}
			if err := c.guess(ctx, found, before); err != nil {
				return err
			}
		}
		c.stages = append(c.stages, found)
	}
	return nil
}

// exists returns an error if the place of a stage's results holds nothing of it either.
func (c *chain) exists(ctx context.Context, cfg *config.Config) error {
	m, err := streams.LastMessage(ctx, c.js.Conn(), cfg.Result.Stream, cfg.Result.Subject+"."+cfg.Name+".>")
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("look for results of stage %s in stream %s: %w", cfg.Name, cfg.Result.Stream, err)
	}
	if m != nil {
		return nil
	}
	return config.Invalid(fmt.Errorf("--chain: there is no stage named %s on this server: no audit stream has a run of it, and stream %s no result on %s",
		cfg.Name, cfg.Result.Stream, resultsOf(cfg, "*")))
}

// settingsOf returns the settings of the last run of a stage. It looks into the audit
// stream of the configuration first, then into the audit streams of other stages on the
// server, because a stage may have its own.
func (c *chain) settingsOf(ctx context.Context, cfg *config.Config, name string) (found *config.Config, known bool, err error) {
	found = ofStage(cfg, name)
	if known, err = c.lastRun(ctx, found); known || err != nil {
		return found, known, err
	}
	last := func(stream, prefix string, partition string, kind auditlog.Kind) (bool, error) {
		m, err := streams.LastMessage(ctx, c.js.Conn(), stream, prefix+"."+name+"."+partition+"."+string(kind))
		if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return false, fmt.Errorf("look for the audit of stage %s in stream %s: %w", name, stream, err)
		}
		return m != nil, nil
	}
	rows, err := last(found.Audit.Stream, found.Audit.Subject, "*", auditlog.KindRow)
	if err != nil {
		return nil, false, err
	}
	list := c.js.ListStreams(ctx)
	for info := range list.Info() {
		for _, subject := range info.Config.Subjects {
			prefix, all := strings.CutSuffix(subject, ".>")
			if !all || strings.ContainsAny(prefix, "*>") {
				continue
			}
			elsewhere := ofStage(cfg, name)
			elsewhere.Audit.Stream, elsewhere.Audit.Subject = info.Config.Name, prefix
			runs, err := last(info.Config.Name, prefix, auditlog.All.String(), auditlog.KindRun)
			if err != nil {
				return nil, false, err
			}
			if runs {
				if known, err = c.lastRun(ctx, elsewhere); known || err != nil {
					return elsewhere, known, err
				}
			}
			if !rows { // the start of its runs may have expired
				if rows, err = last(info.Config.Name, prefix, "*", auditlog.KindRow); err != nil {
					return nil, false, err
				}
				if rows {
					found = elsewhere
				}
			}
		}
	}
	if err := list.Err(); err != nil && !errors.Is(err, jetstream.ErrEndOfData) {
		c.report.note("stage %s: the streams could not be listed, so its audit was looked for in stream %s alone: %v", name, cfg.Audit.Stream, err)
	}
	return found, false, nil
}

func ofStage(cfg *config.Config, name string) *config.Config {
	c := *cfg
	c.Name = name
	return &c
}

// lastRun takes over the settings of the last run that the stage's audit stream names.
func (c *chain) lastRun(ctx context.Context, cfg *config.Config) (known bool, err error) {
	var settings map[string]string
	partitions := 0
	err = stored.ReadAudit(ctx, c.js, cfg, stored.ReadOptions{}, []auditlog.Kind{auditlog.KindRun}, func(_ []byte, e *auditlog.Event) error {
		if e != nil && e.Run != nil && e.Run.Phase == auditlog.PhaseStart && e.Run.Settings != nil {
			settings = e.Run.Settings
			if n, err := strconv.Atoi(settings["STAGE_PARTITIONS"]); err == nil {
				partitions = max(partitions, n)
			}
		}
		return nil
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return false, nil
	}
	if err != nil || settings == nil {
		return false, err
	}
	for variable, field := range map[string]*string{
		"STAGE_INPUT_STREAM": &cfg.Input.Stream, "STAGE_INPUT_SUBJECT": &cfg.Input.Subject,
		"STAGE_RESULT_STREAM": &cfg.Result.Stream, "STAGE_RESULT_SUBJECT": &cfg.Result.Subject, "STAGE_FOREACH": &cfg.Foreach.Field,
	} {
		if text, set := settings[variable]; set || variable == "STAGE_FOREACH" {
			*field = text
		}
	}
	if partitions > 0 {
		cfg.Streams.Partitions = partitions
	}
	for variable, field := range map[string]*int{
		"STAGE_WINDOW": &cfg.Window.Rows, "STAGE_LANE_OPEN": &cfg.Lane.Open, "STAGE_LANE_ROWS": &cfg.Lane.Rows,
	} {
		if n, err := strconv.Atoi(settings[variable]); err == nil {
			*field = n
		}
	}
	return true, nil
}

// resultsOf returns the subject of the results of a stage. partition may be a wildcard.
func resultsOf(cfg *config.Config, partition string) string {
	return cfg.Result.Subject + "." + cfg.Name + "." + partition + ".rows"
}

// link checks that the input of stage b is the results of stage a, and which partitions
// of a it reads.
func (c *chain) link(a, b *config.Config) (Link, error) {
	l := Link{From: a.Name, To: b.Name, Stream: b.Input.Stream, Subject: b.Input.Subject, Unread: []int{}}
	if b.Input.Stream != a.Result.Stream {
		return l, config.Invalid(fmt.Errorf("--chain: stage %s reads stream %s, and the results of stage %s are in stream %s: give the stages in the order in which rows flow",
			b.Name, b.Input.Stream, a.Name, a.Result.Stream))
	}
	for p := range a.Streams.Partitions {
		subject := resultsOf(a, strconv.Itoa(p))
		read := slices.ContainsFunc(partitionsOf(b), func(filter string) bool { return streams.Overlap(filter, subject) })
		if !read {
			l.Unread = append(l.Unread, p)
		}
	}
	if len(l.Unread) == a.Streams.Partitions {
		return l, config.Invalid(fmt.Errorf("--chain: stage %s reads %s of stream %s, and the results of stage %s are on %s: give the stages in the order in which rows flow",
			b.Name, b.Input.Subject, b.Input.Stream, a.Name, resultsOf(a, "*")))
	}
	for _, p := range l.Unread {
		c.report.cannot("link %s -> %s: stage %s does not read partition %d of stage %s (%s): nothing is made of its results", a.Name, b.Name, b.Name, p, a.Name, resultsOf(a, strconv.Itoa(p)))
	}
	return l, nil
}

// partitionsOf returns the filters of a stage's input.
func partitionsOf(cfg *config.Config) (filters []string) {
	for p := range cfg.Streams.Partitions {
		filters = append(filters, cfg.Input.PartitionSubject(p))
	}
	return filters
}
