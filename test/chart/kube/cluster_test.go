package kube

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

var binaries = flag.String("bin", "bin", "directory of the programs")

// nodes is how many nodes there are, each in a zone of its own.
const nodes = 3

// token is that of an administrator; the cluster lives on loopback and only as long as the test.
const token = "administrator"

// cluster is a Kubernetes cluster of the test.
type cluster struct {
	t          *testing.T
	dir        string
	kubeconfig string
	client     kubernetes.Interface
	dynamic    dynamic.Interface
	kwok       *os.Process
	env        []string // of programs, beside that of the test
}

// startCluster starts all programs; they end with the test. If it fails, the ends of their logs are shown.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir()}
	etcd, peer, secure := freePort(t), freePort(t), freePort(t)
	c.writeKey("sa.key")
	c.writeCertificates("proxy", "keda")
	c.write("tokens.csv", token+`,admin,admin,"system:masters"`+"\n")
	c.kubeconfig = c.write("kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: admin}}]
clusters: [{name: test, cluster: {server: "https://127.0.0.1:%d", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: %s}}]
`, secure, token))

	c.start("server", // etcd
		"--data-dir="+c.path("etcd"), fmt.Sprintf("--listen-client-urls=http://127.0.0.1:%d", etcd), fmt.Sprintf("--advertise-client-urls=http://127.0.0.1:%d", etcd),
		fmt.Sprintf("--listen-peer-urls=http://127.0.0.1:%d", peer), "--unsafe-no-fsync")
	c.start("kube-apiserver",
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", etcd), "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", secure), "--cert-dir="+c.path("certs"),
		"--token-auth-file="+c.path("tokens.csv"), "--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+c.path("sa.key"), "--service-account-signing-key-file="+c.path("sa.key"),
		// An API server of its own, such as KEDA's for metrics, believes who asks through this one.
		"--requestheader-client-ca-file="+c.path("ca.crt"), "--requestheader-allowed-names=proxy", "--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+c.path("proxy.crt"), "--proxy-client-key-file="+c.path("proxy.key"))
	config := &rest.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", secure), BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: 100, Burst: 200,
	}
	c.client, c.dynamic = kubernetes.NewForConfigOrDie(config), dynamic.NewForConfigOrDie(config)
	c.awaitAPI()
	c.start("kube-controller-manager", "--kubeconfig="+c.kubeconfig, "--leader-elect=false", "--secure-port=0",
		"--horizontal-pod-autoscaler-sync-period=1s", "--service-account-private-key-file="+c.path("sa.key"), "--root-ca-file="+c.path("certs/apiserver.crt"))
	c.start("kube-scheduler", "--kubeconfig="+c.kubeconfig, "--leader-elect=false", "--secure-port=0")
	for i := range nodes {
		c.createNode(fmt.Sprintf("node-%d", i), fmt.Sprintf("zone-%d", i))
	}
	args := []string{"--kubeconfig=" + c.kubeconfig, "--manage-all-nodes", "--node-lease-duration-seconds=40"}
	for _, stage := range []string{"node/fast/node-initialize", "node/heartbeat-with-lease/node-heartbeat-with-lease", "pod/fast/pod-ready", "pod/fast/pod-complete", "pod/fast/pod-delete"} {
		args = append(args, "--config="+filepath.Join(c.moduleDir("sigs.k8s.io/kwok"), "kustomize/stage", stage+".yaml"))
	}
	c.kwok = c.start("kwok", args...)
	return c
}

// awaitAPI waits until the API server answers. Nothing reports when a process is up, so it is polled.
func (c *cluster) awaitAPI() {
	c.t.Helper()
	err := wait.PollUntilContextTimeout(c.t.Context(), 200*time.Millisecond, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := c.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil, nil
	})
	if err != nil {
		c.t.Fatalf("the API server does not come up: %v", err)
	}
}

// keda is KEDA's module. It is not a requirement of this one: its programs are built as their own go.mod says.
const keda = "github.com/kedacore/keda/v2@v2.21.0"

// scaledObjects are KEDA's.
var scaledObjects = schema.GroupVersionResource{Group: "keda.sh", Version: "v1alpha1", Resource: "scaledobjects"}

// define creates KEDA's definitions of custom resources, all that match a pattern, and waits until they are served.
func (c *cluster) define(pattern string) {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), "go", "mod", "download", "-json", keda)
	cmd.Dir = c.dir
	out, err := cmd.Output()
	var module struct{ Dir string }
	if jsonErr := json.Unmarshal(out, &module); err != nil || jsonErr != nil {
		c.t.Fatalf("go mod download: %v %v", err, jsonErr)
	}
	paths, err := filepath.Glob(filepath.Join(module.Dir, "config/crd/bases", pattern))
	if err != nil || len(paths) == 0 {
		c.t.Fatalf("no definitions: %v", err)
	}
	definitions := c.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	changes, err := definitions.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	defer changes.Stop()
	missing := map[string]bool{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			c.t.Fatal(err)
		}
		definition := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(text, &definition.Object); err != nil {
			c.t.Fatal(err)
		}
		if _, err := definitions.Create(ctx, definition, metav1.CreateOptions{}); err != nil {
			c.t.Fatal(err)
		}
		missing[definition.GetName()] = true
	}
	for change := range changes.ResultChan() {
		made, ok := change.Object.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		if condition(made, "Established") == "True" {
			delete(missing, made.GetName())
		}
		if len(missing) == 0 {
			return
		}
	}
	c.t.Fatalf("not served in time: %v", missing)
}

// condition returns the status of one of an object's conditions; empty: it has none.
func condition(o *unstructured.Unstructured, name string) string {
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, condition := range conditions {
		if m, _ := condition.(map[string]any); m["type"] == name {
			return fmt.Sprint(m["status"])
		}
	}
	return ""
}

func (c *cluster) createNode(name, zone string) {
	c.t.Helper()
	room := corev1.ResourceList{corev1.ResourceCPU: quantity("8"), corev1.ResourceMemory: quantity("32Gi"), corev1.ResourceEphemeralStorage: quantity("100Gi"), corev1.ResourcePods: quantity("100")}
	_, err := c.client.CoreV1().Nodes().Create(c.t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: zone}},
		Status:     corev1.NodeStatus{Capacity: room, Allocatable: room},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
}

// start runs a program until the test ends.
func (c *cluster) start(name string, args ...string) *os.Process {
	c.t.Helper()
	log, err := os.Create(c.path(name + ".log"))
	if err != nil {
		c.t.Fatal(err)
	}
	path, err := filepath.Abs(filepath.Join(*binaries, name))
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.dir, log, log
	cmd.Env = append(os.Environ(), c.env...)
	if err := cmd.Start(); err != nil {
		c.t.Fatalf("%v: run make test-kube", err)
	}
	c.t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGKILL) //nolint:errcheck // it may have ended
		cmd.Wait()                          //nolint:errcheck // killed
		log.Close()                         //nolint:errcheck // written by another process
		if text, err := os.ReadFile(log.Name()); c.t.Failed() && err == nil {
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			c.t.Logf("end of the log of %s:\n%s", name, strings.Join(lines[max(0, len(lines)-8):], "\n"))
		}
	})
	return cmd.Process
}

// freeze stops kwok, so that no pod becomes ready or goes, until the function that it returns is called.
func (c *cluster) freeze() (thaw func()) {
	c.t.Helper()
	if err := c.kwok.Signal(syscall.SIGSTOP); err != nil {
		c.t.Fatal(err)
	}
	return func() { c.kwok.Signal(syscall.SIGCONT) } //nolint:errcheck // it is there
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

func (c *cluster) write(name, text string) string {
	c.t.Helper()
	if err := os.WriteFile(c.path(name), []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return c.path(name)
}

func (c *cluster) writeKey(name string) *rsa.PrivateKey {
	c.t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		c.t.Fatal(err)
	}
	c.write(name, string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	return key
}

// writeCertificates writes ca.crt, and for each name a certificate of it, for servers on loopback and for clients.
func (c *cluster) writeCertificates(names ...string) {
	c.t.Helper()
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	signer := c.writeKey("ca.key")
	c.writeCertificate("ca.crt", authority, authority, &signer.PublicKey, signer)
	for i, name := range names {
		key := c.writeKey(name + ".key")
		c.writeCertificate(name+".crt", &x509.Certificate{
			SerialNumber: big.NewInt(int64(i) + 2), Subject: pkix.Name{CommonName: name}, NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
			DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
		}, authority, &key.PublicKey, signer)
	}
}

func (c *cluster) writeCertificate(name string, of, by *x509.Certificate, key *rsa.PublicKey, signer *rsa.PrivateKey) {
	c.t.Helper()
	raw, err := x509.CreateCertificate(rand.Reader, of, by, key, signer)
	if err != nil {
		c.t.Fatal(err)
	}
	c.write(name, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})))
}

// moduleDir is where the sources of a module are.
func (c *cluster) moduleDir(module string) string {
	c.t.Helper()
	out, err := exec.CommandContext(c.t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		c.t.Fatalf("go list -m %s: %v", module, err)
	}
	return strings.TrimSpace(string(out))
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // it only found a port
	return listener.Addr().(*net.TCPAddr).Port
}
