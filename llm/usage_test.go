package llm

import (
	"cmp"
	"encoding/json"
	"testing"
)

// TestUsageIsReadAsEachProviderMeansIt holds usage objects as servers send them, with where each was read.
func TestUsageIsReadAsEachProviderMeansIt(t *testing.T) {
	for _, test := range []struct {
		name string
		wire Wire
		body string // the usage object
		want string
	}{
		// xAI: total = prompt + completion + reasoning, and the cost of 1,176,500 ticks is that of 229 tokens of output.
		// vercel/ai, packages/xai/src/__fixtures__/xai-text.json; ticks: xai-org/xai-sdk-python 1.19.0, src/xai_sdk/cost.py.
		{
			"xai",
			ChatCompletions{},
			`{"prompt_tokens":12,"completion_tokens":1,"total_tokens":241,"prompt_tokens_details":{"text_tokens":12,"cached_tokens":2},"completion_tokens_details":{"reasoning_tokens":228},"cost_in_usd_ticks":1176500}`,
			`{"prompt_tokens":12,"completion_tokens":229,"total_tokens":241,"cached_tokens":2,"reasoning_tokens":228,"cost":0.00011765}`,
		},
		// vercel/ai, packages/xai/src/convert-xai-chat-usage.test.ts: cached tokens in addition to the prompt, which the total counts.
		{
			"xai, cached beside the prompt",
			ChatCompletions{},
			`{"prompt_tokens":4142,"completion_tokens":254,"total_tokens":8724,"prompt_tokens_details":{"cached_tokens":4328}}`,
			`{"prompt_tokens":8470,"completion_tokens":254,"total_tokens":8724,"cached_tokens":4328}`,
		},
		// vercel/ai, packages/xai/src/responses/__fixtures__/xai-x-search-tool.1.json: here output has the reasoning.
		{
			"xai responses",
			Responses{},
			`{"input_tokens":1941,"input_tokens_details":{"cached_tokens":947},"output_tokens":583,"output_tokens_details":{"reasoning_tokens":380},"total_tokens":2524,"cost_in_usd_ticks":123456}`,
			`{"prompt_tokens":1941,"completion_tokens":583,"total_tokens":2524,"cached_tokens":947,"reasoning_tokens":380,"cost":0.0000123456}`,
		},
		// openai-python 3.3.1, types/completion_usage.py and types/responses/response_usage.py.
		{
			"openai",
			ChatCompletions{},
			`{"prompt_tokens":2000,"completion_tokens":300,"total_tokens":2300,"prompt_tokens_details":{"cached_tokens":1024,"cache_write_tokens":512},"completion_tokens_details":{"reasoning_tokens":256}}`,
			`{"prompt_tokens":2000,"completion_tokens":300,"total_tokens":2300,"cached_tokens":1024,"cache_write_tokens":512,"reasoning_tokens":256}`,
		},
		{
			"openai responses",
			Responses{},
			`{"input_tokens":2000,"input_tokens_details":{"cached_tokens":1024,"cache_write_tokens":512},"output_tokens":300,"output_tokens_details":{"reasoning_tokens":256},"total_tokens":2300}`,
			`{"prompt_tokens":2000,"completion_tokens":300,"total_tokens":2300,"cached_tokens":1024,"cache_write_tokens":512,"reasoning_tokens":256}`,
		},
		// OpenRouter's own key: pydantic/pydantic-ai, tests/models/cassettes, google/gemini-2.5-flash. cost is OpenRouter's
		// charge, upstream_inference_cost the provider's: openrouter.ai/docs, usage accounting.
		{
			"openrouter own key",
			ChatCompletions{},
			`{"prompt_tokens":326,"completion_tokens":91,"total_tokens":417,"cost":0.00001,"is_byok":true,"cost_details":{"upstream_inference_cost":0.0003253,"upstream_inference_prompt_cost":9.78e-05}}`,
			`{"prompt_tokens":326,"completion_tokens":91,"total_tokens":417,"cost":0.0003353}`,
		},
		// The same corpus has calls on OpenRouter's key that report the upstream cost too: it is in the cost.
		{
			"openrouter",
			ChatCompletions{},
			`{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12,"cost":0.0133176,"is_byok":false,"prompt_tokens_details":{"cached_tokens":0,"cache_write_tokens":4},"cost_details":{"upstream_inference_cost":0.0133176}}`,
			`{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12,"cached_tokens":0,"cache_write_tokens":4,"cost":0.0133176}`,
		},
		{ // the fee alone would be too low
			"openrouter own key without the upstream cost",
			ChatCompletions{},
			`{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12,"cost":0,"is_byok":true,"cost_details":{"upstream_inference_cost":null}}`,
			`{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}`,
		},
		{
			"openrouter responses",
			Responses{}, // OpenRouterTeam/typescript-sdk 1.2.54, .speakeasy/in.openapi.yaml
			`{"input_tokens":10,"output_tokens":25,"total_tokens":35,"cost":0.25,"is_byok":true,"cost_details":{"upstream_inference_cost":0.5}}`,
			`{"prompt_tokens":10,"completion_tokens":25,"total_tokens":35,"cost":0.75}`,
		},
		// anthropic-sdk-python 0.121.0, types/usage.py, cache_creation.py, output_tokens_details.py.
		{
			"anthropic",
			Messages{},
			`{"input_tokens":10,"cache_creation_input_tokens":300,"cache_creation":{"ephemeral_5m_input_tokens":100,"ephemeral_1h_input_tokens":200},"cache_read_input_tokens":1000,"output_tokens":25,"output_tokens_details":{"thinking_tokens":15}}`,
			`{"prompt_tokens":1310,"completion_tokens":25,"total_tokens":1335,"cached_tokens":1000,"cache_write_tokens":300,"cache_write_1h_tokens":200,"reasoning_tokens":15}`,
		},
		{
			"anthropic, lifetimes alone",
			Messages{},
			`{"input_tokens":10,"cache_creation":{"ephemeral_5m_input_tokens":100,"ephemeral_1h_input_tokens":200},"output_tokens":25}`,
			`{"prompt_tokens":310,"completion_tokens":25,"total_tokens":335,"cache_write_tokens":300,"cache_write_1h_tokens":200}`,
		},
		// aws-sdk-go-v2, service/bedrockruntime 1.63.13, types.TokenUsage and CacheDetail.
		{
			"bedrock",
			Converse{},
			`{"inputTokens":10,"outputTokens":25,"totalTokens":1335,"cacheReadInputTokens":1000,"cacheWriteInputTokens":300,"cacheDetails":[{"inputTokens":200,"ttl":"1h"},{"inputTokens":100,"ttl":"5m"}]}`,
			`{"prompt_tokens":1310,"completion_tokens":25,"total_tokens":1335,"cached_tokens":1000,"cache_write_tokens":300,"cache_write_1h_tokens":200}`,
		},
		{ // with some models the total leaves out what was read from the cache
			"bedrock, another total",
			Converse{},
			`{"inputTokens":10,"outputTokens":25,"totalTokens":35,"cacheReadInputTokens":1000,"cacheWriteInputTokens":0}`,
			`{"prompt_tokens":1010,"completion_tokens":25,"total_tokens":1035,"cached_tokens":1000,"cache_write_tokens":0}`,
		},
		// vercel/ai, packages/deepseek/src/chat/__fixtures__/deepseek-json.json; older replies lack the details.
		{
			"deepseek",
			ChatCompletions{},
			`{"prompt_tokens":495,"completion_tokens":144,"total_tokens":639,"prompt_tokens_details":{"cached_tokens":320},"completion_tokens_details":{"reasoning_tokens":118},"prompt_cache_hit_tokens":320,"prompt_cache_miss_tokens":175}`,
			`{"prompt_tokens":495,"completion_tokens":144,"total_tokens":639,"cached_tokens":320,"reasoning_tokens":118}`,
		},
		{
			"deepseek without details",
			ChatCompletions{},
			`{"prompt_tokens":495,"completion_tokens":144,"total_tokens":639,"prompt_cache_hit_tokens":320,"prompt_cache_miss_tokens":175}`,
			`{"prompt_tokens":495,"completion_tokens":144,"total_tokens":639,"cached_tokens":320}`,
		},
		// vercel/ai, packages/moonshotai/src/convert-moonshotai-chat-usage.ts.
		{
			"moonshot",
			ChatCompletions{},
			`{"prompt_tokens":100,"completion_tokens":5,"total_tokens":105,"cached_tokens":64}`,
			`{"prompt_tokens":100,"completion_tokens":5,"total_tokens":105,"cached_tokens":64}`,
		},
		// mistralai/client-python 2.5.1, usageinfo_dollar_defs.py.
		{
			"mistral",
			ChatCompletions{},
			`{"prompt_tokens":100,"completion_tokens":5,"total_tokens":105,"num_cached_tokens":64}`,
			`{"prompt_tokens":100,"completion_tokens":5,"total_tokens":105,"cached_tokens":64}`,
		},
		// groq-python (2026-08), types/completion_usage.py.
		{
			"groq",
			ChatCompletions{},
			`{"queue_time":0.03,"prompt_tokens":100,"completion_tokens":50,"total_tokens":150,"prompt_tokens_details":{"cached_tokens":64},"completion_tokens_details":{"reasoning_tokens":40}}`,
			`{"prompt_tokens":100,"completion_tokens":50,"total_tokens":150,"cached_tokens":64,"reasoning_tokens":40}`,
		},
		// vercel/ai, packages/alibaba/src/convert-alibaba-usage.ts: reads and writes are in the prompt.
		{
			"alibaba",
			ChatCompletions{},
			`{"prompt_tokens":100,"completion_tokens":5,"total_tokens":105,"prompt_tokens_details":{"cached_tokens":10,"cache_creation_input_tokens":64,"cache_type":"ephemeral"}}`,
			`{"prompt_tokens":100,"completion_tokens":5,"total_tokens":105,"cached_tokens":10,"cache_write_tokens":64}`,
		},
		// LiteLLM's proxy before Anthropic: the prompt of 130 is 100 + 20 read + 10 written.
		{
			"litellm",
			ChatCompletions{},
			`{"prompt_tokens":130,"completion_tokens":25,"total_tokens":155,"cache_creation_input_tokens":10,"cache_read_input_tokens":20,"prompt_tokens_details":{"text_tokens":100,"cached_tokens":20,"cache_creation_tokens":10,"cache_creation_token_details":{"ephemeral_5m_input_tokens":7,"ephemeral_1h_input_tokens":3}}}`,
			`{"prompt_tokens":130,"completion_tokens":25,"total_tokens":155,"cached_tokens":20,"cache_write_tokens":10,"cache_write_1h_tokens":3}`,
		},
		// vercel/ai, packages/perplexity/src/perplexity-language-model.ts.
		{
			"perplexity",
			ChatCompletions{},
			`{"prompt_tokens":10,"completion_tokens":50,"total_tokens":60,"reasoning_tokens":40,"cost":{"input_tokens_cost":0.1,"request_cost":0.006,"total_cost":0.106}}`,
			`{"prompt_tokens":10,"completion_tokens":50,"total_tokens":60,"reasoning_tokens":40,"cost":0.106}`,
		},
		// python-genai 2.19.0, types.py GenerateContentResponseUsageMetadata: the total is the sum of prompt, candidates, tool
		// prompt and thoughts, and the prompt has the cached content.
		{
			"gemini",
			GenerateContent{},
			`{"promptTokenCount":100,"cachedContentTokenCount":60,"candidatesTokenCount":5,"toolUsePromptTokenCount":20,"thoughtsTokenCount":30,"totalTokenCount":155}`,
			`{"prompt_tokens":120,"completion_tokens":35,"total_tokens":155,"cached_tokens":60,"reasoning_tokens":30}`,
		},
		// Gemini's OpenAI endpoint counts thoughts in the total alone: discuss.ai.google.dev, topic 127400.
		{
			"gemini, openai endpoint",
			ChatCompletions{},
			`{"completion_tokens":3,"prompt_tokens":9,"total_tokens":105}`,
			`{"prompt_tokens":9,"completion_tokens":96,"total_tokens":105}`,
		},
		// Sums that contradict themselves.
		{
			"reasoning above completion, no total",
			ChatCompletions{},
			`{"prompt_tokens":5,"completion_tokens":1,"completion_tokens_details":{"reasoning_tokens":228}}`,
			`{"prompt_tokens":5,"completion_tokens":229,"total_tokens":234,"reasoning_tokens":228}`,
		},
		{
			"a total below its parts",
			ChatCompletions{},
			`{"prompt_tokens":5,"completion_tokens":7,"total_tokens":3,"prompt_tokens_details":{"cached_tokens":9}}`,
			`{"prompt_tokens":5,"completion_tokens":7,"total_tokens":3,"cached_tokens":9}`,
		},
		{"a negative cost", ChatCompletions{}, `{"prompt_tokens":5,"completion_tokens":7,"cost":-1}`, `{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}`},
		{"a cost beyond all bounds", ChatCompletions{}, `{"prompt_tokens":5,"completion_tokens":7,"cost":1e308}`, `{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}`},
		{"the highest cost", ChatCompletions{}, `{"prompt_tokens":5,"completion_tokens":7,"cost":1e9}`, `{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12,"cost":1000000000}`},
		{"a cost without tokens", ChatCompletions{}, `{"cost":0.5}`, `{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0,"cost":0.5}`},
		{"a cost and a total", Responses{}, `{"total_tokens":3,"cost":0.5}`, `{"prompt_tokens":0,"completion_tokens":0,"total_tokens":3,"cost":0.5}`},
		{"a cost and a broken count", ChatCompletions{}, `{"prompt_tokens":5,"completion_tokens":-7,"cost":0.5}`, `{"prompt_tokens":5,"completion_tokens":0,"total_tokens":5,"cost":0.5}`},
		{"ticks without tokens", ChatCompletions{}, `{"cost_in_usd_ticks":5000000000}`, `{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0,"cost":0.5}`},
		{"no usage", ChatCompletions{}, `{"total_tokens":3}`, `null`},
	} {
		t.Run(test.name, func(t *testing.T) {
			var r Reply
			var o ending
			test.wire.readReply([]byte(`{"usage":`+test.body+`,"usageMetadata":`+test.body+`}`), &r, &o)
			if got := string(r.Usage.AppendJSON(nil)); got != test.want {
				t.Errorf("%s\n got %s\nwant %s", test.body, got, test.want)
			}
			// A result is read back by those who need its usage again: it must be the same.
			var again *Usage
			if err := json.Unmarshal([]byte(test.want), &again); err != nil || string(again.AppendJSON(nil)) != test.want {
				t.Errorf("read back: %s, %v", again.AppendJSON(nil), err)
			}
		})
	}
}

// TestTokensThatAreNotKnownAreNoZeros: a cost of the other half alone would be too low. openai-python 3.3.1
// (types/completion_usage.py, types/responses/response_usage.py) and anthropic-sdk-python 0.121.0 (types/usage.py) require
// both counts; in python-genai 2.19.0 (types.py, GenerateContentResponseUsageMetadata) all are optional.
func TestTokensThatAreNotKnownAreNoZeros(t *testing.T) {
	type body struct {
		usage string
		want  string // "": not known
	}
	for name, format := range map[string]struct {
		wire   Wire
		bodies []body
	}{
		"chat": {ChatCompletions{}, []body{
			{`{"prompt_tokens":-5,"completion_tokens":7}`, ""},
			{`{"prompt_tokens":5,"completion_tokens":0.5}`, ""},
			{`{"prompt_tokens":1e30,"completion_tokens":7}`, ""},
			{`{"prompt_tokens":12345678901234567890,"completion_tokens":7,"total_tokens":9}`, ""},
			{`{"prompt_tokens":"5","completion_tokens":7}`, ""},
			{`{"prompt_tokens":{},"completion_tokens":7,"total_tokens":12}`, ""},
			{`{"prompt_tokens":null,"completion_tokens":7}`, ""},
			{`{"prompt_tokens":5}`, ""},
			{`{"completion_tokens":7}`, ""},
			{`{"prompt_tokens":5,"total_tokens":-1}`, ""},
			{`{"prompt_tokens":5,"total_tokens":4}`, ""},
			{`{"total_tokens":4}`, ""},
			{`{"prompt_tokens":5,"completion_tokens":null,"total_tokens":12}`, `{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}`},
			{`{"completion_tokens":7,"total_tokens":12}`, `{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}`},
			{`{"prompt_tokens":5,"total_tokens":5}`, `{"prompt_tokens":5,"completion_tokens":0,"total_tokens":5}`},
			{`{"prompt_tokens":5,"completion_tokens":7,"total_tokens":-1}`, `{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}`},
			{`{"prompt_tokens":5.0,"completion_tokens":1e1}`, `{"prompt_tokens":5,"completion_tokens":10,"total_tokens":15}`},
		}},
		"responses": {Responses{}, []body{
			{`{"input_tokens":5}`, ""},
			{`{"input_tokens":5,"output_tokens":-1}`, ""},
			{`{"output_tokens":7,"total_tokens":12}`, `{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}`},
		}},
		"anthropic": {Messages{}, []body{
			{`{"input_tokens":5}`, ""},
			{`{"cache_read_input_tokens":5,"output_tokens":7}`, ""},
			{`{"input_tokens":5,"output_tokens":7,"cache_read_input_tokens":-1}`, ""},
			{`{"input_tokens":5,"output_tokens":7,"cache_creation_input_tokens":0.5}`, ""},
			{`{"input_tokens":5,"output_tokens":7,"cache_creation":{"ephemeral_1h_input_tokens":1e30}}`, ""},
			{`{"input_tokens":5,"output_tokens":7,"cache_read_input_tokens":null}`, `{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}`},
		}},
		"bedrock": {Converse{}, []body{
			{`{"inputTokens":5}`, ""},
			{`{"inputTokens":5,"totalTokens":12}`, ""},
			{`{"inputTokens":5,"outputTokens":7,"cacheReadInputTokens":-1}`, ""},
			{`{"inputTokens":5,"outputTokens":7,"cacheDetails":[{"ttl":"1h","inputTokens":0.5}]}`, ""},
		}},
		"gemini": {GenerateContent{}, []body{
			{`{"promptTokenCount":5}`, `{"prompt_tokens":5,"completion_tokens":0,"total_tokens":5}`},
			{`{"promptTokenCount":5,"totalTokenCount":12}`, `{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}`},
			{`{"candidatesTokenCount":7,"toolUsePromptTokenCount":1,"totalTokenCount":13}`, `{"prompt_tokens":6,"completion_tokens":7,"total_tokens":13}`},
			{`{"promptTokenCount":-5,"candidatesTokenCount":7}`, ""},
			{`{"promptTokenCount":5,"candidatesTokenCount":7,"thoughtsTokenCount":-1}`, ""},
			{`{"promptTokenCount":5,"candidatesTokenCount":7,"toolUsePromptTokenCount":1e30}`, ""},
			{`{"totalTokenCount":5}`, ""},
		}},
	} {
		for _, b := range format.bodies {
			var r Reply
			var o ending
			format.wire.readReply([]byte(`{"usage":`+b.usage+`,"usageMetadata":`+b.usage+`}`), &r, &o)
			if got, want := string(r.Usage.AppendJSON(nil)), cmp.Or(b.want, "null"); got != want {
				t.Errorf("%s: %s\n got %s\nwant %s", name, b.usage, got, want)
			}
		}
	}
}
