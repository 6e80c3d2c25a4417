package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/test/chain"
	"github.com/nats-io/nats.go/jetstream"
)

// stageOf is a stage of a run.
type stageOf struct {
	name  string
	input string // stream
	rows  string // subjects of its rows in it
	token int    // of these subjects that is the partition, from 0
	vars  []string
}

// results are the subjects of its results, of all partitions; the partition is token 2.
func (s *stageOf) results() string { return "results." + s.name + ".*.rows" }

// stages are those of a run, in order of flow: one, or with -chain three.
func (p *plan) stages() (all []stageOf) {
	if !p.chain {
		subject := "rows.>"
		if p.partitions > 1 {
			subject = "rows." + streams.PartitionToken + ".>"
		}
		return []stageOf{{name: stageName, input: inputStream, rows: "rows.>", token: 1, vars: []string{
			"STAGE_INPUT_SUBJECT=" + subject, "STAGE_PARTITIONS=" + strconv.Itoa(p.partitions), "STAGE_ORDER=" + string(p.order), "STAGE_TEMPLATE=" + template,
		}}}
	}
	for i := range chain.Stages {
		st := stageOf{name: chain.Name(i), input: inputStream, rows: "rows.>", token: 1}
		if i > 0 {
			st.input, st.rows, st.token = resultStream, all[i-1].results(), 2
		}
		for name, value := range p.pipeline().Environ(i) {
			st.vars = append(st.vars, name+"="+value)
		}
		slices.Sort(st.vars)
		all = append(all, st)
	}
	return all
}

// pipeline is what the stages of a chain do.
func (p *plan) pipeline() chain.Pipeline {
	return chain.Pipeline{Seed: p.seed, Partitions: p.partitions, Keep: p.keepElements, ByKey: p.order == streams.OrderKey}
}

// most is how many replies the windows of a partition may hold, of all stages.
func (p *plan) most() int {
	if p.chain {
		return p.window * (chain.Stages - 1 + chain.MostElements)
	}
	return p.window
}

// place is a partition of a stage.
type place struct {
	*stageOf

	partition int
}

// places are all of them: those of a stage beside each other.
func (s *site) places() (all []place) {
	for i := range s.stages {
		for p := range s.plan.partitions {
			all = append(all, place{&s.stages[i], p})
		}
	}
	return all
}

// place draws one.
func (s *site) place(random *rand.Rand) place {
	all := s.places()
	if len(all) == 1 {
		return all[0]
	}
	return all[random.IntN(len(all))]
}

func (p place) durable() string { return streams.DurableName(p.name, p.partition) }

func (p place) log() string {
	return strings.TrimSuffix(streams.ResultSubject("results", p.name, p.partition), "rows") + ">"
}

// last is the stage at the end.
func (s *site) last() *stageOf { return &s.stages[len(s.stages)-1] }

// countAll is how many rows and results each place has; the rows were counted first.
func (s *site) countAll(ctx context.Context, within time.Duration) (rows, results []int, err error) {
	for i := range s.stages {
		st := &s.stages[i]
		in, err := s.counts(ctx, within, st.input, st.rows, st.token)
		if err != nil {
			return nil, nil, err
		}
		rows = append(rows, in...)
	}
	for i := range s.stages {
		out, err := s.counts(ctx, within, resultStream, s.stages[i].results(), 2)
		if err != nil {
			return nil, nil, err
		}
		results = append(results, out...)
	}
	return rows, results, nil
}

// prompts is how many different calls row n takes.
func (p *plan) prompts(n int) int {
	switch {
	case p.chain:
		return len(p.pipeline().Row(n).Prompts)
	case kindOf(n) != invalid && p.question(n) == n:
		return 1
	}
	return 0
}

// body is the body of row n.
func (p *plan) body(n int) []byte {
	if p.chain {
		return p.pipeline().Body(n)
	}
	return p.rowBody(n)
}

// checkChain reads the streams of a chain.
func (s *site) checkChain(ctx context.Context, published int) (rows, results int, err error) {
	sources := make(map[uint64]chain.Source)
	err = s.read(ctx, inputStream, "rows.>", func(m jetstream.Msg, seq uint64) {
		rows++
		src := chain.Source{N: rows, Partition: s.partitionOf(m.Subject(), 1), Origin: seq, Body: s.plan.body(rows)}
		if s.plan.order == streams.OrderKey {
			src.Key = m.Subject()
		}
		sources[seq] = src
	})
	if rows != published {
		s.notes.violate("input", "%d rows in the input, %d published", rows, published)
	}
	for i := range s.stages {
		if err != nil {
			return rows, results, err
		}
		c := chain.NewChecker(s.plan.pipeline(), i, sources, s.notes.violate)
		err = s.read(ctx, resultStream, s.stages[i].results(), func(m jetstream.Msg, seq uint64) {
			c.Result(seq, s.partitionOf(m.Subject(), 2), m.Headers(), m.Data())
		})
		c.End()
		sources, results = c.Results, len(c.Results)
	}
	_, _, wrong := s.model.chain.Paid()
	for _, w := range wrong {
		s.notes.violate("prompt", "%s", w)
	}
	return rows, results, err
}

// verify has the stages prove the same from the streams.
func (s *site) verify(ctx context.Context) error {
	_, url, err := s.servers.fronts(ctx)
	if err != nil {
		return err
	}
	for i := range s.stages {
		err = errors.Join(err, s.prove(ctx, s.environ(url, &s.stages[i]), "verify"))
	}
	if s.plan.chain {
		err = errors.Join(err, s.prove(ctx, s.environ(url, &s.stages[0]), "verify", "--chain", chain.Names()))
	}
	return err
}

// prove runs a command of the stage that ends with 0 if all is well.
func (s *site) prove(ctx context.Context, environ []string, args ...string) error {
	p, err := s.ps.start("verify", s.dir, environ, s.stage, args...)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if code := p.exitCode(); code != 0 {
		s.notes.violate("verify", "stage %s ended with %d: see %s", strings.Join(args, " "), code, p.log)
	}
	return nil
}

// describe is what a report says of a chain, or of texts to embed.
func (p *plan) describe() string {
	switch {
	case p.embed:
		return fmt.Sprintf(", %d texts to embed in a call", embedRows)
	case !p.chain:
		return ""
	}
	errorsOf := "row"
	if p.keepElements {
		errorsOf = "keep"
	}
	return fmt.Sprintf(", a chain of %d with STAGE_FOREACH_ERRORS=%s", chain.Stages, errorsOf)
}
