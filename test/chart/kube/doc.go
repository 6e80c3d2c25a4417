// Package kube installs the Helm chart on a real Kubernetes: API server, etcd, controller
// manager and scheduler, with nodes and pods played by kwok. KEDA's operator scales the
// chart there, by a NATS server and a Prometheus that say what a test wants. All of them
// are built from their Go modules by `make test-kube`, which takes long; so it is not
// part of CI. No container runs: what the program does in its pods is other tests'
// business.
package kube
