package llm

// meaning is what a provider's word for an error means.
type meaning uint8

const (
	meansNothing meaning = iota
	meansCapacity
	meansTransient
	meansPermanent
	meansFatal
	meansNoCredit // fatal: no credit, or a limit on spending or of a day is reached
	meansDisabled // fatal: the account itself was closed
	meansFiltered
	meansRefused
	meansUnknownModel
	meansForbidden
	meansQuota // capacity, whatever the status
)

// words holds what the documented codes and types of providers mean where that is more
// than their status shows, or where they are inside a 200. One table serves all
// providers: the words that mean something else at another are handled before, as
// dashScopeLimit and errorType do. Numbers are not in it.
var words = map[string]meaning{
	// There is no room now.
	"slow_down":                    meansCapacity, // OpenAI, 429 and 503
	"server_is_overloaded":         meansCapacity, // OpenAI, 503
	"rate_limit_exceeded":          meansCapacity, // OpenAI; in a failed response with status 200
	"rate_limit_error":             meansCapacity, // Anthropic
	"overloaded_error":             meansCapacity, // Anthropic
	"engine_overloaded_error":      meansCapacity, // Moonshot
	"RESOURCE_EXHAUSTED":           meansCapacity, // Gemini; per-day quotas were sorted out before
	"UNAVAILABLE":                  meansCapacity, // Gemini
	"unavailable_error":            meansCapacity, // llama.cpp while it loads the model
	"overloaded":                   meansCapacity, // text-generation-inference
	"insufficient_system_resource": meansCapacity, // DeepSeek, as the finish reason of a 200
	"capacity_exceeded":            meansCapacity, // Groq, 498
	"provider_overloaded":          meansCapacity, // OpenRouter
	// AWS, 429; a limit of a day was sorted out before.
	"ThrottlingException":         meansCapacity,
	"ModelNotReadyException":      meansCapacity, // Bedrock, 429
	"ServiceUnavailableException": meansCapacity, // AWS, 503
	"in_flight_budget_exhausted":  meansCapacity, // OpenRouter, 402
	"openrouter_in_flight_budget": meansCapacity, // OpenRouter, 402

	// Passing failures.
	"server_error":      meansTransient, // OpenAI
	"timeout_error":     meansTransient, // Anthropic
	"INTERNAL":          meansTransient, // Gemini
	"DEADLINE_EXCEEDED": meansTransient, // Gemini

	// About this row.
	"context_length_exceeded":   meansPermanent, // OpenAI
	"exceed_context_size_error": meansPermanent, // llama.cpp
	"string_above_max_length":   meansPermanent, // OpenAI
	"request_too_large":         meansPermanent, // Anthropic
	// OpenRouter, 402: one request costs more than the whole budget.
	"weight_exceeds_budget": meansPermanent,

	// Refused for its content.
	"refusal":                        meansRefused,  // OpenRouter
	"content_filter":                 meansFiltered, // OpenAI, Azure
	"content_policy_violation":       meansFiltered, // OpenAI
	"ResponsibleAIPolicyViolation":   meansFiltered, // Azure
	"invalid_prompt":                 meansFiltered, // OpenAI; errorType leaves out OpenRouter's
	"moderation_blocked":             meansFiltered, // OpenAI
	"bio_policy":                     meansFiltered, // OpenAI, 400 and in a failed response
	"cyber_policy":                   meansFiltered, // OpenAI, 400
	"misalignment_policy_violation":  meansFiltered, // OpenAI, 403, and not about the key
	"image_content_policy_violation": meansFiltered, // OpenAI, in a failed response

	// No row will succeed.
	// OpenAI, 429; dashScopeLimit leaves out DashScope's.
	"insufficient_quota":                meansFatal,
	"credit_balance_exhausted":          meansFatal, // OpenAI, 429
	"organization_spend_limit_exceeded": meansFatal, // OpenAI, 429
	"organization_usage_limit_exceeded": meansFatal, // OpenAI, 429
	"project_spend_limit_exceeded":      meansFatal, // OpenAI, 429
	"billing_hard_limit_reached":        meansFatal, // OpenAI, 429 and 400
	"billing_not_active":                meansFatal, // OpenAI, 429
	"account_deactivated":               meansFatal, // OpenAI
	"access_terminated":                 meansFatal, // OpenAI, 429
	"exceeded_current_quota_error":      meansFatal, // Moonshot, 429
	"organization_restricted":           meansFatal, // Groq, 400
	"blocked_api_access":                meansFatal, // Groq, 400: spend limit
	"enforced_spend_limit_reached":      meansFatal, // Anthropic, 429
	"billing_error":                     meansFatal, // Anthropic
	// AWS, 403: the key of the credentials is unknown.
	"UnrecognizedClientException": meansFatal,
	"InvalidClientTokenId":        meansFatal, // AWS, 403
	"ExpiredTokenException":       meansFatal, // AWS, 403 or 400
	"ExpiredToken":                meansFatal, // AWS, 403 or 400
	"RequestExpired":              meansFatal, // AWS, 400: a clock is wrong
	"InvalidSignatureException":   meansFatal, // AWS, 403 or 400
	"IncompleteSignature":         meansFatal, // AWS, 400
	"NotAuthorized":               meansFatal, // AWS, 400
	// LiteLLM's proxy, 400 or by newer versions 429.
	"budget_exceeded":      meansFatal,
	"authentication_error": meansFatal, // Anthropic
	"invalid_api_key":      meansFatal, // OpenAI
	"API_KEY_INVALID":      meansFatal, // Gemini, 400
	"FAILED_PRECONDITION":  meansFatal, // Gemini, 400: no billing, or wrong country

	// The provider does not know the model.
	"model_not_found":    meansUnknownModel, // OpenAI, 404 and 403
	"DeploymentNotFound": meansUnknownModel, // Azure, 404

	// A key without permission, or a row that a guardrail stopped.
	"permission_denied": meansForbidden, // OpenRouter, 403; spent budgets were sorted out before
}

// baseResp is MiniMax's member base_resp, which every reply contains: an error is inside
// a 200, with choices of null.
type baseResp struct {
	Code    looseText `json:"status_code"`
	Message looseText `json:"status_msg"`
}

// miniMaxCodes are the MiniMax error codes that a chat can meet. They have their own list
// because other providers give the same numbers other meanings.
var miniMaxCodes = map[string]fault{
	"1000": {Status: 500}, // unknown error
	"1001": {Status: 504}, // request timeout
	"1002": {Status: 429}, // rate limit
	"1004": {Status: 401}, // not authorized
	"1008": {means: meansNoCredit},
	"1013": {Status: 500}, // internal error
	"1024": {Status: 500}, // internal error
	"1026": {means: meansFiltered},
	"1027": {means: meansFiltered}, // the answer
	"1033": {Status: 500},          // system error
	"1039": {Status: 429},          // tokens a minute
	"1041": {Status: 429},          // connections
	"1042": {Status: 413},          // too many invisible characters, so about this row alone
	"2013": {Status: 400},          // invalid parameters
	"2045": {Status: 429},          // requests that grow too fast
	"2049": {Status: 401},          // invalid key
	"2056": {Status: 429},          // the limit of five hours
}

// fault returns the error that it reports, or nil.
func (b *baseResp) fault() *fault {
	if b.Code == "" || b.Code == "0" {
		return nil
	}
	f := miniMaxCodes[string(b.Code)]
	f.Code, f.Message = string(b.Code), string(b.Message)
	return &f
}
