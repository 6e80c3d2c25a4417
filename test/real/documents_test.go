//go:build real

package real

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/throttle"
)

// documentsRuns is how often each job is done, and the simulator does it simulatedRuns
// times: the worst of so many runs is an extreme, which one dozen of runs does not show.
const documentsRuns, simulatedRuns = 12, 240

// TestTheDocumentsTestOverHTTP does the documents' test (100 rows, a pool of 10, calls of
// 50 to 500 ms) twelve times over real HTTP, at a server that refuses a fifth at random and
// at nginx with limit_req, and compares how long it takes with the simulator. The server
// refuses the very attempts that the simulator's refuses with the same seed, and the calls
// take as long. It fails where the two have little to do with each other.
func TestTheDocumentsTestOverHTTP(t *testing.T) {
	t.Parallel()
	const share, perSec, burst = .2, 20, 5
	nginx := nginxPath(t)
	for _, late := range []time.Duration{0, 5 * time.Millisecond} {
		network := "loopback"
		if late > 0 {
			network = fmt.Sprintf("calls up to %v late", late)
		}
		t.Run("a fifth refused at random, "+network, func(t *testing.T) {
			t.Parallel()
			sc := throttle.DocumentsNoise(share)
			compareDocuments(t, sc, late, func(t *testing.T, seed uint64) (string, *timed) {
				t.Helper()
				server, times := documentsServer(t, sc, seed, share)
				return documentsWay(t, server, sc, seed), times
			})
		})
		t.Run("nginx with limit_req, "+network, func(t *testing.T) {
			t.Parallel()
			sc := throttle.DocumentsLimit(perSec, burst+1) // nginx admits one more than its burst
			compareDocuments(t, sc, late, func(t *testing.T, seed uint64) (string, *timed) {
				t.Helper()
				upstream, times := documentsServer(t, sc, seed, 0)
				limits := fmt.Sprintf("limit_req zone=calls burst=%d nodelay; limit_req_status 429;", burst)
				addr, _ := startNginx(t, nginx, upstream, limits, perSec)
				return documentsWay(t, addr, sc, seed), times
			})
		})
	}
}

// compareDocuments does the job of a scenario at a server that serve returns the address
// of, and in the simulator with the same seeds and with many.
func compareDocuments(t *testing.T, sc *throttle.Scenario, late time.Duration, serve func(*testing.T, uint64) (string, *timed)) {
	t.Helper()
	sc.Jitter, sc.Refusal = late, time.Millisecond // both servers refuse at once
	simulated := make([]float64, simulatedRuns)
	for seed := range simulated {
		synctest.Test(t, func(t *testing.T) {
			simulated[seed] = throttle.Run(t.Context(), sc, throttle.Adaptive, uint64(seed)).Seconds
		})
	}
	var took []float64
	for seed := range uint64(documentsRuns) {
		t.Run(fmt.Sprint("run ", seed), func(t *testing.T) {
			addr, times := serve(t, seed)
			r := process(t, sc.Rows, map[string]string{
				"STAGE_LLM_PROVIDER": "mock", "STAGE_LLM_BASE_URL": "http://" + addr + "/v1", "STAGE_POOL_SIZE": fmt.Sprint(sc.Pool),
			})
			r.inOrder(t, sc.Rows)
			took = append(took, times.last.Sub(times.first).Seconds())
		})
	}
	if len(took) < documentsRuns {
		return // a run has failed
	}
	same, worst := slices.Clone(simulated[:documentsRuns]), 0.0
	for dozen := range slices.Chunk(simulated, documentsRuns) {
		worst += slices.Max(dozen) * documentsRuns / simulatedRuns
	}
	median, longest := middle(took), slices.Max(took)
	t.Logf("over HTTP: median %.2f s, worst %.2f s of %d; simulated with the same seeds: %.2f, %.2f; with %d seeds: %.2f, worst of a dozen %.2f",
		median, longest, documentsRuns, middle(same), slices.Max(same), simulatedRuns, middle(simulated), worst)
	t.Logf("over HTTP by simulated with the same seeds: median %+.0f%%, worst %+.0f%%; each run: %.2f and %.2f",
		100*(median/middle(same)-1), 100*(longest/slices.Max(same)-1), took, simulated[:documentsRuns])
	if expected := middle(same); median > 1.5*expected || median < expected/1.5 {
		t.Errorf("the median is %.2f s, the simulator says %.2f s", median, expected)
	}
	if longest > 2.5*slices.Max(simulated) {
		t.Errorf("the worst run took %.2f s, the worst of %d simulated ones %.2f s", longest, simulatedRuns, slices.Max(simulated))
	}
}

// middle returns the median.
func middle(list []float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// timed is when the first call arrived at a server, and when the last was answered.
type timed struct {
	mu          sync.Mutex
	first, last time.Time
}

// attemptHeader says which attempt at its row a call is.
const attemptHeader = "X-Attempt"

// documentsServer starts a server that refuses a share of the calls, and answers the
// others after as long as they take in the scenario. It returns its address.
func documentsServer(t *testing.T, sc *throttle.Scenario, seed uint64, share float64) (addr string, times *timed) {
	t.Helper()
	times = &timed{}
	llm := stagetest.Value(llmtest.New(llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
		times.mu.Lock()
		defer times.mu.Unlock()
		if times.first.IsZero() {
			times.first = time.Now()
		}
		attempt, err := strconv.Atoi(c.Header.Get(attemptHeader))
		_, refused, takes := sc.Attempt(seed, rowOf(t, c.Body), attempt, share)
		if err != nil || refused {
			return &llmtest.Step{Status: http.StatusTooManyRequests}
		}
		return &llmtest.Step{Delay: takes}
	}}))(t)
	return start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		llm.ServeHTTP(w, r)
		times.mu.Lock()
		defer times.mu.Unlock()
		times.last = time.Now()
	})), times
}

// documentsWay starts a proxy that counts the attempts at each row, and through which each
// call is as late as in the scenario, so that calls overtake one another.
func documentsWay(t *testing.T, to string, sc *throttle.Scenario, seed uint64) (addr string) {
	t.Helper()
	var mu sync.Mutex
	attempts := make(map[int]int) // by row
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: to})
	return start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client has gone
		}
		row := rowOf(t, body)
		mu.Lock()
		attempts[row]++
		attempt := attempts[row]
		mu.Unlock()
		late, _, _ := sc.Attempt(seed, row, attempt, 0)
		time.Sleep(late)
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.Header.Set(attemptHeader, strconv.Itoa(attempt))
		proxy.ServeHTTP(w, r)
	}))
}

// start serves on a loopback address until the test ends.
func start(t *testing.T, h http.Handler) (addr string) {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

var rowText = regexp.MustCompile(`row (\d{4})`) // see text

// rowOf returns the row that a request is about.
func rowOf(t *testing.T, body []byte) int {
	t.Helper()
	found := rowText.FindSubmatch(body)
	if found == nil {
		t.Errorf("no row in the request %s", body)
		return 0
	}
	row, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Error(err)
	}
	return row
}
