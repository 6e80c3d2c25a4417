package kube

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	chartDir = "../../../deploy/helm/llm-stage"
	release  = "demo"
	fullname = "demo-llm-stage"
	selector = "app.kubernetes.io/instance=" + release + ",app.kubernetes.io/name=llm-stage"
	patience = 3 * time.Minute // for anything that the cluster must do; it takes seconds
)

func quantity(s string) resource.Quantity { return resource.MustParse(s) }

// installation is the chart in a namespace of its own, by one version of Helm.
type installation struct {
	*cluster
	t         *testing.T
	helmName  string
	namespace string
}

// helm runs Helm and returns what it prints.
func (i *installation) helm(args ...string) (string, error) {
	i.t.Helper()
	path, err := filepath.Abs(filepath.Join(*binaries, i.helmName))
	if err != nil {
		i.t.Fatal(err)
	}
	cmd := exec.CommandContext(i.t.Context(), path, append(args, "--namespace", i.namespace, "--kubeconfig", i.kubeconfig)...)
	cmd.Env = []string{"HOME=" + i.dir, "PATH=/usr/bin:/bin"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// must runs Helm, which must succeed.
func (i *installation) must(args ...string) {
	i.t.Helper()
	if out, err := i.helm(args...); err != nil {
		i.t.Fatalf("%s %s: %v\n%s", i.helmName, strings.Join(args, " "), err, out)
	}
}

// upgrade installs or upgrades with the values of ci/minimal and others, and waits until all is ready.
func (i *installation) upgrade(set ...string) {
	i.t.Helper()
	args := []string{"upgrade", "--install", release, chartDir, "--values", chartDir + "/ci/minimal-values.yaml", "--wait", "--timeout", "3m"}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	i.must(args...)
}

func (i *installation) pods() []corev1.Pod {
	i.t.Helper()
	list, err := i.client.CoreV1().Pods(i.namespace).List(i.t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		i.t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

// await waits until what holds, looking again whenever something of the kind that is watched changes.
func (i *installation) await(what string, watched func(context.Context) (watch.Interface, error), holds func() bool) {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(i.t.Context(), patience)
	defer cancel()
	changes, err := watched(ctx)
	if err != nil {
		i.t.Fatal(err)
	}
	defer changes.Stop()
	for !holds() {
		select {
		case _, ok := <-changes.ResultChan():
			if !ok {
				i.t.Fatalf("the watch ended before %s", what)
			}
		case <-ctx.Done():
			i.t.Fatalf("not in time: %s", what)
		}
	}
}

func (i *installation) watchPods(ctx context.Context) (watch.Interface, error) {
	return i.client.CoreV1().Pods(i.namespace).Watch(ctx, metav1.ListOptions{})
}

func (i *installation) watchBudgets(ctx context.Context) (watch.Interface, error) {
	return i.client.PolicyV1().PodDisruptionBudgets(i.namespace).Watch(ctx, metav1.ListOptions{})
}

// awaitReady waits until there are n pods and all of them are ready.
func (i *installation) awaitReady(n int) {
	i.t.Helper()
	i.await(fmt.Sprintf("%d pods are ready", n), i.watchPods, func() bool {
		pods := i.pods()
		return len(pods) == n && !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !ready(&p) })
	})
}

// awaitBudget waits until the disruption budget allows n pods to go.
func (i *installation) awaitBudget(n int32) {
	i.t.Helper()
	i.await(fmt.Sprintf("the budget allows %d", n), i.watchBudgets, func() bool {
		budget, err := i.client.PolicyV1().PodDisruptionBudgets(i.namespace).Get(i.t.Context(), fullname, metav1.GetOptions{})
		return err == nil && budget.Status.ObservedGeneration == budget.Generation && budget.Status.ExpectedPods > 0 && budget.Status.DisruptionsAllowed == n
	})
}

func (i *installation) evict(pod string) error {
	return i.client.CoreV1().Pods(i.namespace).EvictV1(i.t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: i.namespace}})
}

// podNames are the names of pods, sorted.
func podNames(pods []corev1.Pod) []string {
	var names []string
	for _, p := range pods {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}

func TestTheChartOnARealCluster(t *testing.T) {
	c := startCluster(t)
	c.define(scaledObjects.Group + "_" + scaledObjects.Resource + ".yaml")
	for _, helm := range []string{"helm3", "helm4"} {
		t.Run(helm, func(t *testing.T) {
			i := &installation{cluster: c, t: t, helmName: helm, namespace: helm}
			_, err := c.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
				Name: helm, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
			}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			i.install()
			i.upgradeAndRollBack()
			i.disrupt()
			i.drain()
			i.scale()
			i.partition()
			i.autoscale()
			i.uninstall()
		})
	}
}

// install: an owner and a standby on two nodes, and the test of the chart.
func (i *installation) install() {
	i.t.Helper()
	i.upgrade()
	pods := i.pods()
	if len(pods) != 2 || pods[0].Spec.NodeName == pods[1].Spec.NodeName {
		i.t.Fatalf("pods %v, want two on two nodes", podNames(pods))
	}
	if grace := pods[0].Spec.TerminationGracePeriodSeconds; *grace != 180 {
		i.t.Errorf("grace period %d s, want 180", *grace)
	}
	i.must("test", release, "--timeout", "3m")
}

// upgradeAndRollBack: a change of config replaces the pods, and so does the rollback. An upgrade that can't become
// ready leaves the old pods running.
func (i *installation) upgradeAndRollBack() {
	i.t.Helper()
	before := podNames(i.pods())
	i.upgrade("config.STAGE_POOL_SIZE=8")
	i.awaitReady(2)
	if after := podNames(i.pods()); slices.ContainsFunc(after, func(name string) bool { return slices.Contains(before, name) }) {
		i.t.Errorf("pods %v after the upgrade, %v before", after, before)
	}
	i.upgrade("config.STAGE_POOL_SIZE=8", "prometheusRule.enabled=false", "service.annotations.a=b")
	if after := podNames(i.pods()); slices.Equal(after, before) {
		i.t.Errorf("the pods from before the upgrade are back: %v", after)
	}

	old := podNames(i.pods())
	if out, err := i.helm("upgrade", release, chartDir, "--values", chartDir+"/ci/minimal-values.yaml", "--set", "nodeSelector.nowhere=yes", "--wait", "--timeout", "5s"); err == nil {
		i.t.Errorf("an upgrade whose pods find no node succeeds:\n%s", out)
	}
	running := podNames(slices.DeleteFunc(i.pods(), func(p corev1.Pod) bool { return !ready(&p) }))
	if !slices.Equal(running, old) {
		i.t.Errorf("ready pods %v after a failed upgrade, want the previous ones, %v", running, old)
	}
	i.must("rollback", release, "1", "--wait", "--timeout", "3m")
	i.awaitReady(2)
	config, err := i.client.CoreV1().ConfigMaps(i.namespace).Get(i.t.Context(), fullname, metav1.GetOptions{})
	if err != nil || config.Data["STAGE_POOL_SIZE"] != "" {
		i.t.Errorf("the pool size is %q after the rollback: %v", config.Data["STAGE_POOL_SIZE"], err)
	}
}

// disrupt: one healthy pod may be evicted at a time, an unhealthy one always.
func (i *installation) disrupt() {
	i.t.Helper()
	i.awaitBudget(1)
	pods := i.pods()
	thaw := i.freeze() // terminating pods stay, new ones do not become ready
	if err := i.evict(pods[0].Name); err != nil {
		i.t.Errorf("the first eviction: %v", err)
	}
	i.awaitBudget(0)
	if err := i.evict(pods[1].Name); !apierrors.IsTooManyRequests(err) {
		i.t.Errorf("the second eviction, while the first pod has no successor: %v, want too many requests", err)
	}
	sick := pods[1].DeepCopy()
	for n := range sick.Status.Conditions {
		if sick.Status.Conditions[n].Type == corev1.PodReady {
			sick.Status.Conditions[n].Status = corev1.ConditionFalse
		}
	}
	if _, err := i.client.CoreV1().Pods(i.namespace).UpdateStatus(i.t.Context(), sick, metav1.UpdateOptions{}); err != nil {
		i.t.Error(err)
	}
	if err := i.evict(sick.Name); err != nil {
		i.t.Errorf("the eviction of a pod that is not ready: %v", err)
	}
	thaw()
	i.awaitReady(2)
}

// drain: a node is drained, and its pods run on the others.
func (i *installation) drain() {
	i.t.Helper()
	node := i.pods()[0].Spec.NodeName
	cordon := func(yes bool) {
		patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, yes)
		if _, err := i.client.CoreV1().Nodes().Patch(i.t.Context(), node, "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
			i.t.Fatal(err)
		}
	}
	cordon(true)
	defer cordon(false)
	for _, p := range i.pods() {
		if p.Spec.NodeName != node {
			continue
		}
		i.awaitBudget(1)
		if err := i.evict(p.Name); err != nil {
			i.t.Errorf("evict %s: %v", p.Name, err)
		}
	}
	i.await("no pod is on "+node, i.watchPods, func() bool {
		return !slices.ContainsFunc(i.pods(), func(p corev1.Pod) bool { return p.Spec.NodeName == node })
	})
	i.awaitReady(2)
}

// scale: to one for each node, and to one without a budget.
func (i *installation) scale() {
	i.t.Helper()
	i.upgrade("replicaCount=3")
	i.awaitReady(3)
	i.upgrade("replicaCount=1")
	i.awaitReady(1)
	if _, err := i.client.PolicyV1().PodDisruptionBudgets(i.namespace).Get(i.t.Context(), fullname, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		i.t.Errorf("the budget of a single pod: %v, want none", err)
	}
}

// partition: the Deployment makes way for a StatefulSet, whose pods start together.
func (i *installation) partition() {
	i.t.Helper()
	i.upgrade("replicaCount=3", "config.STAGE_PARTITIONS=4", "config.STAGE_INPUT_SUBJECT=rows.{partition}.>")
	i.await("the Deployment's pods are gone", i.watchPods, func() bool { return len(i.pods()) == 3 })
	want := []string{fullname + "-0", fullname + "-1", fullname + "-2"}
	if got := podNames(i.pods()); !slices.Equal(got, want) {
		i.t.Errorf("pods %v, want %v", got, want)
	}
	set, err := i.client.AppsV1().StatefulSets(i.namespace).Get(i.t.Context(), fullname, metav1.GetOptions{})
	if err != nil || set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement {
		i.t.Errorf("StatefulSet: %v %v", set.Spec.PodManagementPolicy, err)
	}
	if _, err := i.client.AppsV1().Deployments(i.namespace).Get(i.t.Context(), fullname, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		i.t.Errorf("the Deployment: %v, want none", err)
	}
}

// autoscale: the hook's job, which creates the durables, is done before there is a ScaledObject. From then on the chart
// does not set the number of replicas; at the switch Kubernetes defaults it to 1, and the autoscaler corrects it.
func (i *installation) autoscale() {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(i.t.Context(), patience)
	defer cancel()
	jobs, err := i.client.BatchV1().Jobs(i.namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		i.t.Fatal(err)
	}
	defer jobs.Stop()
	values := []string{"config.STAGE_PARTITIONS=4", "config.STAGE_INPUT_SUBJECT=rows.{partition}.>", "keda.enabled=true", "keda.natsMonitoringEndpoint=nats:8222"}
	i.upgrade(values...)
	scaled, err := i.dynamic.Resource(scaledObjects).Namespace(i.namespace).Get(i.t.Context(), fullname, metav1.GetOptions{})
	if err != nil {
		i.t.Fatal(err)
	}
	var done bool
	for !done {
		change, ok := <-jobs.ResultChan()
		if !ok {
			i.t.Fatal("no job has created the durables")
		}
		job, isJob := change.Object.(*batchv1.Job)
		done = isJob && job.Name == fullname+"-setup" && job.Status.CompletionTime != nil
		if done && scaled.GetCreationTimestamp().Time.Before(job.Status.CompletionTime.Time) {
			i.t.Errorf("the ScaledObject is of %s, the job ended at %s", scaled.GetCreationTimestamp(), job.Status.CompletionTime)
		}
	}
	patch := []byte(`{"spec":{"replicas":3}}`) // as the autoscaler does
	if _, err := i.client.AppsV1().StatefulSets(i.namespace).Patch(i.t.Context(), fullname, "application/merge-patch+json", patch, metav1.PatchOptions{}, "scale"); err != nil {
		i.t.Fatal(err)
	}
	i.awaitReady(3)
	i.upgrade(append(values, "config.STAGE_POOL_SIZE=4")...)
	i.awaitReady(3)
}

// uninstall: nothing is left but the job of the test, which expires by itself.
func (i *installation) uninstall() {
	i.t.Helper()
	i.must("uninstall", release, "--wait", "--timeout", "3m")
	i.await("all pods are gone", i.watchPods, func() bool { return len(i.pods()) == 0 })
	for _, r := range []schema.GroupVersionResource{
		scaledObjects,
		{Group: "apps", Version: "v1", Resource: "deployments"},
		{Group: "apps", Version: "v1", Resource: "statefulsets"},
		{Version: "v1", Resource: "services"},
		{Version: "v1", Resource: "configmaps"},
		{Version: "v1", Resource: "serviceaccounts"},
		{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
	} {
		left, err := i.dynamic.Resource(r).Namespace(i.namespace).List(i.t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + release})
		if err != nil || len(left.Items) > 0 {
			i.t.Errorf("%s are left: %v %v", r.Resource, left, err)
		}
	}
	jobs, err := i.client.BatchV1().Jobs(i.namespace).List(i.t.Context(), metav1.ListOptions{})
	if err != nil || len(jobs.Items) > 1 || len(jobs.Items) == 1 && jobs.Items[0].Spec.TTLSecondsAfterFinished == nil {
		i.t.Errorf("jobs are left: %v", err)
	}
}
