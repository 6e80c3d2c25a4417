package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
)

// reasons names the purpose of each direct dependency.
var reasons = map[string]string{
	"go.yaml.in/yaml/v4":                                                "lookups, prices and lists of stages in YAML",
	"cloud.google.com/go/compute/metadata":                              "the metadata server of Google",
	"github.com/Azure/azure-sdk-for-go/sdk/azcore":                      "Azure's errors and clouds",
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity":                  "credentials of Entra",
	"github.com/aws/aws-sdk-go-v2":                                      "AWS's signatures",
	"github.com/aws/aws-sdk-go-v2/config":                               "credentials of AWS",
	"github.com/aws/aws-sdk-go-v2/credentials":                          "assumed roles of AWS",
	"github.com/aws/smithy-go":                                          "AWS's errors and middleware",
	"github.com/mattn/go-runewidth":                                     "width of characters in tables",
	"golang.org/x/oauth2":                                               "credentials of Google",
	"golang.org/x/sys":                                                  "signals, terminal",
	"github.com/nats-io/jwt/v2":                                         "the server's; named by tests of logins",
	"github.com/nats-io/nats-server/v2":                                 "the embedded server of `process`, `demo` and `run` without a URL; a real server in tests",
	"github.com/nats-io/nats.go":                                        "the client",
	"github.com/nats-io/nkeys":                                          "the client's; named by tests of logins",
	"github.com/prometheus/client_golang":                               "/metrics",
	"github.com/santhosh-tekuri/jsonschema/v6":                          "STAGE_RESPONSE_SCHEMA_FILE",
	"github.com/dlclark/regexp2/v2":                                     "patterns of a schema that Go's regexp refuses",
	"github.com/go-logr/logr":                                           "OpenTelemetry's own log",
	"github.com/gofrs/flock":                                            "one process at a time opens a store",
	"github.com/sethvargo/go-envconfig":                                 "reads the environment",
	"github.com/spf13/cobra":                                            "commands, flags, help",
	"github.com/spf13/pflag":                                            "flags of cobra, one for each variable",
	"github.com/vbauerster/mpb/v8":                                      "the bar of `process` and `demo`",
	"go.opentelemetry.io/otel":                                          "tracing, off unless OTEL_* turn it on",
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc":   "spans over gRPC",
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp":   "spans over HTTP",
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace":             "OTEL_TRACES_EXPORTER=console",
	"go.opentelemetry.io/contrib/bridges/prometheus":                    "metrics of Prometheus for OTLP",
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc": "metrics over gRPC",
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp": "metrics over HTTP",
	"go.opentelemetry.io/otel/sdk/metric":                               "the interval of exported metrics",
	"go.opentelemetry.io/otel/sdk":                                      "batches and resources of spans",
	"go.opentelemetry.io/otel/trace":                                    "the interface of spans",
	"go.opentelemetry.io/proto/otlp":                                    "the exporters'; named by the tests' receiver of spans",
	"golang.org/x/sync":                                                 "errgroup",
	"golang.org/x/text":                                                 "upper and lower case in templates",
	"golang.org/x/term":                                                 "is standard error a terminal",
	"google.golang.org/grpc":                                            "the gRPC exporter's; named by the tests' receiver of spans",
	"google.golang.org/protobuf":                                        "of the exporters and the metrics; named by the tests' receiver of spans",
}

// binary prints the size of the program and each direct dependency's share of it, what
// its packages' init takes at each start, and what it holds while it waits for rows, with
// a server elsewhere and with its own.
func (s *site) binary(ctx context.Context, _ int) error {
	info, err := os.Stat(s.stage)
	if err != nil {
		return err
	}
	fmt.Printf("\n**binary**: %.1f MiB stripped. A direct dependency's share is what would go with it: its packages, and those that nothing else needs\n\n", float64(info.Size())/(1<<20))
	sizes, err := s.symbols(ctx)
	if err != nil {
		return err
	}
	graph, err := importsOf(ctx)
	if err != nil {
		return err
	}
	direct, err := lines(ctx, "go", "list", "-m", "-f", "{{if not (or .Indirect .Main)}}{{.Path}}{{end}}", "all")
	if err != nil {
		return err
	}
	whole := graph.size(sizes, func(string) bool { return false })
	type share struct {
		module string
		part   float64
	}
	var shares []share
	var absent []string
	for _, module := range direct {
		part := 1 - graph.size(sizes, func(m string) bool { return m == module })/whole
		if part == 0 {
			absent = append(absent, module)
		} else {
			shares = append(shares, share{module, part})
		}
	}
	sort.Slice(shares, func(i, j int) bool { return shares[i].part > shares[j].part })
	fmt.Println("| dependency | share | MiB | what for |\n| --- | --- | --- | --- |")
	for _, sh := range shares {
		fmt.Printf("| %s | %.1f%% | %.1f | %s |\n", sh.module, 100*sh.part, sh.part*float64(info.Size())/(1<<20), reasons[sh.module])
	}
	tracing := 1 - graph.size(sizes, func(m string) bool {
		return strings.HasPrefix(m, "go.opentelemetry.io/") || strings.HasPrefix(m, "google.golang.org/")
	})/whole
	fmt.Printf("| go.opentelemetry.io and google.golang.org together | %.1f%% | %.1f | tracing, with all that several of its parts need |\n", 100*tracing, tracing*float64(info.Size())/(1<<20))
	fmt.Printf("\nFor tests alone, and not in the program: %s.\n", strings.Join(absent, ", "))
	if err := s.inits(ctx); err != nil {
		return err
	}
	return s.idles(ctx)
}

// symbols returns the bytes of each package's symbols in the program.
func (s *site) symbols(ctx context.Context) (map[string]float64, error) {
	path := filepath.Join(s.dir, "stage-symbols")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", path, stagePackage).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, out)
	}
	list, err := lines(ctx, "go", "tool", "nm", "-size", path)
	if err != nil {
		return nil, err
	}
	sizes := make(map[string]float64)
	for _, line := range list {
		f := strings.Fields(line)
		if len(f) < 4 || !strings.ContainsAny(f[2], "TtRrDd") {
			continue
		}
		n, err := strconv.ParseFloat(f[1], 64)
		if err != nil || n > 16<<20 { // memory that is zero at the start is not in the file
			continue
		}
		sizes[packageOf(f[3])] += n
	}
	return sizes, nil
}

// packageOf is the package of a symbol: what is before the first dot after the last
// slash, of the part before its type arguments.
func packageOf(symbol string) string {
	symbol, _, _ = strings.Cut(symbol, "[")
	symbol = strings.TrimPrefix(symbol, "type:.eq.")
	symbol, _, _ = strings.Cut(symbol, "(")
	slash := strings.LastIndex(symbol, "/") + 1
	name, _, _ := strings.Cut(symbol[slash:], ".")
	return strings.ReplaceAll(symbol[:slash]+name, "%2e", ".")
}

// imports is which packages a package imports, and its module.
type imports map[string]struct {
	module string
	of     []string
}

func importsOf(ctx context.Context) (imports, error) {
	list, err := lines(ctx, "go", "list", "-deps", "-f", `{{.ImportPath}} {{if .Module}}{{.Module.Path}}{{else}}std{{end}} {{join .Imports " "}}`, stagePackage)
	if err != nil {
		return nil, err
	}
	all := make(imports)
	for _, line := range list {
		f := strings.Fields(line)
		p := all[f[0]]
		p.module, p.of = f[1], f[2:]
		all[f[0]] = p
	}
	return all, nil
}

// size is that of all packages that the program reaches without those of some modules.
func (g imports) size(sizes map[string]float64, without func(module string) bool) (sum float64) {
	seen := make(map[string]bool)
	next := []string{stagePackage}
	for len(next) > 0 {
		path := next[len(next)-1]
		next = next[:len(next)-1]
		if p := g[path]; !seen[path] && !without(p.module) {
			seen[path] = true
			sum += sizes[path]
			next = append(next, p.of...)
		}
	}
	return sum
}

// inits prints what the packages' init takes at a start, the least of some.
func (s *site) inits(ctx context.Context) error {
	type cost struct{ ms, kib float64 }
	least := make(map[string]cost)
	for range 20 {
		cmd := exec.CommandContext(ctx, s.stage, "version")
		cmd.Env = []string{"GODEBUG=inittrace=1", "HOME=" + s.dir}
		var out bytes.Buffer
		cmd.Stderr = &out
		if err := cmd.Run(); err != nil {
			return err
		}
		for line := range strings.Lines(out.String()) { // init PACKAGE @1.2 ms, 0.3 ms clock, 456 bytes, 7 allocs
			f := strings.Fields(line)
			if len(f) < 10 || f[0] != "init" {
				continue
			}
			ms, _ := strconv.ParseFloat(f[4], 64) // 0 serves as well as an error
			n, _ := strconv.ParseFloat(f[7], 64)
			if old, known := least[f[1]]; !known || ms < old.ms {
				least[f[1]] = cost{ms, n / 1024}
			}
		}
	}
	var all cost
	paths := make([]string, 0, len(least))
	for path, c := range least {
		all.ms, all.kib = all.ms+c.ms, all.kib+c.kib
		paths = append(paths, path)
	}
	slices.SortFunc(paths, func(a, b string) int { return int(1e3 * (least[b].ms - least[a].ms)) })
	fmt.Printf("\nPackages' init at each start of any command, the least of 20 starts: %.1f ms and %.1f MiB in all, of which\n\n| package | ms | KiB |\n| --- | --- | --- |\n", all.ms, all.kib/1024)
	for _, path := range paths[:5] {
		fmt.Printf("| %s | %.2f | %.0f |\n", path, least[path].ms, least[path].kib)
	}
	return nil
}

// idles prints what the program holds while it waits for rows.
func (s *site) idles(ctx context.Context) error {
	fmt.Println("\nWaiting for rows, pool 64:\n\n| | goroutines | heap MiB | peak MiB |\n| --- | --- | --- | --- |")
	for _, c := range []struct{ name, url string }{{"`run`, server elsewhere", s.url}, {"`run`, its own server", ""}} {
		if err := s.idling(ctx, c.name, c.url); err != nil {
			return err
		}
	}
	return nil
}

func (s *site) idling(ctx context.Context, name, url string) error {
	sc := &scenario{pool: 64, rowBytes: 1024, env: []string{"STAGE_NATS_URL=" + url, "STAGE_DATA_DIR=" + filepath.Join(s.dir, "data")}}
	return s.during(ctx, sc, "stage", 0, func(t *turn) error {
		if _, err := t.until(ctx, func(sample) bool {
			_, err := scrape(ctx, t.addr)
			return err == nil
		}); err != nil {
			return err
		}
		time.Sleep(time.Second) // it serves before it has settled
		m, err := scrape(ctx, t.addr)
		if err == nil {
			fmt.Printf("| %s | %.0f | %.1f | %.0f |\n", name, m[metricGoroutines], m[metricHeap]/(1<<20), t.peak())
		}
		return err
	})
}

// lines are what a command prints.
func lines(ctx context.Context, name string, args ...string) ([]string, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return slices.DeleteFunc(strings.Split(string(out), "\n"), func(line string) bool { return strings.TrimSpace(line) == "" }), nil
}
