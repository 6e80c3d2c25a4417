package config

import (
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
)

// TracingConfig is what the OTEL_* variables set for the stage itself. OpenTelemetry's
// own packages read the others (endpoint, headers, TLS, compression, timeouts, sampler,
// limits) from the environment of the process; they are only checked here, since those
// packages silently fall back to a default where a value is wrong. The zero value is off.
type TracingConfig struct {
	OTLP      bool   // spans go to a receiver, by Protocol
	Protocol  string // grpc, http/protobuf or http/json; "" without OTLP
	Console   bool   // spans are printed on standard error
	QueueSize int    // most spans that wait for an exporter, or 0 for the SDK's default
}

// Tracing returns what the OTEL_* variables set.
func (c *Config) Tracing() TracingConfig { return c.tracing }

// On reports whether there are spans to record.
func (t TracingConfig) On() bool { return t.OTLP || t.Console }

// ProtocolGRPC is the protocol of OTLP over gRPC; any other is over HTTP.
const ProtocolGRPC = "grpc"

const (
	protocolProtobuf = "http/protobuf"
	protocolJSON     = "http/json"
)

// loadTracing reads the OTEL_* variables. Where they do not switch tracing on they are
// not checked: they may be meant for other programs.
func loadTracing(environ map[string]string, found *problems) (t TracingConfig) {
	get := func(name string) string { return strings.TrimSpace(environ[name]) }
	if strings.EqualFold(get("OTEL_SDK_DISABLED"), "true") {
		return t
	}
	t.choose(get, found)
	if !t.On() {
		return t
	}
	if t.OTLP {
		t.chooseProtocol(get, found)
		checkReceiver(get, found)
	}
	checkSampler(get, found)
	if list := get("OTEL_PROPAGATORS"); list != "" && !slices.Contains(splitList(list), "tracecontext") {
		found.add("OTEL_PROPAGATORS", "%q: only tracecontext is supported, which continues the rows' traceparent; name it, or unset the variable", list)
	}
	for _, name := range []string{
		"OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_EXPORT_TIMEOUT", "OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
		"OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
	} {
		if text := get(name); text != "" {
			if n, err := strconv.Atoi(text); err != nil || n <= 0 {
				found.add(name, "%q: give a whole number above 0", text)
			}
		}
	}
	t.QueueSize, _ = strconv.Atoi(get("OTEL_BSP_MAX_QUEUE_SIZE"))
	return t
}

// choose reads where spans go.
func (t *TracingConfig) choose(get func(string) string, found *problems) {
	list := get("OTEL_TRACES_EXPORTER")
	if list == "" {
		t.OTLP = get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "" || get("OTEL_EXPORTER_OTLP_ENDPOINT") != ""
		return
	}
	for _, exporter := range splitList(list) {
		switch exporter {
		case "otlp":
			t.OTLP = true
		case "console":
			t.Console = true
		case "none":
			if exporters := splitList(list); len(exporters) > 1 {
				found.add("OTEL_TRACES_EXPORTER", "%q: none cannot be combined with others", list)
			}
		default:
			found.add("OTEL_TRACES_EXPORTER", "%q is not supported: choose otlp, console or none", exporter)
		}
	}
}

// chooseProtocol reads the protocol of OTLP.
func (t *TracingConfig) chooseProtocol(get func(string) string, found *problems) {
	name := "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
	if get(name) == "" {
		name = "OTEL_EXPORTER_OTLP_PROTOCOL"
	}
	switch t.Protocol = get(name); t.Protocol {
	case "":
		t.Protocol = protocolProtobuf
	case ProtocolGRPC, protocolProtobuf, protocolJSON:
	default:
		found.add(name, "%q is not supported: choose %s, %s or %s", t.Protocol, protocolProtobuf, protocolJSON, ProtocolGRPC)
	}
}

// checkReceiver checks the URL of the receiver and the files that a connection to it
// needs.
func checkReceiver(get func(string) string, found *problems) {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		text := get(name)
		if text == "" {
			continue
		}
		if u, err := url.Parse(text); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			found.add(name, "%q: give a URL such as http://localhost:4318", text)
		}
	}
	for _, prefix := range []string{"OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"} {
		for _, name := range []string{"CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"} {
			if path := get(prefix + name); path != "" {
				if _, err := os.ReadFile(path); err != nil {
					found.add(prefix+name, "%v: give the path of a PEM file", plainPathError(err))
				}
			}
		}
		if c := get(prefix + "COMPRESSION"); c != "" && c != "gzip" && c != "none" {
			found.add(prefix+"COMPRESSION", "%q is not supported: choose gzip or none", c)
		}
	}
}

// checkSampler checks the sampler, which the SDK reads.
func checkSampler(get func(string) string, found *problems) {
	samplers := []string{"always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"}
	name := strings.ToLower(get("OTEL_TRACES_SAMPLER"))
	if name == "" {
		return
	}
	if !slices.Contains(samplers, name) {
		found.add("OTEL_TRACES_SAMPLER", "%q is not supported: choose %s", name, orList(samplers))
	}
	if arg := get("OTEL_TRACES_SAMPLER_ARG"); arg != "" && strings.HasSuffix(name, "traceidratio") {
		if ratio, err := strconv.ParseFloat(arg, 64); err != nil || !(ratio >= 0 && ratio <= 1) {
			found.add("OTEL_TRACES_SAMPLER_ARG", "%q: give the fraction of traces to keep, from 0 to 1", arg)
		}
	}
}

// splitList splits a comma-separated list.
func splitList(text string) (words []string) {
	for word := range strings.SplitSeq(text, ",") {
		words = append(words, strings.TrimSpace(word))
	}
	return words
}
