package cli

import (
	"bytes"
	"context"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/spf13/cobra"
)

// fakeSignals delivers signals to their subscribers.
type fakeSignals struct {
	mu          sync.Mutex
	subscribers map[chan<- os.Signal][]os.Signal
}

func (f *fakeSignals) notify(c chan<- os.Signal, signals ...os.Signal) func() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.subscribers == nil {
		f.subscribers = make(map[chan<- os.Signal][]os.Signal)
	}
	f.subscribers[c] = signals
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.subscribers, c)
	}
}

func (f *fakeSignals) subscribed() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.subscribers)
}

// send returns how many took the signal.
func (f *fakeSignals) send(s os.Signal) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for c, signals := range f.subscribers { // each has room
		for _, wanted := range signals {
			if wanted == s {
				c <- s
				n++
			}
		}
	}
	return n
}

func TestFirstSignalStopsSoftlyAndTheSecondAtOnce(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		var signals fakeSignals
		env := &Env{Notify: signals.notify}
		soft, hard, stop := env.Contexts(t.Context())
		defer stop()

		signals.send(syscall.SIGTERM)
		synctest.Wait()
		if soft.Err() == nil || hard.Err() != nil {
			t.Fatalf("after one signal: got soft %v, hard %v; want soft ended alone", soft.Err(), hard.Err())
		}
		if got := context.Cause(soft).Error(); got != "stopped by signal: terminated" {
			t.Errorf("cause of soft: got %q", got)
		}
		signals.send(syscall.SIGTERM) // to the process group, as timeout(1) does a moment later
		synctest.Wait()
		if hard.Err() != nil {
			t.Error("the echo of the first signal was taken for a second")
		}
		time.Sleep(signalEcho)
		signals.send(os.Interrupt)
		synctest.Wait()
		if got := exitCode(context.Cause(hard)); got != exitInterrupted {
			t.Errorf("after two signals: got code %d for %v, want %d", got, context.Cause(hard), exitInterrupted)
		}
		if n := signals.send(os.Interrupt); n != 0 {
			t.Error("the third signal was caught: it must end the process")
		}
	})
}

func TestAHangupEndsSoftlyHoweverOftenItComes(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		var signals fakeSignals
		env := &Env{Notify: signals.notify, HangupEnds: true}
		soft, hard, stop := env.Contexts(t.Context(), syscall.SIGHUP)
		defer stop()
		if reloads, _ := env.Reloads(); reloads != nil {
			t.Error("a hangup that ends is a reload, too")
		}
		for range 5 {
			signals.send(syscall.SIGHUP)
			time.Sleep(time.Second)
		}
		if soft.Err() == nil || hard.Err() != nil {
			t.Fatalf("after hangups: got soft %v, hard %v; want soft ended alone", soft.Err(), hard.Err())
		}
		signals.send(syscall.SIGTERM)
		synctest.Wait()
		if hard.Err() == nil {
			t.Error("another signal does not end it at once")
		}
	})
}

func TestContextsEndWithTheirParentAndReleaseSignals(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		var signals fakeSignals
		env := &Env{Notify: signals.notify}
		parent, cancel := context.WithCancel(t.Context())
		soft, hard, stop := env.Contexts(parent)
		cancel()
		synctest.Wait()
		if soft.Err() == nil || hard.Err() == nil || signals.subscribed() != 0 {
			t.Errorf("got soft %v, hard %v, %d subscribers", soft.Err(), hard.Err(), signals.subscribed())
		}
		stop()

		soft, hard, stop = env.Contexts(t.Context())
		stop()
		if soft.Err() == nil || hard.Err() == nil || signals.subscribed() != 0 {
			t.Errorf("after stop: got soft %v, hard %v, %d subscribers", soft.Err(), hard.Err(), signals.subscribed())
		}
	})
}

func TestReloadsComeFromHangups(t *testing.T) {
	var signals fakeSignals
	reloads, stop := (&Env{Notify: signals.notify}).Reloads()
	signals.send(syscall.SIGHUP)
	if got := <-reloads; got != syscall.SIGHUP {
		t.Errorf("got %v, want SIGHUP", got)
	}
	if stop(); signals.subscribed() != 0 {
		t.Error("the signal is still caught after stop")
	}
}

func TestExitCodes(t *testing.T) {
	for _, tt := range []struct {
		args []string
		code int
		errs string // start of what is printed to stderr
	}{
		{[]string{"version"}, exitDone, ""},
		{[]string{"config", "--help"}, exitDone, ""},
		{[]string{"help"}, exitDone, ""},
		{[]string{"help", "config"}, exitDone, ""},
		{[]string{"completion", "bash"}, exitDone, ""},
		{[]string{"config", "--check", "--llm-provider=mock", "--template=x"}, exitDone, ""},
		{nil, exitUsage, "Usage:\n  stage <command>"},
		{[]string{"confg"}, exitUsage, "stage: unknown command \"confg\""},
		{[]string{"help", "confg"}, exitUsage, "stage: unknown command \"confg\""},
		{[]string{"config", "extra"}, exitUsage, "stage: unknown command \"extra\" for \"stage config\""},
		{[]string{"config", "--pool-siz=3"}, exitUsage, "stage: unknown flag: --pool-siz, did you mean --pool-size?\n  see stage config --help\n"},
		{[]string{"config", "--pool-size=x"}, exitUsage, "stage: the configuration has a problem:\n  STAGE_POOL_SIZE (--pool-size): \"x\" is not a whole number\n"},
		{[]string{"config", "--check", "--markdown"}, exitUsage, "stage: if any flags in the group [check markdown schema json] are set none of the others can be"},
		{[]string{"mockllm", "--schedule=fast"}, exitUsage, "stage: schedule: "},
		{[]string{"mockllm", "--errors=429"}, exitUsage, "stage: errors: "},
		{[]string{"mockllm", "--rate=1", "--schedule=1:1s"}, exitUsage, "stage: --rate and --schedule"},
		{[]string{"mockllm", "--burst=-1", "--latency=-1s"}, exitUsage, "stage: burst -1 is negative\n  latency"},
		{[]string{"mockllm", "--addr=nowhere"}, exitFailed, "stage: listen on nowhere: "},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			var out, errs strings.Builder
			env := &Env{Args: tt.args, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs}
			if tt.args == nil {
				env.Args = []string{} // nil would make cobra take the arguments of the test
			}
			if got := Main(t.Context(), env); got != tt.code {
				t.Errorf("got exit code %d, want %d; stderr:\n%s", got, tt.code, errs.String())
			}
			if !strings.HasPrefix(errs.String(), tt.errs) || tt.errs == "" && errs.Len() > 0 {
				t.Errorf("stderr: got %q, want %q…", errs.String(), tt.errs)
			}
		})
	}
}

// Whoever names a command does not wait for the flags of all others.
func TestOnlyTheNamedCommandIsMade(t *testing.T) {
	all := commands(&Env{Args: []string{"help"}})
	for i, m := range makers {
		one := commands(&Env{Args: []string{m.name, "--help"}})
		if len(one) != 1 || one[0].Name() != m.name || all[i].Name() != m.name || rankOf(one[0]) != rankOf(all[i]) {
			t.Errorf("%s: got %d commands, the first is %s", m.name, len(one), one[0].Name())
		}
	}
}

func TestHelpListsOwnFlagsAndCommonSettings(t *testing.T) {
	var b strings.Builder
	cmd := &cobra.Command{Use: "tail"}
	cmd.SetOut(&b)
	cmd.Flags().Bool("follow", false, "follow")
	flags := newConfigFlags(cmd, &Env{}, []string{"NATS", "Stage"}, map[string]string{"STAGE_NATS_URL": "nats://own", "STAGE_NAME": "mine"})
	writeHelp(cmd, 80)
	own, common, _ := strings.Cut(b.String(), "Common settings:")
	if !strings.Contains(own, "--follow") || !strings.Contains(common, "(default mine)") || strings.Contains(common, "--pool-size number") {
		t.Errorf("got:\n%s\nwant its own flag, then the common setting of its groups with the command's default", b.String())
	}
	stagetest.Must(t, cmd.ParseFlags([]string{"--nats-tls-first", "--log-level=warn"}))
	c, err := flags.Load(t.Context(), config.NeedNothing)
	if err != nil {
		t.Fatal(err)
	}
	if !c.NATS.TLSFirst || c.NATS.URL.Joined() != "nats://own" || c.Process.LogLevel != "warn" {
		t.Errorf("got TLS first %t, URL %s, log level %s", c.NATS.TLSFirst, c.NATS.URL, c.Process.LogLevel)
	}
	stagetest.Must(t, cmd.ParseFlags([]string{"--pool-size=7"}))
	if _, err = flags.Load(t.Context(), config.NeedNothing); !config.IsInvalid(err) || !strings.Contains(err.Error(), "--pool-size: tail does not use it") {
		t.Errorf("a flag that the command does not use: %v", err)
	}
}

func TestABadExtraBodyIsFoundByEveryCommandBeforeTheFirstRow(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // a command that accepts the setting must not go on for ever
	commands := [][]string{
		{"config", "--check"},
		{"config"},
		{"run"},
		{"process", "-"},
		{"process", "--dry-run", "-"},
		{"load", "-"},
		{"results"},
		{"tail"},
		{"verify"},
		{"redrive"},
		{"batch", "-"},
	}
	for extra, want := range map[string]string{
		`{"stream": true}`:           `STAGE_LLM_EXTRA_BODY: "stream" is not supported; remove it`,
		`{"background": true}`:       `STAGE_LLM_EXTRA_BODY: "background" has no reply to wait for; remove it`,
		`{"model": "gpt-5"}`:         `STAGE_LLM_EXTRA_BODY: "model" may not be set here: use STAGE_LLM_MODEL, or the header Stage-Model for one row`,
		`{"messages": []}`:           `STAGE_LLM_EXTRA_BODY: "messages" may not be set here: use STAGE_TEMPLATE`,
		`{"prompt": {"id": "p"}}`:    `STAGE_LLM_EXTRA_BODY: "prompt" may not be set here: use STAGE_TEMPLATE`,
		`{"conversation": "c"}`:      `STAGE_LLM_EXTRA_BODY: "conversation" puts other text into every prompt; remove it`,
		`{"instructions": "Answer"}`: `STAGE_LLM_EXTRA_BODY: "instructions" may not be set here: use STAGE_SYSTEM_PROMPT`,
	} {
		for _, args := range commands {
			var errs bytes.Buffer
			env := &Env{Args: args, Stdin: strings.NewReader(""), Stdout: &errs, Stderr: &errs, Environ: map[string]string{
				"STAGE_LLM_PROVIDER": "mock", "STAGE_TEMPLATE": "x", "STAGE_LLM_EXTRA_BODY": extra, "STAGE_DATA_DIR": t.TempDir(),
			}}
			if code := Main(ctx, env); code != exitUsage || !strings.Contains(errs.String(), want) {
				t.Errorf("%v: exit code %d, want %d: %s", args, code, exitUsage, &errs)
			}
		}
	}
}
