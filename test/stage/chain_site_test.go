package stage_test

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/verify"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/chain"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	simPatience   = 12 * time.Hour // of the simulations of chains and of the batch lane
	chainPool     = 4
	chainSubjects = 13
)

// chainSite is a NATS server, an LLM, and the processes of three stages in a row, all in one bubble.
type chainSite struct {
	t         *testing.T
	pipeline  chain.Pipeline
	vars      map[string]string // of all stages
	broker    *stagetest.Broker
	nc        *nats.Conn
	js        jetstream.JetStream
	llm       *llmtest.Server
	counter   *chain.Counter
	logs      *stagetest.Buffer
	trap      chainTrap
	began     time.Time
	processes []*worker
	starts    int
	rows      int
}

// newChainSite starts the servers. It must be called inside the bubble.
func newChainSite(t *testing.T, p chain.Pipeline, behaviour llmtest.Config) *chainSite {
	t.Helper()
	s := &chainSite{t: t, pipeline: p, began: time.Now(), logs: &stagetest.Buffer{Shown: *simLog}, counter: chain.NewCounter(p, 5*time.Second)}
	s.vars = map[string]string{
		"STAGE_LLM_PROVIDER": "openai", "STAGE_LLM_BASE_URL": "http://llm.test/v1", "STAGE_LLM_API_KEY": "sk-of-the-chain", "STAGE_LLM_MODEL": "small",
		"STAGE_POOL_SIZE": strconv.Itoa(chainPool), "STAGE_WINDOW": "64", "STAGE_JOURNAL_AFTER": "0s", "STAGE_RETRY_BASE_DELAY": "200ms",
		"STAGE_LLM_TIMEOUT": "30s", "STAGE_AUDIT_MAX_AGE": "0",
	}
	s.broker = stagetest.NewBroker(t)
	s.nc = s.broker.Connect(s.broker)
	var err error
	if s.js, err = jetstream.New(s.nc); err != nil {
		t.Fatal(err)
	}
	if behaviour.Script == nil {
		behaviour.Script = s.counter.Script
	}
	if s.llm, err = llmtest.New(behaviour); err != nil {
		t.Fatal(err)
	}
	for name, subject := range map[string]string{"ROWS": "rows.>", "RESULTS": "results.>"} {
		cfg := jetstream.StreamConfig{Name: name, Subjects: []string{subject}, AllowDirect: true}
		if name == "ROWS" && p.Partitions > 1 {
			cfg.SubjectTransform = &jetstream.SubjectTransformConfig{
				Source: "rows.*", Destination: fmt.Sprintf("rows.{{partition(%d,1)}}.{{wildcard(1)}}", p.Partitions),
			}
		}
		stagetest.Value(s.js.CreateStream(t.Context(), cfg))(t)
	}
	return s
}

// load publishes rows.
func (s *chainSite) load(count int) {
	s.t.Helper()
	for range count {
		s.rows++
		if _, err := s.js.Publish(s.t.Context(), "rows.k"+strconv.Itoa(s.rows%chainSubjects), s.pipeline.Body(s.rows), jetstream.WithRetryAttempts(20)); err != nil {
			s.t.Fatal(err)
		}
	}
}

// stored is how many results a stage has; the server may be away.
func (s *chainSite) stored(stage int) int {
	s.t.Helper()
	return stagetest.Stored(s.t, s.js, "RESULTS", "results."+chain.Name(stage)+".*.rows")
}

// until waits in virtual time until a condition holds.
func (s *chainSite) until(what string, is func() bool) {
	s.t.Helper()
	for began := time.Now(); time.Since(began) < simPatience; time.Sleep(max(50*time.Millisecond, time.Since(began)/50)) {
		if is() {
			return
		}
		s.supervise(what)
	}
	lines := strings.Split(s.logs.String(), "\n")
	s.t.Log(strings.Join(lines[max(0, len(lines)-60):], "\n"))
	s.t.Fatalf("%s: not within %v", what, simPatience)
}

// supervise starts processes again that have ended by themselves. They may only at their start, and because the server
// did not answer.
func (s *chainSite) supervise(when string) {
	s.t.Helper()
	for _, p := range s.processes {
		if !p.Over() || p.Wire.Dead() || p.Err == nil {
			continue
		}
		if p.begun.Add(time.Minute).Before(time.Now()) || !strings.Contains(p.Err.Error(), "no answer: ") {
			s.t.Fatalf("%s: a process of %s has ended: %v", when, chain.Name(p.stage), p.Err)
		}
		s.t.Logf("%v a process of %s is started again: %v", time.Since(s.began), chain.Name(p.stage), p.Err)
		s.alive(p.stage) // forgets it
		s.start(p.stage)
		return
	}
}

// stop stops all processes.
func (s *chainSite) stop() {
	s.t.Helper()
	for stage := range chain.Stages {
		for _, p := range s.alive(stage) {
			s.stopOne(p)
		}
	}
}

// check checks, once all have stopped, every result of every stage, and has verify prove the same.
func (s *chainSite) check() {
	s.t.Helper()
	found := make(map[string]int)
	violate := func(what, format string, args ...any) {
		if found[what]++; found[what] <= 3 {
			s.t.Errorf("%s: %s", strings.ToUpper(what), fmt.Sprintf(format, args...))
		}
	}
	sources := make(map[uint64]chain.Source)
	for i, m := range stagetest.Read(s.t, s.js, "ROWS", "rows.>") {
		src := chain.Source{N: i + 1, Partition: s.partition(m.Subject, 1), Origin: m.Seq, Body: m.Body}
		if s.pipeline.ByKey {
			src.Key = m.Subject
		}
		sources[m.Seq] = src
	}
	for stage := range chain.Stages {
		c := chain.NewChecker(s.pipeline, stage, sources, violate)
		for _, m := range stagetest.Read(s.t, s.js, "RESULTS", "results."+chain.Name(stage)+".*.rows") {
			c.Result(m.Seq, s.partition(m.Subject, 2), m.Header, m.Body)
		}
		c.End()
		sources = c.Results
		s.verify(stage)
	}
	if _, _, wrong := s.counter.Paid(); len(wrong) > 0 {
		s.t.Errorf("prompts that no row has: %q", wrong)
	}
	for what, n := range found {
		s.t.Errorf("%s: %d in all", what, n)
	}
}

// verify has a stage proved from the streams alone.
func (s *chainSite) verify(stage int) {
	s.t.Helper()
	report := stagetest.Value(verify.Run(s.t.Context(), s.js, s.config(stage), io.Discard))(s.t)
	if err := report.Err(); err != nil {
		var text strings.Builder
		report.WriteText(&text)
		s.t.Errorf("stage verify of %s: %v\n%s", chain.Name(stage), err, text.String())
	}
}

// partition reads it from a token of a subject.
func (s *chainSite) partition(subject string, token int) int {
	if s.pipeline.Partitions <= 1 {
		return 0
	}
	p, err := strconv.Atoi(strings.Split(subject, ".")[token])
	if err != nil {
		s.t.Fatalf("subject %s: %v", subject, err)
	}
	return p
}
