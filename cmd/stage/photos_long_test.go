//go:build linux && long

package main

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	photoRows  = 2000
	photoKills = 5
	photoBytes = 512 << 10
	photoPool  = 16
	// photoMemory bounds the memory of the stage. A window of 1,024 rows with their photos
	// would take 512 MiB, twice as much as base64; calls in flight have 16 of them.
	photoMemory = 256 << 20
)

// TestPhotosOutliveKills has 2,000 rows answered, each about a photo in an object store, by
// a stage that is killed five times. Each row has one result, no call is made again but
// those in flight at a kill, and the stage holds only the photos of its calls in flight.
func TestPhotosOutliveKills(t *testing.T) {
	dir := t.TempDir()
	srv := stagetest.Value(natsd.Start(natsd.Config{Dir: filepath.Join(dir, "nats")}))(t)
	t.Cleanup(srv.Stop)
	nc := stagetest.Value(srv.Connect())(t)
	t.Cleanup(nc.Close)
	js := stagetest.Value(jetstream.New(nc))(t)
	photos := stagetest.Value(js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "photos"}))(t)
	head := stagetest.Value(os.ReadFile("../../examples/photos/pictures/kettle.png"))(t)
	for i := range 40 {
		noise := make([]byte, photoBytes-len(head))
		_, _ = rand.Read(noise) // never fails
		stagetest.Value(photos.Put(t.Context(), jetstream.ObjectMeta{Name: fmt.Sprint(i)}, bytes.NewReader(append(slices.Clip(head), noise...))))(t)
	}
	stagetest.Value(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"rows.>"}}))(t)
	for i := range photoRows {
		stagetest.Value(js.Publish(t.Context(), "rows.photos", fmt.Appendf(nil, `{"id":%d,"photo":"nats://photos/%d"}`, i+1, i%40)))(t)
	}

	llm := newPhotoLLM(t)
	messages := filepath.Join(dir, "messages.yaml")
	stagetest.Must(t, os.WriteFile(messages, []byte(`[{role: user, content: [{type: text, text: "id {{ row.id }}"}, {type: image, source: "{{ row.photo }}"}]}]`), 0o600))
	env := append(os.Environ(),
		"STAGE_NATS_URL="+strings.Replace(srv.URL(), "nats://", "nats://"+srv.Token()+"@", 1), "STAGE_HTTP_ADDR=", "STAGE_MESSAGES_FILE="+messages,
		"STAGE_LLM_PROVIDER=openai", "STAGE_LLM_MODEL=m", "STAGE_LLM_API_KEY=sk-0123456789abcdef", "STAGE_LLM_BASE_URL="+llm.URL+"/v1",
		fmt.Sprint("STAGE_POOL_SIZE=", photoPool),
	)
	for kill := range photoKills + 1 {
		var log bytes.Buffer
		cmd := exec.CommandContext(t.Context(), "stage", "run")
		cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, &log, &log
		stagetest.Must(t, cmd.Start())
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		want := photoRows * (kill + 1) / (photoKills + 1)
		for deadline := time.Now().Add(5 * time.Minute); stagetest.Stored(t, js, "RESULTS", "results.stage.0.rows") < want; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				_ = cmd.Process.Kill()
			}
			select {
			case err := <-ended:
				t.Fatalf("never %d results: %v:\n%s", want, err, &log)
			default:
			}
		}
		peak := peakMemory(t, cmd.Process.Pid)
		t.Logf("%d results, %d calls, %d MiB at most", want, llm.total(), peak>>20)
		if peak > photoMemory {
			t.Errorf("the stage took %d MiB, want at most %d", peak>>20, photoMemory>>20)
		}
		if kill < photoKills {
			stagetest.Must(t, cmd.Process.Kill())
			if err := <-ended; err == nil {
				t.Error("the stage ended without an error, though it was killed")
			}
			continue
		}
		stagetest.Must(t, cmd.Process.Signal(os.Interrupt))
		if err := <-ended; err != nil {
			t.Errorf("%v:\n%s", err, &log)
		}
	}

	verify := exec.CommandContext(t.Context(), "stage", "verify")
	verify.Dir, verify.Env = dir, env
	if out, err := verify.CombinedOutput(); err != nil || !strings.Contains(string(out), "proven") {
		t.Errorf("verify: %v:\n%s", err, out)
	}
	if n := stagetest.Stored(t, js, "RESULTS", "results.stage.0.rows"); n != photoRows {
		t.Errorf("%d results of %d rows", n, photoRows)
	}
	if again := llm.total() - photoRows; again > photoKills*photoPool {
		t.Errorf("%d calls were made again, with %d in flight at most at each of %d kills", again, photoPool, photoKills)
	}
}

// photoLLM counts the calls that it answers.
type photoLLM struct {
	*httptest.Server

	mu    sync.Mutex
	calls int
}

func newPhotoLLM(t *testing.T) *photoLLM {
	t.Helper()
	l := new(photoLLM)
	llm := stagetest.Value(llmtest.New(llmtest.Config{Latency: 50 * time.Millisecond}))(t)
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		l.calls++
		l.mu.Unlock()
		llm.ServeHTTP(w, r)
	}))
	t.Cleanup(l.Close)
	return l
}

func (l *photoLLM) total() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

// peakMemory returns the most memory that a process has had so far, in bytes.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	text := stagetest.Value(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t)
	for line := range strings.Lines(string(text)) {
		if kb, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n := stagetest.Value(strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kb), "kB")), 10, 64))(t)
			return n << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}
