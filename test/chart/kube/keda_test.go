package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
)

// world is what the autoscaler looks at: the monitoring of a NATS server and a Prometheus, which say what the test wants.
type world struct {
	rows      atomic.Int64  // that wait, in partition 0
	throttled atomic.Uint64 // per cent of the time
	owners    atomic.Int64  // pods that own a partition
	answers   atomic.Int64  // with the time throttled
}

// serve answers as the two do, until the test ends, and returns where.
func (w *world) serve(t *testing.T) (address string) {
	mux := http.NewServeMux()
	mux.HandleFunc("/jsz", func(out http.ResponseWriter, _ *http.Request) {
		var consumers []any
		for p := range 4 {
			rows := int64(0)
			if p == 0 {
				rows = w.rows.Load()
			}
			consumers = append(consumers, map[string]any{"stream_name": "ROWS", "name": fmt.Sprint("stage-", p), "num_pending": rows})
		}
		stream := map[string]any{"name": "ROWS", "consumer_detail": consumers}
		account := map[string]any{"id": "$G", "name": "$G", "stream_detail": []any{stream}}
		_ = json.NewEncoder(out).Encode(map[string]any{"account_details": []any{account}})
	})
	mux.HandleFunc("/api/v1/query", func(out http.ResponseWriter, r *http.Request) {
		value := strconv.FormatInt(max(1, w.owners.Load()), 10)
		if strings.Contains(r.FormValue("query"), "llm_stage_throttled_seconds_total") {
			value = fmt.Sprintf("%.2f", float64(w.throttled.Load())/100)
			w.answers.Add(1)
		}
		_ = json.NewEncoder(out).Encode(map[string]any{"status": "success", "data": map[string]any{
			"resultType": "vector", "result": []any{map[string]any{"metric": map[string]any{}, "value": []any{1, value}}},
		}})
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// awaitSeen waits until the autoscaler has worked with what it says now. It asks for rows and time throttled side by side, each
// second and once more for Kubernetes: of an answer from before this, whose rows come later, nothing is left after some others.
func (w *world) awaitSeen(t *testing.T) {
	t.Helper()
	before := w.answers.Load()
	err := wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		return w.answers.Load() > before+10, nil
	})
	if err != nil {
		t.Fatalf("nothing asks Prometheus: %v", err)
	}
}

// kedaCertificates returns a directory with KEDA's certificate, as both its programs expect it.
func (c *cluster) kedaCertificates() string {
	c.t.Helper()
	dir := c.path("keda-certs")
	if err := os.Mkdir(dir, 0o700); err != nil {
		c.t.Fatal(err)
	}
	for from, to := range map[string]string{"ca.crt": "ca.crt", "keda.crt": "tls.crt", "keda.key": "tls.key"} {
		if err := os.Link(c.path(from), filepath.Join(dir, to)); err != nil {
			c.t.Fatal(err)
		}
	}
	return dir
}

// startKEDA runs KEDA's operator and its server of metrics, which Kubernetes asks as a part of its API.
func (c *cluster) startKEDA() {
	c.t.Helper()
	c.define("*.yaml")
	metrics, service := freePort(c.t), freePort(c.t)
	ctx, namespace := c.t.Context(), "keda"
	if _, err := c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	certs := c.kedaCertificates()
	c.env = []string{"KUBECONFIG=" + c.kubeconfig, "WATCH_NAMESPACE=", "POD_NAMESPACE=" + namespace, "KEDA_CLUSTER_OBJECT_NAMESPACE=" + namespace}
	c.start("keda-operator", "--metrics-bind-address=0", "--health-probe-bind-address=0", "--cert-dir="+certs,
		fmt.Sprintf("--metrics-service-bind-address=127.0.0.1:%d", service))
	c.start("keda-adapter", "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", metrics), fmt.Sprintf("--port=%d", freePort(c.t)), "--cert-dir="+certs,
		"--tls-cert-file="+certs+"/tls.crt", "--tls-private-key-file="+certs+"/tls.key", "--client-ca-file="+certs+"/ca.crt",
		"--authentication-kubeconfig="+c.kubeconfig, "--authorization-kubeconfig="+c.kubeconfig, "--lister-kubeconfig="+c.kubeconfig,
		fmt.Sprintf("--metrics-service-address=localhost:%d", service))
	c.env = nil

	external := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "metrics"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}}
	if _, err := c.client.CoreV1().Services(namespace).Create(ctx, external, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	api := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v1beta1.external.metrics.k8s.io"},
		"spec": map[string]any{
			"service": map[string]any{"name": external.Name, "namespace": namespace, "port": int64(metrics)}, "insecureSkipTLSVerify": true,
			"group": "external.metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
		},
	}}
	services := c.dynamic.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"})
	if _, err := services.Create(ctx, api, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	i := &installation{cluster: c, t: c.t}
	i.await("KEDA's metrics are a part of the API",
		func(ctx context.Context) (watch.Interface, error) { return services.Watch(ctx, metav1.ListOptions{}) },
		func() bool {
			now, err := services.Get(ctx, api.GetName(), metav1.GetOptions{})
			return err == nil && condition(now, "Available") == "True"
		})
}

func TestTheAutoscalerOnTheRealOperator(t *testing.T) {
	c := startCluster(t)
	c.startKEDA()
	var w world
	address := w.serve(t)
	i := &installation{cluster: c, t: t, helmName: "helm4", namespace: "keda-test"}
	if _, err := c.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: i.namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	values := []string{
		"config.STAGE_PARTITIONS=4", "config.STAGE_INPUT_SUBJECT=rows.{partition}.>", "keda.enabled=true", "keda.minReplicas=0", "keda.maxReplicas=4",
		"keda.pollingInterval=1", "keda.cooldownPeriod=1", "keda.scaleDownStabilizationSeconds=0", "keda.natsMonitoringEndpoint=" + address,
		"keda.prometheus.serverAddress=http://" + address, "keda.prometheus.stepSeconds=30",
	}
	args := []string{"upgrade", "--install", release, chartDir, "--values", chartDir + "/ci/minimal-values.yaml", "--timeout", "3m"}
	for _, v := range values {
		args = append(args, "--set", v)
	}
	i.must(args...) // not until all is ready: without rows there is to be no pod
	i.await("KEDA accepts the ScaledObject",
		func(ctx context.Context) (watch.Interface, error) {
			return i.dynamic.Resource(scaledObjects).Namespace(i.namespace).Watch(ctx, metav1.ListOptions{})
		},
		func() bool {
			o, err := i.dynamic.Resource(scaledObjects).Namespace(i.namespace).Get(t.Context(), fullname, metav1.GetOptions{})
			return err == nil && condition(o, "Ready") == "True"
		})
	i.awaitReady(0)

	steps := func(n int) { // the owners are those that Prometheus would see
		t.Helper()
		i.await(fmt.Sprintf("%d pods are ready", n), i.watchPods, func() bool {
			now, ready := len(i.pods()), i.ready()
			w.owners.Store(int64(ready))
			return now == n && ready == n
		})
	}
	w.rows.Store(3500)
	steps(4)
	w.rows.Store(1500)
	steps(2)
	w.throttled.Store(95)
	w.awaitSeen(t)
	w.rows.Store(3500)
	i.awaitRows(1000, 2) // those that two replicas stand for; without the formula 1750, and soon 875 for each of four
	steps(2)
	w.throttled.Store(50)
	steps(4)
	w.throttled.Store(95)
	w.rows.Store(0)
	steps(0)
	w.rows.Store(3500) // of zero replicas, where the share is that of the last minutes, one starts
	w.owners.Store(0)
	i.awaitReady(1)
}

// ready is how many pods are ready.
func (i *installation) ready() (n int) {
	i.t.Helper()
	for _, p := range i.pods() {
		if ready(&p) {
			n++
		}
	}
	return n
}

// awaitRows waits until the autoscaler counts that many rows for each of so many replicas, and wants no others.
func (i *installation) awaitRows(perReplica int64, replicas int32) {
	i.t.Helper()
	autoscalers := i.client.AutoscalingV2().HorizontalPodAutoscalers(i.namespace)
	i.await(fmt.Sprintf("the autoscaler counts %d rows for each of %d replicas", perReplica, replicas),
		func(ctx context.Context) (watch.Interface, error) {
			return autoscalers.Watch(ctx, metav1.ListOptions{})
		},
		func() bool {
			list, err := autoscalers.List(i.t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != 1 || list.Items[0].Status.DesiredReplicas != replicas || list.Items[0].Status.CurrentReplicas != replicas {
				return false
			}
			return slices.ContainsFunc(list.Items[0].Status.CurrentMetrics, func(m autoscalingv2.MetricStatus) bool {
				return m.Type == autoscalingv2.ExternalMetricSourceType && m.External.Current.AverageValue != nil && m.External.Current.AverageValue.Value() == perReplica
			})
		})
}
