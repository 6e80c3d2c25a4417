package stage

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/lab/cloudtest"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stagetest"
)

// newCloudLab is a lab whose LLM takes the access tokens of a cloud, and no key.
func newCloudLab(t *testing.T) (l *lab, cloud *cloudtest.Cloud, refused *atomic.Int32) {
	t.Helper()
	cloud, refused = cloudtest.New(), new(atomic.Int32)
	t.Cleanup(cloud.Close)
	l = newLab(t, llmtest.Config{Latency: time.Second, Script: func(c llmtest.Call) *llmtest.Step {
		if err := cloud.VerifyToken(c.Header); err != nil {
			refused.Add(1)
			return &llmtest.Step{Status: http.StatusUnauthorized, Body: fmt.Sprintf(`{"error":{"message":"%v: %s"}}`, err, c.Header.Get("Authorization"))}
		}
		return nil
	}}, map[string]string{"STAGE_RETRY_MAX_ATTEMPTS": "1", "STAGE_LLM_API_KEY": "", "STAGE_LLM_AUTH": "google", "STAGE_FATAL_PROBE_INTERVAL": "10s", "STAGE_POOL_SIZE": "2"})
	l.pipes[cloudtest.Host] = cloud.Plain()
	l.load(questions(360)...) // three minutes
	return l, cloud, refused
}

// onGoogleCloud makes the environment of the test that of a machine with a service account.
func onGoogleCloud(t *testing.T) {
	t.Helper()
	t.Setenv("HOME", t.TempDir())
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
	t.Setenv("GOOGLE_CLOUD_PROJECT", "")
	t.Setenv("GCE_METADATA_HOST", cloudtest.Host)
}

// noneFailedOrShown checks the results, and that the secrets are in nothing that the stage left.
func (l *lab) noneFailedOrShown() {
	l.t.Helper()
	l.noneFailed()
	places := map[string]string{"log": l.logs.String(), "audit": l.dump("AUDIT"), "results": l.dump("RESULTS")}
	for place, text := range places {
		if i := strings.Index(text, "access-token-of-cloudtest"); i >= 0 {
			l.t.Errorf("%s holds a token: %.200q", place, text[max(0, i-80):])
		}
	}
}

// TestCredentialsEndUnderLoad has a stage work with credentials that live for a minute. One renewal is throttled, the
// cloud refuses others for as long as the old credential lives, and all that it issued is revoked once: no row fails, not
// even those that may be called once, and nothing pauses.
func TestCredentialsEndUnderLoad(t *testing.T) {
	onGoogleCloud(t)
	stagetest.Virtual(t, func(t *testing.T) {
		l, cloud, refused := newCloudLab(t)
		cloud.SetLife(time.Minute)
		r := l.start(nil, Options{})
		l.await(20)
		cloud.Throttle(2)
		l.await(120)
		for _, old := cloud.Asked(); ; time.Sleep(time.Second) {
			if _, issued := cloud.Asked(); issued > old {
				break
			}
		}
		time.Sleep(25 * time.Second) // it is renewed 5 s later
		cloud.Set(cloudtest.Refuses)
		time.Sleep(20 * time.Second)
		cloud.Set(cloudtest.Works)
		l.await(240)
		before := refused.Load()
		cloud.Revoke()
		l.await(360)
		r.stop()
		if before != 0 || refused.Load() == 0 {
			t.Errorf("%d calls were refused before the cloud revoked the credential, %d after", before, refused.Load())
		}
		asked, issued := cloud.Asked()
		if issued < 5 || issued > 12 || asked > issued+2+40 {
			t.Errorf("the cloud was asked %d times and issued %d credentials", asked, issued)
		}
		if !strings.Contains(l.logs.String(), "credential not renewed, trying again") {
			t.Error("the log does not say that the credential was not renewed")
		}
		if pauses := l.runEvents(auditlog.PhasePause); len(pauses) > 0 {
			t.Errorf("paused: %q", pauses)
		}
		l.noneFailedOrShown()
	})
}

// TestSourceOfCredentialsDies has the metadata server hang: once the last credential has ended the stage pauses, says why
// and what to do, and goes on by itself when the server is back.
func TestSourceOfCredentialsDies(t *testing.T) {
	onGoogleCloud(t)
	stagetest.Virtual(t, func(t *testing.T) {
		l, cloud, _ := newCloudLab(t)
		cloud.SetLife(time.Minute)
		r := l.start(nil, Options{})
		l.await(20)
		cloud.Set(cloudtest.Hangs)
		time.Sleep(5 * time.Minute)
		s := r.Status()
		if s.State != status.StatePaused || s.Pool.PauseReason != hold.Credentials || s.Rows.Failed != 0 {
			t.Errorf("status: %s, %s, %d rows failed", s.State, s.Pool.PauseReason, s.Rows.Failed)
		}
		_, why := r.ready()
		matches(t, "ready", []string{why}, `paused: openai: no credential of Google Cloud: no answer within 15s: there is no credential file, and the metadata server gave no token: .*; `+
			`set GOOGLE_APPLICATION_CREDENTIALS .* or give the pod or the machine a service account.*`)
		cloud.Set(cloudtest.Works)
		back := time.Now()
		for r.Status().State == status.StatePaused && time.Since(back) < time.Hour {
			time.Sleep(time.Second)
		}
		if took := time.Since(back); took > 30*time.Second {
			t.Errorf("the pause ended %v after the metadata server was back", took)
		}
		l.await(360)
		r.stop()
		if pauses := l.runEvents(auditlog.PhasePause); len(pauses) != 1 {
			t.Errorf("paused: %q", pauses)
		}
		l.noneFailedOrShown()
	})
}
