package tracing

import "go.opentelemetry.io/otel/attribute"

// All names in traces, which metrics share. docs/tracing.md explains them.
//
// The names of OpenTelemetry's semantic conventions are written out here, and a test
// compares them with its packages. The conventions for generative AI move between
// packages and are not stable yet, so a constant from there could change our spans by an
// upgrade.

// ScopeName is the instrumentation scope of all spans and metrics.
const ScopeName = "github.com/llm-stage/stage"

// defaultServiceName is the service if neither OTEL_SERVICE_NAME nor
// OTEL_RESOURCE_ATTRIBUTES names one.
const defaultServiceName = "llm-stage"

// Headers of the W3C trace context, as a row may carry them and a result does.
const (
	headerTraceParent = "traceparent"
	headerTraceState  = "tracestate"
)

// Resource.
const (
	attrServiceName       = attribute.Key("service.name")
	attrServiceVersion    = attribute.Key("service.version")
	attrServiceInstanceID = attribute.Key("service.instance.id") // the run id
)

// Span of a row, of kind consumer: "process <input subject>".
const (
	attrMessagingSystem        = attribute.Key("messaging.system")
	attrMessagingOperationName = attribute.Key("messaging.operation.name")
	attrMessagingOperationType = attribute.Key("messaging.operation.type")
	attrMessagingDestination   = attribute.Key("messaging.destination.name")
	attrMessagingTemplate      = attribute.Key("messaging.destination.template")
	attrMessagingPartition     = attribute.Key("messaging.destination.partition.id")
	attrMessagingGroup         = attribute.Key("messaging.consumer.group.name")
	attrMessagingMessageID     = attribute.Key("messaging.message.id") // the sequence in the input stream
	attrMessagingBodySize      = attribute.Key("messaging.message.body.size")

	attrRowStream          = attribute.Key("llm_stage.row.stream")
	attrRowStateID         = attribute.Key("llm_stage.row.state_id") // as in the audit
	attrRowStatus          = attribute.Key("llm_stage.row.status")   // success, error or let_go
	attrRowSource          = attribute.Key("llm_stage.row.source")   // call, journal, dedupe or upstream
	attrRowAttempts        = attribute.Key("llm_stage.row.attempts") // without capacity retries
	attrRowCapacityRetries = attribute.Key("llm_stage.row.capacity_retries")
	attrRowQueued          = attribute.Key("llm_stage.row.queued_seconds") // taken to first call
	attrRowHeld            = attribute.Key("llm_stage.row.held_seconds")   // finished to emitted: earlier rows, audit, storing

	rowStatusAbandoned = "let_go" // another term of ownership emits it

	eventRowStarted    = "llm_stage.row.started"
	eventRowFinished   = "llm_stage.row.finished"
	eventAttemptFailed = "llm_stage.attempt_failed" // the row waits for another one, or fails
)

// Span of an attempt, of kind client: "chat <model>". The exported ones are attributes of
// the metric gen_ai.client.operation.duration, too.
const (
	AttrGenAIOperation       = attribute.Key("gen_ai.operation.name")
	AttrGenAIProvider        = attribute.Key("gen_ai.provider.name")
	AttrGenAIRequestModel    = attribute.Key("gen_ai.request.model")
	attrGenAITemperature     = attribute.Key("gen_ai.request.temperature")
	attrGenAIMaxTokens       = attribute.Key("gen_ai.request.max_tokens")
	attrGenAIResponseModel   = attribute.Key("gen_ai.response.model")
	attrGenAIResponseID      = attribute.Key("gen_ai.response.id")
	attrGenAIFinishReasons   = attribute.Key("gen_ai.response.finish_reasons")
	attrGenAIInputTokens     = attribute.Key("gen_ai.usage.input_tokens")
	attrGenAIOutputTokens    = attribute.Key("gen_ai.usage.output_tokens")
	attrGenAICachedTokens    = attribute.Key("gen_ai.usage.cache_read.input_tokens")
	attrGenAICacheWrites     = attribute.Key("gen_ai.usage.cache_creation.input_tokens")
	attrGenAIReasoningTokens = attribute.Key("gen_ai.usage.reasoning.output_tokens")
	AttrServerAddress        = attribute.Key("server.address")
	AttrServerPort           = attribute.Key("server.port")
	attrHTTPStatus           = attribute.Key("http.response.status_code")
	attrHTTPResendCount      = attribute.Key("http.request.resend_count")
	AttrErrorType            = attribute.Key("error.type")

	attrCallID            = attribute.Key("llm_stage.call.id")      // as in the audit
	attrCallItem          = attribute.Key("llm_stage.call.item")    // with STAGE_FOREACH the element, from 0
	attrCallAttempt       = attribute.Key("llm_stage.call.attempt") // from 1, all kinds
	attrCallStatus        = attribute.Key("llm_stage.call.status")  // success, failure, capacity_retry or unknown
	attrCallErrorClass    = attribute.Key("llm_stage.call.error_class")
	attrCallDispatchDelay = attribute.Key("llm_stage.call.dispatch_delay_seconds")
	attrCallRetryAfter    = attribute.Key("llm_stage.call.retry_after_seconds")
	attrCallCost          = attribute.Key("llm_stage.call.cost_usd")
	attrCallProbe         = attribute.Key("llm_stage.call.probe") // it probes whether a pause may end
)

// Operation returns the value of gen_ai.operation.name for a call that answers a prompt, or
// makes vectors.
func Operation(embeds bool) string {
	if embeds {
		return "embeddings"
	}
	return "chat"
}

// GenAIProvider is the conventions' name of a provider; one that they do not know keeps
// its own.
func GenAIProvider(provider string) string {
	switch provider {
	case "openai-responses":
		return "openai"
	case "azure":
		return "azure.ai.openai"
	case "gemini":
		return "gcp.gemini"
	case "vertex":
		return "gcp.vertex_ai"
	case "bedrock":
		return "aws.bedrock"
	default:
		return provider
	}
}
