//go:build long

package chart

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/yannh/kubeconform/pkg/validator"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// conforming returns a validator for each version of Kubernetes.
func conforming(t *testing.T) map[string]validator.Validator {
	t.Helper()
	dir := apiSchemas(t)
	all := make(map[string]validator.Validator)
	for _, version := range kubernetesVersions {
		v, err := validator.New([]string{dir + "/{{.NormalizedKubernetesVersion}}/{{.ResourceKind}}{{.KindSuffix}}.json"},
			validator.Opts{Strict: true, KubernetesVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		all[version] = v
	}
	return all
}

func invalid(v validator.Validator, text string) []validator.Result {
	var wrong []validator.Result
	for _, r := range v.Validate("-", io.NopCloser(strings.NewReader(text))) {
		if r.Status != validator.Valid {
			wrong = append(wrong, r)
		}
	}
	return wrong
}

func TestTheAPIAcceptsEveryObject(t *testing.T) {
	validators := conforming(t)
	for _, name := range cases(t) {
		for _, o := range objects(t, ciValues(t, name)) {
			for version, v := range validators {
				for _, r := range invalid(v, o.text) {
					t.Errorf("%s, Kubernetes %s: %s %s: %v", name, version, o.kind(), o.name(), r.Err)
				}
			}
		}
	}
}

// TestTheValidatorsFindErrors keeps the test above from passing because its schemas accept everything.
func TestTheValidatorsFindErrors(t *testing.T) {
	all := objects(t, ciValues(t, "full"))
	for version, v := range conforming(t) {
		for kind, change := range map[string][2]string{
			"Deployment":          {"revisionHistoryLimit:", "revisionHistory:"},
			"PodDisruptionBudget": {"maxUnavailable:", "maxUnavailables:"},
			"ScaledObject":        {"pollingInterval: 30", "pollingInterval: often"},
			"PodMonitor":          {"targetLabel:", "target:"},
			"PrometheusRule":      {"expr:", "expression:"},
			"NetworkPolicy":       {"podSelector:", "podSelectors:"},
		} {
			o, _ := find(t, all, kind)
			broken := strings.Replace(o.text, change[0], change[1], 1)
			if broken == o.text || len(invalid(v, broken)) == 0 {
				t.Errorf("Kubernetes %s accepts a %s with %s", version, kind, change[1])
			}
		}
	}
}

func TestTheChartAllowsTheVersionsThatItIsTestedWith(t *testing.T) {
	chart, err := loader.LoadDir(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range append([]string{"1.31.0", "1.33.4-gke.1013000"}, kubernetesVersions...) {
		if !chartutil.IsCompatibleRange(chart.Metadata.KubeVersion, version) {
			t.Errorf("Kubernetes %s is refused", version)
		}
	}
	if chartutil.IsCompatibleRange(chart.Metadata.KubeVersion, "1.30.14") {
		t.Error("Kubernetes 1.30 is allowed, but no test covers it")
	}
}

func TestEveryPodMeetsPodSecurityRestricted(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	evaluate := func(spec map[string]any) policy.AggregateCheckResult {
		text, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		var pod corev1.PodSpec
		if err := json.Unmarshal(text, &pod); err != nil {
			t.Fatal(err)
		}
		return policy.AggregateCheckResults(evaluator.EvaluatePod(
			api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}, &metav1.ObjectMeta{}, &pod))
	}
	for _, name := range cases(t) {
		for who, spec := range podSpecs(t, objects(t, ciValues(t, name))) {
			if r := evaluate(spec); !r.Allowed {
				t.Errorf("%s, %s: %s: %s", name, who, r.ForbiddenReason(), r.ForbiddenDetail())
			}
			if spec["automountServiceAccountToken"] != false || spec["enableServiceLinks"] != false {
				t.Errorf("%s, %s: has a token or service links", name, who)
			}
			for _, c := range append(list(spec["initContainers"]), list(spec["containers"])...) {
				if c["securityContext"].(map[string]any)["readOnlyRootFilesystem"] != true {
					t.Errorf("%s, %s: writes to its root file system", name, who)
				}
			}
		}
	}
	loose := merged(ciValues(t, "minimal"), parse(t, `podSecurityContext: {runAsNonRoot: false}`))
	for _, spec := range podSpecs(t, objects(t, loose)) {
		if evaluate(spec).Allowed {
			t.Error("a pod that may run as root is allowed")
		}
	}
}
