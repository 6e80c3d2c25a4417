package llm

import (
	"cmp"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/llm-stage/stage/llm/schema"
)

// The providers known by name.
const (
	OpenAI          = "openai"
	OpenAIResponses = "openai-responses"
	OpenRouter      = "openrouter"
	Azure           = "azure"
	Anthropic       = "anthropic"
	Gemini          = "gemini"
	Bedrock         = "bedrock"
	Vertex          = "vertex"
	Mock            = "mock"
)

// Provider describes one provider known by name. Its variables are named after it, such
// as STAGE_LLM_OPENROUTER_API_KEY. The words of its errors are in [words], one list for
// all providers, since gateways pass on the words of others.
type Provider struct {
	// Name is the provider's name in settings, errors, events and metrics.
	Name string
	// BaseURL is the provider's own address. It is empty if each user or region has another
	// one, or if there is none.
	BaseURL string
	// Auth is how calls are authorised where there is no API key: [AuthAWS] or
	// [AuthGoogle]. It is empty where only a key authorises them.
	Auth string
	// Model is called where no model is set. If it is empty, one must be set.
	Model string
	// Keyless means that the provider takes no key at any address.
	Keyless bool
	// Compatible means that others serve the same wire format, often without a key.
	Compatible bool
	// BatchRPM is how many calls a minute a batch makes at most. 0 means no limit.
	BatchRPM int
	// Batches means that the provider has a Batch API, which llm/batchapi speaks.
	Batches bool
	// SchemaMember is the path to the schema of the reply in a request, member by member.
	// It is nil where the schema is in the system prompt, or nowhere.
	SchemaMember []string

	wire func(*ProviderConfig) Wire
	// wireOf is the wire format of a model, where not all have the same. Beside an error,
	// which says why the provider has no such model, it is not nil either.
	wireOf func(cfg *ProviderConfig, model string) (Wire, error)
	embed  func(*ProviderConfig) Wire // of TaskEmbed; nil where the provider has no embeddings
	// texts and tokens are what [Provider.EmbedLimits] returns where all models have the
	// same limits. textsOf returns the texts where models differ. A limit that is not known
	// is 0 or nil.
	texts   int
	tokens  int64
	textsOf func(model string) int
	address func(region string) string // of a region; nil where BaseURL serves all regions
	dialect schema.Dialect             // of JSON Schema
	// dialectOf returns the dialect where models or addresses differ. It is nil where they
	// don't.
	dialectOf func(address, model string) schema.Dialect
	trim      []string // from the end of an address as people copy it from the provider's page
	version   string   // appended to an address that names none
}

// providers are all known providers, in the order of the documentation. To add one, add a
// line here, its name above, and a section to docs/providers.md; its variables follow.
var providers = [...]Provider{
	{
		Name: OpenAI, Batches: true, BaseURL: "https://api.openai.com/v1", Compatible: true,
		BatchRPM: 60,
		wire:     openAIWire, trim: []string{"/chat/completions", "/embeddings"},
		embed: embeddingsWire, texts: openAITexts, tokens: openAIEmbedTokens,
		dialect: schema.OpenAIStrict, SchemaMember: []string{
			"response_format", "json_schema",
			"schema",
		},
	},
	{
		Name: OpenAIResponses, Batches: true, BaseURL: "https://api.openai.com/v1",
		Compatible: true,
		wire:       func(*ProviderConfig) Wire { return Responses{} }, trim: []string{"/responses"},
		dialect: schema.OpenAIStrict, SchemaMember: []string{"text", "format", "schema"},
	},
	{
		Name: OpenRouter, BaseURL: "https://openrouter.ai/api/v1", BatchRPM: 100,
		wire:  func(*ProviderConfig) Wire { return ChatCompletions{FileURLs: true} },
		trim:  []string{"/chat/completions", "/embeddings"},
		embed: embeddingsWire, texts: openAITexts, tokens: openAIEmbedTokens,
		dialect: schema.OpenAIStrict, SchemaMember: []string{
			"response_format", "json_schema",
			"schema",
		},
	},
	{
		Name: Azure, Batches: true, wire: azureWire, trim: []string{"/openai/v1", "/openai"},
		embed: func(cfg *ProviderConfig) Wire {
			return Embeddings{
				Azure: true, AzureAPIVersion: cfg.AzureAPIVersion, VectorFormat: cfg.Vectors,
			}
		}, texts: openAITexts, tokens: openAIEmbedTokens,
		dialect: schema.AzureStrict, SchemaMember: []string{
			"response_format", "json_schema",
			"schema",
		},
	},
	{
		Name: Anthropic, Batches: true, BaseURL: "https://api.anthropic.com/v1", BatchRPM: 60,
		wire: anthropicWire, trim: []string{"/messages"}, version: "/v1",
		dialectOf: anthropicDialect,
	},
	{
		Name: Gemini, Batches: true, BaseURL: "https://generativelanguage.googleapis.com/v1beta",
		wire: func(*ProviderConfig) Wire { return GenerateContent{} }, version: "/v1beta",
		embed:   func(cfg *ProviderConfig) Wire { return BatchEmbedContents{cfg.Vectors} },
		texts:   100,
		dialect: schema.GeminiOutput, SchemaMember: []string{
			"generationConfig",
			"responseJsonSchema",
		},
	},
	{
		Name: Bedrock, Auth: AuthAWS, address: bedrockAddress,
		wire: func(*ProviderConfig) Wire { return Converse{} }, dialectOf: bedrockDialect,
		embed:        func(cfg *ProviderConfig) Wire { return InvokeEmbeddings{cfg.Vectors} },
		textsOf:      bedrockTexts,
		SchemaMember: []string{"outputConfig", "textFormat", "structure", "jsonSchema", "schema"},
	},
	{
		Name: Vertex, Auth: AuthGoogle, address: vertexAddress, version: "/v1",
		wire: func(cfg *ProviderConfig) Wire {
			wire, _ := vertexWire(cfg, cfg.Model)
			return wire
		},
		wireOf: vertexWire, dialectOf: vertexDialect,
		embed: func(cfg *ProviderConfig) Wire {
			return Predict{
				VertexAI{Project: cfg.Project, Region: cmp.Or(cfg.Region, vertexGlobal)},
				cfg.Vectors,
			}
		},
		textsOf: vertexTexts, tokens: predictTokens,
		SchemaMember: []string{"generationConfig", "responseJsonSchema"},
	},
	{
		Name: Mock, Batches: true, Model: "mock", Keyless: true,
		wire:  func(*ProviderConfig) Wire { return ChatCompletions{} },
		trim:  []string{"/chat/completions"},
		embed: embeddingsWire, texts: openAITexts, tokens: openAIEmbedTokens,
	},
}

// Providers returns the names that [NewProvider] knows.
func Providers() []string {
	names := make([]string, len(providers))
	for i := range providers {
		names[i] = providers[i].Name
	}
	return names
}

// LookupProvider returns the description of a provider.
func LookupProvider(name string) (p Provider, ok bool) {
	i := slices.IndexFunc(providers[:], func(p Provider) bool { return p.Name == name })
	if i < 0 {
		return Provider{}, false
	}
	return providers[i], true
}

func openAIWire(cfg *ProviderConfig) Wire {
	// Azure and OpenAI itself refuse max_tokens for newer models; of the compatible
	// servers some know nothing else.
	u, err := url.Parse(cfg.BaseURL)
	return ChatCompletions{MaxCompletionTokens: err == nil && isOpenAI(u.Hostname())}
}

// OpenAI's limits of one call of its embeddings. Servers with a wire format like its own
// mostly have them, too.
const (
	openAITexts       = 2048
	openAIEmbedTokens = 300_000
)

// EmbedLimits returns how many texts a model takes in one call of [TaskEmbed], and how many
// tokens these may have together. 0 is no known limit.
func (p *Provider) EmbedLimits(model string) (texts int, tokens int64) {
	if p.textsOf != nil {
		return p.textsOf(model), p.tokens
	}
	return p.texts, p.tokens
}

func embeddingsWire(cfg *ProviderConfig) Wire {
	return Embeddings{VectorFormat: cfg.Vectors}
}

// embedders are the names of the providers that have embeddings.
func embedders() (names []string) {
	for i := range providers {
		if providers[i].embed != nil {
			names = append(names, providers[i].Name)
		}
	}
	return names
}

func isOpenAI(host string) bool {
	return host == "api.openai.com" || strings.HasSuffix(host, ".api.openai.com")
}

func anthropicWire(cfg *ProviderConfig) Wire {
	u, err := url.Parse(cfg.BaseURL)
	return Messages{Bedrock: err == nil && isBedrock(u.Hostname())}
}

// anthropicDialect returns what an address of Anthropic's format accepts as a schema.
func anthropicDialect(address, _ string) schema.Dialect {
	if u, err := url.Parse(address); err == nil && isBedrock(u.Hostname()) {
		return schema.PromptOnly
	}
	return schema.AnthropicOutput
}

// isBedrock reports whether a host is one of Amazon Bedrock, such as
// bedrock-mantle.us-east-1.api.aws or an endpoint of it within a private network.
func isBedrock(host string) bool {
	return (strings.HasSuffix(host, ".amazonaws.com") || strings.HasSuffix(host, ".api.aws")) &&
		(strings.Contains(host, "bedrock-runtime.") || strings.Contains(host, "bedrock-mantle."))
}

func azureWire(cfg *ProviderConfig) Wire {
	v := cfg.AzureAPIVersion
	return ChatCompletions{
		Azure: true, AzureAPIVersion: v, MaxCompletionTokens: v == "" || v >= "2024-09-01",
	}
}

// format returns the wire format of a model.
func (p *Provider) format(cfg *ProviderConfig, model string) (Wire, error) {
	if p.wireOf != nil {
		return p.wireOf(cfg, model)
	}
	return p.wire(cfg), nil
}

// SpeaksChat reports whether the provider's replies are chat completions.
func (p *Provider) SpeaksChat() bool {
	_, ok := p.wire(&ProviderConfig{}).(ChatCompletions)
	return ok
}

// Check reports why a request can't be sent to the provider, whatever its address: an
// [*Error] with [ReasonInvalidRow], as [Client.Prepare] returns it. It needs no key. Of
// media that have not been read it says nothing.
func (p *Provider) Check(r *Request) error {
	// Whether there is such a model depends on the rest.
	wire, _ := p.format(&ProviderConfig{}, r.Model)
	err := wire.check(r)
	if err == nil && isDescribed(r.Messages) {
		err = wire.media().check(r.Messages)
	}
	if err != nil {
		return &Error{Provider: p.Name, Class: Permanent, Reason: ReasonInvalidRow, Err: err}
	}
	return nil
}

// base corrects an address as people copy it from a provider's page: without the version,
// or with the path that the wire format appends itself.
func (p *Provider) base(address string) string {
	address = strings.TrimRight(address, "/")
	for _, end := range p.trim {
		address = strings.TrimSuffix(address, end)
	}
	last := path.Base(address)
	if p.version == "" || address == "" || len(last) > 1 && last[0] == 'v' && last[1] >= '0' &&
		last[1] <= '9' {
		return address
	}
	return address + p.version
}

// MediaTokens estimates the tokens of the media in messages to a model, by the provider's
// published rule.
func (p *Provider) MediaTokens(model string, messages []Message) int64 {
	wire, _ := p.format(&ProviderConfig{}, model)
	return wire.media().estimate(messages)
}

// Address returns the provider's own address, in a region where each has another. It is
// empty if each user has another, if there is none, or if the region is missing or is no
// name of one.
func (p *Provider) Address(region string) string {
	switch {
	case p.address == nil:
		return p.BaseURL
	case strings.Trim(region, regionBytes) != "":
		return ""
	}
	return p.address(region)
}

// needsKey reports whether calls need a key: at the provider's own address, or at any
// address if it has none.
func (p *Provider) needsKey(address string) bool {
	return !p.Keyless && (address == "" || p.BaseURL == "")
}

// SchemaNote describes in one line how a model of the provider, at an address, may
// enforce less than the whole schema, and where the schema first leaves what the provider
// accepts. It is "" where the provider enforces all of it, and for [Mock]. A server that
// is compatible with OpenAI may enforce more than OpenAI. Replies are validated in any
// case.
func (p *Provider) SchemaNote(address, model string, s *schema.Schema) string {
	if p.dialectOf != nil {
		return s.Note(p.dialectOf(address, model))
	}
	return s.Note(p.dialect)
}
