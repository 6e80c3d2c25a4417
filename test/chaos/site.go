package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer/streams"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Names as the stage has them by default.
const (
	inputStream   = "ROWS"
	resultStream  = "RESULTS"
	auditStream   = "AUDIT"
	journalStream = "JOURNAL"
	stageName     = "stage"
	pinGroup      = "stage"
)

// subjects is how many subjects rows are published on where there are partitions and the
// order is that of the stream.
const subjects = 97

// rowSubject is where row n is published. In the other orders the subject is the key, too.
func (s *site) rowSubject(n int) string {
	switch {
	case s.plan.order != streams.OrderStream && n%4 == 0:
		return "rows.k0"
	case s.plan.order != streams.OrderStream:
		return fmt.Sprintf("rows.k%d", n%s.plan.keys)
	case s.plan.partitions > 1:
		return fmt.Sprintf("rows.k%d", n%subjects)
	}
	return "rows.a"
}

// site is all that a run consists of.
type site struct {
	plan     *plan
	notes    *notes
	dir      string
	stage    string // path of the program
	stages   []stageOf
	ps       *processes
	servers  *servers
	replicas []*replica // those of a stage beside each other
	model    *model
	watched  *progress
	nc, sys  *nats.Conn // through proxies that are never cut
	js       jetstream.JetStream
	began    time.Time
	stalled  chan struct{} // closed when no more rows come because the stage does not work
	filling  sync.Mutex
	darkness sync.Mutex              // held while the LLM is out, or must not be
	running  sync.WaitGroup          // the replicas
	fail     context.CancelCauseFunc // ends the run

	mu         sync.Mutex
	outages    int        // under way
	lastOutage time.Time  // when the last one ended
	allowance  int        // calls that may be made again
	turnable   int        // calls that outages of the LLM may meet
	lanes      *laneCount // once checked
}

const natsModule = "github.com/nats-io/nats-server/v2"

// build builds the programs.
func (s *site) build(ctx context.Context) (natsPath string, err error) {
	natsPath, s.stage = filepath.Join(s.dir, "nats-server"), filepath.Join(s.dir, "stage")
	server := exec.CommandContext(ctx, "go", "build", "-o", natsPath, natsModule)
	if s.plan.version != "" { // as a separate module: this one is not changed
		server = exec.CommandContext(ctx, "go", "install", natsModule+"@"+s.plan.version)
		server.Env = append(os.Environ(), "GOBIN="+s.dir)
	}
	race := "-race=" + strconv.FormatBool(s.plan.race)
	for _, build := range []*exec.Cmd{server, exec.CommandContext(ctx, "go", "build", race, "-o", s.stage, "github.com/llm-stage/stage/cmd/stage")} {
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w\n%s", strings.Join(build.Args, " "), err, out)
		}
	}
	return natsPath, nil
}

// open starts everything but the replicas.
func (s *site) open(ctx context.Context) error {
	natsPath, err := s.build(ctx)
	if err != nil {
		return err
	}
	if s.model, err = startModel(s.plan); err != nil {
		return err
	}
	if s.servers, err = newServers(ctx, s.ps, natsPath, s.dir, s.plan.servers, s.plan.counts[disk] > 0); err != nil {
		return err
	}
	_, url, err := s.servers.fronts(ctx)
	if err != nil {
		return err
	}
	options := []nats.Option{
		nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond), nats.PingInterval(time.Second), nats.IgnoreAuthErrorAbort(),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	} // the default prints errors that are meant to happen
	if s.nc, err = nats.Connect(url, options...); err != nil {
		return err
	}
	if s.sys, err = nats.Connect(url, append(options, nats.UserInfo("sys", "sys"))...); err != nil {
		return err
	}
	if s.js, err = jetstream.New(s.nc); err != nil {
		return err
	}
	if err := s.createInput(ctx); err != nil {
		return err
	}
	for i := range s.plan.replicas * len(s.stages) {
		r, err := s.newReplica(ctx, i)
		if err != nil {
			return err
		}
		s.replicas = append(s.replicas, r)
	}
	return nil
}

// createInput waits for the servers to elect their leader.
func (s *site) createInput(ctx context.Context) error {
	cfg := jetstream.StreamConfig{
		Name: inputStream, Subjects: []string{"rows.>", "noise.>"}, Replicas: s.plan.servers,
		AllowDirect: true, Discard: jetstream.DiscardNew, Duplicates: time.Hour,
	}
	if s.plan.partitions > 1 {
		cfg.SubjectTransform = &jetstream.SubjectTransformConfig{
			Source: "rows.*", Destination: fmt.Sprintf("rows.{{partition(%d,1)}}.{{wildcard(1)}}", s.plan.partitions),
		}
	}
	var err error
	waitFor(ctx, time.Minute, tryAgain, func() bool {
		within, cancel := context.WithTimeout(ctx, apiTimeout)
		defer cancel()
		if _, err = s.js.CreateStream(within, cfg); err == nil && s.plan.chain { // the input of two stages
			_, err = s.js.CreateStream(within, jetstream.StreamConfig{Name: resultStream, Subjects: []string{"results.>"}, Replicas: s.plan.servers, AllowDirect: true})
		}
		return err == nil
	})
	return err
}

func (s *site) newReplica(ctx context.Context, n int) (*replica, error) {
	proxies, url, err := s.servers.fronts(ctx)
	if err != nil {
		return nil, err
	}
	return &replica{
		n: n, ps: s.ps, path: s.stage, notes: s.notes, proxies: proxies, dir: filepath.Join(s.dir, fmt.Sprintf("stage%d", n)),
		environ: append(slices.Concat(s.environ(url, &s.stages[n/s.plan.replicas]), s.plan.throttle(), s.llmEnviron()), "STAGE_LLM_MODEL=m",
			"STAGE_POOL_SIZE="+strconv.Itoa(s.plan.pool), "STAGE_WINDOW="+strconv.Itoa(s.plan.window),
			"STAGE_STREAM_REPLICAS="+strconv.Itoa(s.plan.servers), "STAGE_AUDIT_PAYLOADS=hash",
			"STAGE_DEDUPE="+s.plan.dedupe,
			"STAGE_RETRY_BASE_DELAY=100ms", "STAGE_LLM_TIMEOUT="+callTimeout.String(), "STAGE_STOP_TIMEOUT=25s", "STAGE_HTTP_ADDR=127.0.0.1:0",
			"STAGE_LOG_FORMAT=json", "GORACE=halt_on_error=1"),
	}, nil
}

// environ is what every command of a stage needs to know.
func (s *site) environ(url string, of *stageOf) []string {
	return slices.Concat(s.plan.laneEnviron(), s.plan.embedEnviron(), of.vars, []string{"STAGE_NATS_URL=" + url})
}

// close ends all that was started.
func (s *site) close() {
	if s.nc != nil {
		s.nc.Close()
	}
	if s.sys != nil {
		s.sys.Close()
	}
	s.ps.close()
	s.running.Wait()
	if s.servers != nil {
		s.servers.close()
	}
	if s.model != nil {
		s.model.close()
	}
}

// progress goes from 0 to 1; more is closed when there may be more.
func (s *site) progress() (at float64, more <-chan struct{}) {
	n, moved := s.model.rows()
	if s.plan.rows > 0 {
		return float64(n) / float64(s.plan.asked), moved
	}
	return float64(time.Since(s.began)) / float64(s.plan.duration), nil
}

// backlog is how many rows are published and not asked for yet, and droughtEvery after
// how many rows the publisher lets the stage run dry.
const (
	backlogMost  = 600
	droughtEvery = 2500
	droughtMost  = 3 * time.Second
)

// publish publishes rows until there are enough, and returns how many. Messages between
// them that the stage must not see leave gaps in the sequence.
func (s *site) publish(ctx context.Context) (n int, err error) {
	random := rand.New(rand.NewPCG(s.plan.seed, 3))
	asked := 0 // rows that will be
	for {
		at, _ := s.progress()
		switch { // no outage of the LLM meets the last rows: one that is alone in a process may fail of it
		case s.plan.rows > 0 && n >= s.plan.rows:
			s.darkness.Lock()
			return n, nil
		case s.plan.rows == 0 && at >= 1 && s.darkness.TryLock():
			return n, nil
		}
		n++
		asked += s.plan.prompts(n)
		if random.IntN(13) == 0 {
			err = s.store(ctx, "noise.x", "noise-"+strconv.Itoa(n), nil, nil)
		}
		if err == nil {
			err = s.store(ctx, s.rowSubject(n), "row-"+strconv.Itoa(n), s.plan.body(n), s.plan.headers(n))
		}
		if err != nil {
			return n, err
		}
		most := backlogMost
		if dry := random.IntN(droughtEvery) == 0; dry && s.darkness.TryLock() {
			most = 0
		}
		if err := s.worked(ctx, asked-most); errors.Is(err, errStalled) {
			return n, nil // finish checks what became of the rows
		} else if err != nil {
			return n, err
		}
		if most == 0 {
			pause(ctx, between(random, 0, droughtMost))
			s.darkness.Unlock()
		}
	}
}

// errStalled means that the stage has stopped calling the LLM for new rows.
var errStalled = errors.New("stalled")

// worked waits until so many rows have been asked.
func (s *site) worked(ctx context.Context, rows int) error {
	for {
		n, more := s.model.rows()
		if n >= rows {
			return nil
		}
		select {
		case <-more:
		case <-time.After(stalledAfter + s.plan.stand()):
			s.notes.violate("stalled", "the LLM was called for %d rows of %d, and for no other one within %v", n, rows, stalledAfter)
			close(s.stalled)
			return errStalled
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// store publishes one message until it is stored; its id keeps it from being stored twice.
func (s *site) store(ctx context.Context, subject, id string, body []byte, header nats.Header) error {
	for {
		within, cancel := context.WithTimeout(ctx, apiTimeout)
		_, err := s.js.PublishMsg(within, &nats.Msg{Subject: subject, Data: body, Header: maps.Clone(header)}, jetstream.WithMsgID(id))
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		pause(ctx, tryAgain)
	}
}

// lastOwner is the term that appended last to the results of a place.
func (s *site) lastOwner(ctx context.Context, at place) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	m, err := s.nc.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+resultStream, fmt.Appendf(nil, `{"last_by_subj":%q}`, at.log()))
	if err != nil {
		return "", err
	}
	var found struct {
		Message struct {
			Headers []byte `json:"hdrs"`
		} `json:"message"`
	}
	if err := errors.Join(apiError(m.Data), json.Unmarshal(m.Data, &found)); err != nil {
		return "", err
	}
	header, err := nats.DecodeHeadersMsg(found.Message.Headers)
	return header.Get(streams.HeaderOwner), err
}

// owner returns the replica whose process runs that term; nil means that none does.
func (s *site) owner(ctx context.Context, at place) (*replica, string) {
	owner, err := s.lastOwner(ctx, at)
	if err != nil {
		return nil, ""
	}
	for _, r := range s.replicas {
		if r.owns(owner) {
			return r, owner
		}
	}
	return nil, ""
}

func apiError(answer []byte) error {
	var found struct {
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(answer, &found); err != nil {
		return err
	}
	if found.Error != nil {
		return errors.New(found.Error.Description)
	}
	return nil
}

// afterOutage is how long after an outage replies that came meanwhile may still be on
// their way to the journal.
const afterOutage = 10 * time.Second

// unjournaled is how old a reply may be that is not kept anywhere: one whose turn has
// come, which is about to be a result.
const unjournaled = 250 * time.Millisecond

// disturbed adds what a fault may cost. Calls in flight are made again, and so are
// replies of the last second that had no time to be journaled; while no server could be
// reached, all replies of the window. A zombie costs one pool: the calls in flight when
// it was suspended. It makes none when it wakes up.
func (s *site) disturbed(k kind) {
	until := time.Now()
	if k == stepDown {
		until = until.Add(healingCluster)
	}
	s.watched.excuse(until)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case k == stop:
	case s.outages > 0 || time.Since(s.lastOutage) < afterOutage:
		s.allowance += s.plan.most() * s.plan.partitions
	case k == zombie:
		s.allowance += s.plan.inFlight() + int(unjournaled.Seconds()*float64(s.plan.inFlight())/s.plan.latency.Seconds())
	default:
		s.allowance += s.plan.inFlight() + int(float64(s.plan.inFlight())/s.plan.latency.Seconds())
	}
}

// logs is the directory of all logs.
func (s *site) logs() string { return filepath.Join(s.dir, "logs") }

// prepare makes the directories.
func (s *site) prepare() (err error) {
	if s.dir = s.plan.dir; s.dir == "" {
		if s.dir, err = os.MkdirTemp("", "stage-chaos-"); err != nil {
			return err
		}
	}
	if s.dir, err = filepath.Abs(s.dir); err != nil {
		return err
	}
	return os.MkdirAll(s.logs(), 0o700)
}
