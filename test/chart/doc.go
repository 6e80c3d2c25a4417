// Package chart tests the Helm chart in deploy/helm/llm-stage: it renders every
// ci/*-values.yaml with the libraries of Helm 3 and 4, and compares the outcome with
// goldens, with the API of Kubernetes and of the operators that it works with, with pod
// security, with the variables of the program, and with the metrics that a running stage
// serves. It is a module of its own, so that none of that is a dependency of the stage.
// What takes minutes to compile (Helm 4, the validators of Kubernetes, Prometheus'
// engine) is in files with the build tag long, which `make test-chart-long` runs.
//
// `make chart` writes the generated files: the goldens, values.schema.json and the
// chart's README.
package chart
