package stage

import (
	"testing"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stagetest"
)

// At 30 calls a second a single refusal is sporadic to a stage that is alone. While other replicas are known it may be
// theirs, so the law gives way to it, and once they are gone it no longer does.
func TestAStageTellsItsLawOfOtherReplicas(t *testing.T) {
	cfg, err := config.Source{Environ: map[string]string{
		"STAGE_NAME": "s", "STAGE_TEMPLATE": "{{ row }}", "STAGE_LLM_PROVIDER": "mock", "STAGE_POOL_SIZE": "32",
	}}.Load(t.Context(), config.NeedCalls)
	if err != nil {
		t.Fatal(err)
	}
	s := &Stage{view: view{Cfg: cfg}}
	made := stagetest.Value(s.newLaw())(t)
	law, ok := made.(*replicaLaw)
	if !ok || law.others() != 0 {
		t.Fatalf("the law of a stage without spread is %T", made)
	}
	others, now := 0, time.Unix(0, 0)
	law.others = func() int { return others }
	for _, others = range []int{0, 1, 0} {
		law.Resume(now, 30)
		before := law.Epoch()
		now = law.Next(now.Add(time.Second), 0)
		ticket := law.Sent(now, 1)
		now = now.Add(60 * time.Millisecond)
		law.Rejected(now, ticket, aimd.Hint{})
		if gaveWay := law.Epoch() > before; gaveWay != (others > 0) {
			t.Errorf("with %d others it gives way to a refusal: %v", others, gaveWay)
		}
	}
}
