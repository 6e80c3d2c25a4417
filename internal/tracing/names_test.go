package tracing

import (
	"testing"

	"go.opentelemetry.io/otel/attribute"
	genai "go.opentelemetry.io/otel/semconv/v1.41.0" // the last one that has generative AI
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// The names must be those of the conventions' own packages.
func TestNamesAreThoseOfTheConventions(t *testing.T) {
	for ours, theirs := range map[attribute.Key]attribute.Key{
		attrServiceName:            semconv.ServiceNameKey,
		attrServiceVersion:         semconv.ServiceVersionKey,
		attrServiceInstanceID:      semconv.ServiceInstanceIDKey,
		attrMessagingSystem:        semconv.MessagingSystemKey,
		attrMessagingOperationName: semconv.MessagingOperationNameKey,
		attrMessagingOperationType: semconv.MessagingOperationTypeKey,
		attrMessagingDestination:   semconv.MessagingDestinationNameKey,
		attrMessagingTemplate:      semconv.MessagingDestinationTemplateKey,
		attrMessagingPartition:     semconv.MessagingDestinationPartitionIDKey,
		attrMessagingGroup:         semconv.MessagingConsumerGroupNameKey,
		attrMessagingMessageID:     semconv.MessagingMessageIDKey,
		attrMessagingBodySize:      semconv.MessagingMessageBodySizeKey,
		AttrServerAddress:          semconv.ServerAddressKey,
		AttrServerPort:             semconv.ServerPortKey,
		attrHTTPStatus:             semconv.HTTPResponseStatusCodeKey,
		attrHTTPResendCount:        semconv.HTTPRequestResendCountKey,
		AttrErrorType:              semconv.ErrorTypeKey,
		AttrGenAIOperation:         genai.GenAIOperationNameKey,
		AttrGenAIProvider:          genai.GenAIProviderNameKey,
		AttrGenAIRequestModel:      genai.GenAIRequestModelKey,
		attrGenAITemperature:       genai.GenAIRequestTemperatureKey,
		attrGenAIMaxTokens:         genai.GenAIRequestMaxTokensKey,
		attrGenAIResponseModel:     genai.GenAIResponseModelKey,
		attrGenAIResponseID:        genai.GenAIResponseIDKey,
		attrGenAIFinishReasons:     genai.GenAIResponseFinishReasonsKey,
		attrGenAIInputTokens:       genai.GenAIUsageInputTokensKey,
		attrGenAIOutputTokens:      genai.GenAIUsageOutputTokensKey,
		attrGenAICachedTokens:      genai.GenAIUsageCacheReadInputTokensKey,
		attrGenAICacheWrites:       genai.GenAIUsageCacheCreationInputTokensKey,
		attrGenAIReasoningTokens:   genai.GenAIUsageReasoningOutputTokensKey,
	} {
		if ours != theirs {
			t.Errorf("got %s, want %s", ours, theirs)
		}
	}
	if genai.GenAIOperationNameChat.Value.AsString() != "chat" || semconv.MessagingOperationTypeProcess.Value.AsString() != "process" {
		t.Error("the conventions name the operations differently")
	}
	for provider, want := range map[string]attribute.KeyValue{
		"openai": genai.GenAIProviderNameOpenAI, "openai-responses": genai.GenAIProviderNameOpenAI, "azure": genai.GenAIProviderNameAzureAIOpenAI,
		"anthropic": genai.GenAIProviderNameAnthropic, "gemini": genai.GenAIProviderNameGCPGemini,
		"vertex":  genai.GenAIProviderNameGCPVertexAI,
		"bedrock": genai.GenAIProviderNameAWSBedrock,
	} {
		if got := GenAIProvider(provider); got != want.Value.AsString() {
			t.Errorf("provider %s: got %s, want %s", provider, got, want.Value.AsString())
		}
	}
}
