.DEFAULT_GOAL := help
SHELL         := bash
.SHELLFLAGS   := -eu -o pipefail -c
.DELETE_ON_ERROR:

PKG      ?= ./...# which packages: make test PKG=./pool
RUN      ?= .#     which tests: make test RUN=TestWindow
FUZZTIME ?= 20000x# for each fuzz target, in executions
WHOLETIME ?= 100x# the same of a target whose every execution runs whole stages
BENCH    ?= .#     which benchmarks
COUNT    ?= 1#     how often each; ten for benchstat
ROUNDS   ?= 3#     of make bench-whole

PLATFORMS ?= linux/amd64,linux/arm64# of the image
ARCHIVES ?= linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64# platforms of the archives
REGISTRY ?= ghcr.io/llm-stage# where a release goes
DURATION ?= 1m#    of a chaos run, or ROWS=10000
SERVERS  ?= 1#     nats-servers of a chaos run: 1 or 3
SEED     ?= 0#     of a chaos run; 0: any. The first one of sim
SEEDS    ?= 100#   how many sim runs
N        ?= 30#    changes that mutants makes in each package

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null)
VERSIONED := github.com/llm-stage/stage/internal/version
LDFLAGS  := -s -w -X $(VERSIONED).linkedVersion=$(VERSION)
TOOLS    := bin/golangci-lint bin/benchstat bin/crane
# A release has a version of the form v1.2.3: without a tag the commit is its pre-release.
RELEASE  := $(if $(filter v%,$(VERSION)),$(VERSION),v0.0.0-g$(VERSION))
BUILD     = -commit "$$(git rev-parse HEAD 2>/dev/null)" -out ../dist

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: PKG=./pool RUN=TestName FUZZTIME=1000000x BENCH=Buffer COUNT=10 DURATION=5m SERVERS=3 SEED=7 SEEDS=500"

.PHONY: build
build: ## build bin/stage, as released
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/stage ./cmd/stage

.PHONY: demo
demo: ## watch the stage work: no key, no network, about a minute
	go run ./cmd/stage demo

# Tests in virtual time take two thirds of the CPU time on one core: their goroutines wake each other across cores otherwise.
# Packages run side by side, one more than there are cores, since some wait for processes.
SIDE := -cpu 1 -parallel 4 -p $$(( $$(getconf _NPROCESSORS_ONLN) + 1 ))

.PHONY: test
test: ## run the tests; simulations have few seeds
	go test -short $(SIDE) -timeout 30m -run '$(RUN)' $(PKG)

.PHONY: test-long
test-long: ## run the tests with all their seeds, and those of whole processes that take their time; takes minutes
	go test -tags long -timeout 30m -run '$(RUN)' $(PKG)

# One core is a must here. Goroutines of a bubble of testing/synctest share one context of the race detector for the timers
# that they fire: two of them on two cores that each receive from a timer which is due use it at the same time, and the
# detector crashes ("ThreadSanitizer: CHECK failed", golang/go#78156). The detector finds races by what happens before what,
# so it needs no second core.
.PHONY: race
race: ## run the tests in any order under the race detector, but those that SKIP matches; takes minutes
	go test -race -short $(SIDE) -vet=off -shuffle=on -timeout 30m -run '$(RUN)' -skip '$(SKIP)' $(PKG)

# The packages whose goroutines share state. The tests of internal/stage run those of internal/batch, call, cost and media.
RACED := consumer/... internal/budget internal/ops/dashboard internal/executor internal/files/job internal/lane internal/natsconn internal/stage \
	internal/ops/stored llm llm/batchapi llm/pooled llm/redact llm/schema pool/...
# Names, or their beginnings, of tests that take more than 3 s each under the detector: most of its time.
SLOW   := $(shell paste -sd '|' test/slow-under-race)
.PHONY: race-short
race-short: ## the same in the packages whose goroutines share state, without the tests of test/slow-under-race
	$(MAKE) race PKG='$(RACED:%=./%)' SKIP='^($(SLOW))'

.PHONY: test-real
test-real: ## run the program against nginx, a mock of every wire format and a changing limit, alone and eight with one budget; downloads the servers, takes minutes
	go test -tags real -count=1 -v -parallel 8 -run '$(RUN)' ./test/real

.PHONY: test-oldserver
test-oldserver: ## run the program against nats-server 2.12 and 2.11, and check that it refuses 2.10; builds each, takes minutes
	go test -tags oldserver -count=1 -v -run '$(RUN)' ./test/oldserver

.PHONY: test-jinja
test-jinja: ## render the templates of Jinja's own tests, from JINJA=directory or Debian's source package; takes seconds
	JINJA="$(abspath $(JINJA))" go test -tags jinja -count=1 -v -run '$(RUN)' ./test/jinja $(if $(UPDATE),-update)

.PHONY: chaos
chaos: ## kill, suspend, cut off and restart real processes for DURATION or ROWS, from SEED; see docs/tested.md
	@mkdir -p bin
	go build -o bin/chaos ./test/chaos
	bin/chaos -servers $(SERVERS) -seed $(SEED) $(if $(ROWS),-rows $(ROWS),-duration $(DURATION)) $(CHAOS)

.PHONY: sim
sim: ## inject faults at every step of the delivery protocol and into whole stages, chains of them and the batch lane, in virtual time; SEEDS runs from SEED on, 100 take minutes
	go test ./consumer ./test/stage -run '^(TestSimulation|TestEveryStepMayBeTheLast|TestSimulationOfWholeStages|TestSimulationOfChains|TestSimulationOfTheBatchLane)$$' -count=1 -timeout 24h -v -args -sim.seed $(SEED) -sim.runs $(SEEDS)

.PHONY: test-browser
test-browser: ## test the dashboard in headless Chromium; AXE=1: with axe-core, an npm package, for people with a disability
	go -C tools test $(if $(AXE),-tags axe) -count=1 ./browser

.PHONY: cover
cover: ## measure test coverage, into coverage.out
	go test -coverpkg=./... -coverprofile=coverage.out $(PKG)
	go tool cover -func=coverage.out | tail -1

TIERS := long,real,oldserver,jinja# build tags of test files that make test leaves out

.PHONY: lint
lint: bin/golangci-lint ## run go vet and the linters of .golangci.yml
	go vet -tags $(TIERS) ./...
	bin/golangci-lint run --allow-serial-runners --build-tags $(TIERS) ./...

.PHONY: fmt
fmt: bin/golangci-lint ## format all Go files; FMT=--diff only shows what is not formatted, and fails
	bin/golangci-lint fmt $(FMT) ./...

# Go fuzzes one target of one package at a time. They are found by asking the test binaries of the packages that have any,
# so none is forgotten; to find none at all is an error. Executions bound both fuzzing and shrinking: the end of a time has
# failed targets that found nothing, with "context deadline exceeded". The coordinator cancels its workers with the error of
# the expired context, and compares that with the error of a context below, which may not have expired yet
# (CoordinateFuzzing in internal/fuzz). A bound in executions makes no context that expires.
.PHONY: fuzz
fuzz: ## fuzz each target for FUZZTIME, a number of executions
	@found=$$(go list -f '{{.ImportPath}} {{.Dir}}' $(PKG) | while read -r package dir; do ! grep -qs '^func Fuzz' "$$dir"/*_test.go || echo "$$package"; done | \
		xargs -r go test -vet=off -list '^Fuzz' | awk '/^Fuzz/ {t[n++] = $$1} /^ok/ {for (i = 0; i < n; i++) print $$2, t[i]; n = 0}'); \
	test -n "$$found" || { echo "no fuzz target in $(PKG)" >&2; exit 1; }; \
	while read -r package target; do \
		echo "== $$target in $$package"; \
		executions=$(FUZZTIME); [[ "$$package" != */test/security ]] || executions=$(WHOLETIME); \
		go test -run '^$$' -fuzz "^$$target\$$" -fuzztime "$$executions" -fuzzminimizetime 200x "$$package" </dev/null; \
	done <<<"$$found"

.PHONY: bench
bench: ## run the benchmarks; COUNT=10 into two files for bin/benchstat old new
	go test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) $(PKG)

.PHONY: bench-whole
bench-whole: ## compare the whole stage with loops that guarantee nothing; measure growth, memory, start-up: docs/benchmarks.md; BENCH='whole|lone' for some
	go build -o bin/bench ./test/bench
	bin/bench -run '$(BENCH)' -rounds $(ROUNDS)

.PHONY: bench-gate
bench-gate: ## measure five ratios of speed beside the recorded ones, in a few minutes; UPDATE=1 records them
	go build -o bin/bench ./test/bench
	bin/bench -gate test/bench/gate.json $(if $(UPDATE),-update)

.PHONY: bench-throttle
bench-throttle: ## compare the throttle's laws and the cost of outages in virtual time, as in test/throttle/figures.md
	go test ./test/throttle -run '^(TestTable|TestFamilies|TestOutageTable)$$' -table 10 -families 3 -outages 10 -v -timeout 2h

.PHONY: bench-targets
bench-targets: ## compare the throttle's laws where noise and limits look alike, with what a law should reach, as in test/throttle/targets.md; FROM=9000 takes fresh seeds
	go test ./test/throttle -run '^TestTargets$$' -targets 3 -seeds $(or $(FROM),7000) -parallel 2 -v -timeout 1h

.PHONY: bench-law
bench-law: ## compare the throttle's law with the one whose figures AGAINST has, or record them there, on the servers that decide; a minute
	go test ./test/throttle -run '^TestDecisive$$' -decisive 4 -seeds $(or $(FROM),7000) -against $(or $(AGAINST),$(CURDIR)/bin/law.json) -v -timeout 1h

.PHONY: bench-night
bench-night: ## how long 100,000 rows of 1.2 s take, one call at a time and with each law, in virtual time, as in README.md; ten seconds; ROWS=100000
	go test ./test/throttle -run '^TestTheDocumentsNight$$' -count=1 -night $(or $(ROWS),100000) -v

.PHONY: docs
docs: ## regenerate what follows from the code: the tables of docs/settings.md, docs/permissions.md, docs/holds.md and docs/metrics.md, docs/schemas/asyncapi.yaml, .env.example; takes seconds
	@mkdir -p bin
	@go run ./cmd/stage config --markdown >bin/config.md
	@awk ' \
		/^<!-- configuration: begin/ {print; while ((getline line <"bin/config.md") > 0) print line; skip = 1; begun = 1} \
		/^<!-- configuration: end/ {skip = 0; ended = begun} \
		!skip && !/^<!-- configuration: begin/ {print} \
		END {if (!ended) {print "docs/settings.md: the lines <!-- configuration: begin --> and end are missing" >"/dev/stderr"; exit 1}} \
	' docs/settings.md >bin/settings.md
	@cat bin/settings.md >docs/settings.md
	@go test -count=1 ./internal/config -run '^TestEnvExampleHoldsEveryVariable$$' -update >/dev/null || { echo '.env.example was not regenerated' >&2; exit 1; }
	@go test -count=1 ./internal/permissions -run '^TestThePageSaysWhatTheRulesSay$$' -update >/dev/null || { echo 'docs/permissions.md was not regenerated' >&2; exit 1; }
	@go test -count=1 ./docs/schemas -run '^TestTheAsyncAPIDocumentIsTrue$$' -update >/dev/null || { echo 'docs/schemas/asyncapi.yaml was not regenerated' >&2; exit 1; }
	@go test -count=1 ./internal/hold -run '^TestThePageHasEachKind$$' -update >/dev/null || { echo 'docs/holds.md was not regenerated' >&2; exit 1; }
	@go test -count=1 ./docs -run '^TestThePageHasEachMetric$$' -update >/dev/null || { echo 'docs/metrics.md was not regenerated' >&2; exit 1; }

# One run of the demo is recorded from its terminal, and its dashboard pictured when it has seen two drops of the capacity.
.PHONY: docs-pictures
docs-pictures: build ## record the demo and take a picture of its dashboard; takes about a minute, needs chromium
	go -C tools build -o ../bin/ ./record ./browser/shots
	export STAGE_HTTP_ADDR=127.0.0.1:19464; \
	bin/shots -url "http://$$STAGE_HTTP_ADDR/" -after 42s -height 860 -out docs/dashboard.png & shots=$$!; \
	bin/record -out docs/demo.svg bin/stage demo && wait $$shots
	bin/stage demo --compare --svg docs/compare.svg

.PHONY: image
image: ## build the container image into dist/ with Go alone, with an SBOM for each platform
	go -C tools run ./release -images '$(PLATFORMS)' -version '$(VERSION)' $(BUILD)

.PHONY: release
release: bin/helm ## build a release into dist/: archives, SBOMs, image, chart, checksums
	rm -rf dist && mkdir -p dist/chart
	cp -r deploy/helm/llm-stage dist/chart
	find dist/chart -exec touch -d @0 {} +
	bin/helm package dist/chart/llm-stage --version '$(RELEASE:v%=%)' --app-version '$(RELEASE)' -d dist
	rm -r dist/chart
	go -C tools run ./release -archives '$(ARCHIVES)' -images '$(PLATFORMS)' -version '$(RELEASE)' $(BUILD)
	cd dist && sha256sum * >SHA256SUMS

.PHONY: publish
publish: bin/crane bin/helm ## push the image and the chart in dist/ to REGISTRY, with the credentials of docker login
	rm -rf bin/layout && mkdir -p bin/layout
	tar -xf dist/llm-stage-image.tar -C bin/layout
	bin/crane push bin/layout '$(REGISTRY)/stage:$(RELEASE)'
	bin/helm push 'dist/llm-stage-$(RELEASE:v%=%).tgz' 'oci://$(REGISTRY)/charts' $(if $(filter 127.0.0.1:%,$(REGISTRY)),--plain-http)

.PHONY: release-dry-run
release-dry-run: bin/crane ## build a release, publish it to a registry on loopback and inspect the result; needs no network
	tools/release/dry-run

.PHONY: release-notes
release-notes: ## print what CHANGELOG.md says about VERSION
	@awk -v version='[$(RELEASE:v%=%)]' '/^## / {on = $$2 == version; found += on; next} on; END {if (!found) exit 1}' CHANGELOG.md \
		|| { echo 'CHANGELOG.md has no section $(RELEASE:v%=%)' >&2; exit 1; }

.PHONY: test-release
test-release: ## build a release twice, compare the two, inspect, run and install it
	go -C tools vet ./release
	go -C tools test -count=1 ./release

.PHONY: chart
chart: ## regenerate the chart's goldens, values.schema.json and README
	go -C test/chart test -count=1 -update .

.PHONY: test-chart
test-chart: ## render the Helm chart and check it against its goldens and the program
	go -C test/chart test -count=1 .

.PHONY: test-chart-long
test-chart-long: ## the same with Helm 4 beside Helm 3, and against Kubernetes, the operators, and Prometheus, which evaluates the alerts
	go -C test/chart vet -tags long .
	go -C test/chart test -tags long -count=1 .

.PHONY: test-score
test-score: ## check the chart with kube-score
	go -C test/chart/score vet .
	go -C test/chart/score test -count=1 .

# The SDKs are large: without optimization they compile in half the time, and vet would read them all.
.PHONY: test-sdk
test-sdk: ## check requests, and the answers of the built-in LLM, against the providers' own SDKs
	go -C test/sdk test -count=1 -vet=off -gcflags='github.com/openai/...=-N -l' -gcflags='github.com/anthropics/...=-N -l' .

# KEDA has every cloud's SDK in it: without optimization it compiles in half the time.
.PHONY: test-kube
test-kube: ## install the chart on a real Kubernetes and scale it by a real KEDA, all built from Go modules; slow, needs 10 GB of disk
	version=$$(go -C test/chart list -m -f '{{.Version}}' k8s.io/kubernetes); \
	go -C test/chart build -ldflags "-X k8s.io/component-base/version.gitVersion=$$version" -o kube/bin/ \
		go.etcd.io/etcd/server/v3 k8s.io/kubernetes/cmd/kube-{apiserver,controller-manager,scheduler} sigs.k8s.io/kwok/cmd/kwok
	go -C test/chart build -o kube/bin/helm3 helm.sh/helm/v3/cmd/helm
	go -C test/chart build -o kube/bin/helm4 helm.sh/helm/v4/cmd/helm
	keda=$$(go mod download -json "$$(sed -n 's/^const keda = "\(.*\)"$$/\1/p' test/chart/kube/cluster_test.go)" | sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p'); \
	for program in operator adapter; do go -C "$$keda" build -gcflags='all=-N -l -dwarf=false' -ldflags='-s -w' -o '$(CURDIR)'/test/chart/kube/bin/keda-$$program ./cmd/$$program; done
	go -C test/chart vet ./kube
	go -C test/chart test -count=1 -v -timeout 20m ./kube

.PHONY: tidy
tidy: ## tidy all modules; TIDY=-diff only shows what would change
	find . -name go.mod -not -path './bin/*' -not -path './dist/*' | sort | while read -r module; do \
		go -C "$${module%/go.mod}" mod tidy $(TIDY); \
	done

.PHONY: ci
ci: ## run what CI runs for each change; takes about ten minutes
	.ci/run

.PHONY: ci-long
ci-long: ## run what CI runs at night; .ci/long STEP... runs some of it; takes more than an hour
	.ci/long

# Names are those of directories: make mutants MUTATED=pool
MUTATED ?= consumer sequencer pool aimd internal/executor internal/lane
# More packages whose tests judge: make mutants MUTATED=internal/executor WITH=internal/stage
WITH    ?=
.PHONY: mutants
mutants: ## change the program in N places of each MUTATED package, one at a time, and count the changes that the tests notice
	@mkdir -p bin
	go -C tools build -o ../bin/ ./mutants
	bin/mutants -n $(N) -seed $(SEED) -with '$(WITH)' $(MUTATED)

.PHONY: tools
tools: $(TOOLS) ## build the pinned tools into bin/

bin/golangci-lint: TOOL = github.com/golangci/golangci-lint/v2/cmd/golangci-lint
bin/benchstat: TOOL = golang.org/x/perf/cmd/benchstat
bin/crane: TOOL = github.com/google/go-containerregistry/cmd/crane
$(TOOLS): tools/go.mod tools/go.sum
	go -C tools build -o ../$@ $(TOOL)

# The Helm by which the chart is tested packages it too.
bin/helm: test/chart/go.mod test/chart/go.sum
	go -C test/chart build -o ../../bin/helm helm.sh/helm/v4/cmd/helm

.PHONY: clean
clean: ## remove everything that these targets build
	rm -rf bin dist coverage.out
