// Package config is the configuration of the program: its variables, the origin of each
// value, and the problems found.
//
// A value is searched for in layers, and the first layer that has it wins:
//
//	flag                     --pool-size 32
//	list of stages           pool_size: 32, for one stage of several in a process
//	environment              STAGE_POOL_SIZE=32
//	file of variables        --env-file, the last one first
//	default of the command
//	documented default       the tag env of the field
//
// The settings of the nats CLI rank below the files, or, where --context names a context,
// right above the environment; see [Source].
//
//	cfg, err := config.Source{Flags: flags, Environ: environ}.Load(ctx, config.NeedCalls)
//	if err != nil {
//		return err // all problems, a line each, with the variable and how to fix it
//	}
//	size := cfg.Pool.Size // in range, and consistent with the other values
//
// A new variable is one field with tags, see [Config]; nothing else lists the variables.
package config

import (
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/rowkey"
)

// Config is the whole configuration of the program. It is read by [Source.Load] from
// variables that start with STAGE_ and from the flags of the same names, from environment
// files and contexts of the nats CLI, and complete after that: defaults are filled in,
// every value is in range, and the values are consistent.
//
// Each field is one line of tags. Flags, help, checks of the value, the JSON Schema,
// .env.example and the table in docs/settings.md all follow from them:
//
//   - env: name of the variable without the prefix, and the default, as go-envconfig reads it;
//   - help: meaning of the field, which is also its documentation here;
//   - min, above, max: inclusive lower, exclusive lower and inclusive upper bound;
//   - oneof: the words allowed, or providers for the names of [llm.Providers]; {oneof} in
//     the help lists them;
//   - file, url: the value is the path of a file that must exist, or an http or https URL;
//   - holds: what a secret is that a provider gets, see secretKinds;
//   - deprecated: what to do instead of setting it, see [Field];
//   - group, on a nested struct: heading in the help.
//
// A variable set to the empty string counts as unset. The zero Config is not usable. A
// command may change a Config before it starts the parts that use it, see
// [Config.Validate]. Nobody changes it after that, so it is safe for concurrent use.
type Config struct {
	// Name distinguishes stages that share a server.
	Name string `env:"NAME, default=stage" group:"Stage" help:"name of the stage, [a-z0-9-]{1,32}; part of every durable, subject and id"`

	NATS     NATSConfig     `env:", prefix=NATS_" group:"NATS"`
	Data     DataConfig     `env:", prefix=DATA_" group:"Embedded server"`
	Input    InputConfig    `env:", prefix=INPUT_" group:"Streams and subjects"`
	Result   ResultConfig   `env:", prefix=RESULT_" group:"Streams and subjects"`
	Audit    AuditConfig    `env:", prefix=AUDIT_" group:"Streams and subjects"`
	Journal  JournalConfig  `group:"Streams and subjects"`
	Streams  StreamsConfig  `group:"Streams and subjects"`
	Window   WindowConfig   `group:"Dispatch"`
	Order    OrderConfig    `group:"Dispatch"`
	Pool     PoolConfig     `group:"Dispatch"`
	Budget   BudgetConfig   `group:"Dispatch"`
	Retry    RetryConfig    `env:", prefix=RETRY_" group:"Dispatch"`
	Lane     LaneConfig     `group:"Batch lane"`
	Task     string         `env:"TASK, default=chat" oneof:"chat embed" group:"LLM" help:"what is asked of the model: {oneof}; chat: an answer to a prompt; embed: a vector of the text that the template renders, of many rows in one call"`
	LLM      LLMConfig      `env:", prefix=LLM_" group:"LLM"`
	Embed    EmbedConfig    `env:", prefix=EMBED_" group:"Embeddings"`
	Fallback FallbackConfig `group:"LLM"`
	Prompt   PromptConfig   `group:"Prompt and result"`
	Rows     RowsConfig     `group:"Rows and failures"`
	Foreach  ForeachConfig  `group:"Fan-out"`
	Cost     CostConfig     `group:"Cost"`
	Serve    ServeConfig    `group:"Batched requests"`
	Batch    BatchConfig    `env:", prefix=BATCH_" group:"Batched requests"`
	HTTP     HTTPConfig     `group:"Operation"`
	Control  ControlConfig  `group:"Operation"`
	Process  ProcessConfig  `group:"Operation"`

	from      provenance
	telemetry telemetry
	secrets   *Secrets // must not be printed

	maxConcurrency int // see MaxConcurrency
}

// provenance is where the values of a configuration came from, and for what command.
type provenance struct {
	origins map[string]origin // of each variable's value, for stage config
	context *NATSContext      // makes the connection; nil where no context is used
	server  string            // the variable or file that named the server, or "" for STAGE_NATS_URL
	laneSet bool              // a setting of the batch lane was given

	anyInput, offline, external bool // see [Source]
}

// MaxConcurrency returns how many calls all stages of the process may have in flight at
// one account. The list of stages sets it, since no single stage could. 0 means that
// there is no such limit.
func (c *Config) MaxConcurrency() int { return c.maxConcurrency }

// NATSConfig is the server to use and how to log in.
type NATSConfig struct {
	URL         URLs   `env:"URL" help:"one or more server URLs, separated by commas; empty: the embedded server"`
	Creds       string `env:"CREDS" file:"true" help:"path of a credentials file (JWT and seed)"`
	NKey        string `env:"NKEY" file:"true" help:"path of an NKey seed file"`
	Token       Secret `env:"TOKEN" help:"token to log in with"`
	User        string `env:"USER" help:"user to log in as, with a password"`
	Password    Secret `env:"PASSWORD" help:"password of the user"`
	TLSCA       string `env:"TLS_CA" file:"true" help:"path of a PEM file with the CAs that may sign the server's certificate"`
	TLSCert     string `env:"TLS_CERT" file:"true" help:"path of the client's certificate, with its key"`
	TLSKey      string `env:"TLS_KEY" file:"true" help:"path of the client certificate's key"`
	TLSFirst    bool   `env:"TLS_FIRST, default=false" help:"start TLS before the server's greeting; the server must be configured the same way"`
	JSDomain    string `env:"JS_DOMAIN" help:"JetStream domain of the streams, where the server is not in it, such as the hub of a leaf node; empty: the server's own JetStream"`
	JSPrefix    string `env:"JS_PREFIX" help:"prefix of the subjects of the JetStream API, in place of $JS.API, where it is imported from another account; not together with a domain"`
	InboxPrefix string `env:"INBOX_PREFIX" help:"prefix of reply subjects, for users that may subscribe to their own inbox only; empty: _INBOX"`
}

// DataConfig describes the store of the embedded server.
type DataConfig struct {
	Dir  string     `env:"DIR, default=stage-data" help:"directory of the embedded server's store"`
	Sync SyncPolicy `env:"SYNC, default=always" help:"how often the store is flushed to the disk: always, or an interval such as 1s; a power cut can lose that much"`
}

// InputConfig is where rows come from.
type InputConfig struct {
	Stream  string `env:"STREAM, default=ROWS" help:"stream that rows come from"`
	Subject string `env:"SUBJECT, default=rows.>" help:"filter on the stream's subjects, gaps in the sequence are fine; contains {partition} when there is more than one"`
}

// ResultConfig is where results go.
type ResultConfig struct {
	Stream   string        `env:"STREAM, default=RESULTS" help:"stream that results go to"`
	Subject  string        `env:"SUBJECT, default=results" help:"results are published on <subject>.<name>.<partition>.rows, claims on <subject>.<name>.<partition>.claim"`
	Bucket   string        `env:"BUCKET" help:"bucket of the object store for results that are larger than the server's largest message, which name it then; empty: such a result is an error with the reason result_too_large"`
	MaxAge   time.Duration `env:"MAX_AGE, default=0" help:"age at which the owner of a partition drops results, 1s or more; verify proves the others by the chain; choose it well above the lag of whoever reads them; stage process keeps all; 0: never"`
	MaxBytes Size          `env:"MAX_BYTES, default=0" help:"size of the result stream when it is created here; full, it refuses new results rather than drop old ones; 0: unlimited" deprecated:"create the stream by stage setup --result-max-bytes, or change it by nats stream edit --max-bytes"`
}

// AuditConfig says where audit events go, and which bodies they hold.
type AuditConfig struct {
	Stream   string        `env:"STREAM, default=AUDIT" help:"stream that audit events go to"`
	Subject  string        `env:"SUBJECT, default=audit" help:"events are published on <subject>.<name>.<partition>.<kind>; the partition of run events is all"`
	MaxAge   time.Duration `env:"MAX_AGE, default=720h" help:"age at which events are dropped from a stream created here; 0: never" deprecated:"create the stream by stage setup --audit-max-age, or change it by nats stream edit --max-age"`
	MaxBytes Size          `env:"MAX_BYTES, default=0" help:"size of the audit stream when it is created here; full, it drops the oldest events; 0: unlimited" deprecated:"create the stream by stage setup --audit-max-bytes, or change it by nats stream edit --max-bytes"`
	Payloads string        `env:"PAYLOADS, default=full" oneof:"full hash none" help:"request and reply bodies in call events: {oneof}; credentials never"`
}

// JournalConfig describes the journal of replies that wait for an earlier row.
type JournalConfig struct {
	Enabled  bool          `env:"JOURNAL, default=true" help:"keep replies that wait for an earlier row, so that a crash does not pay for them again"`
	After    time.Duration `env:"JOURNAL_AFTER, default=50ms" help:"how long a reply has waited when it goes to the journal; 0: at once"`
	Stream   string        `env:"JOURNAL_STREAM, default=JOURNAL" help:"stream of the journal, on subjects journal.<name>.<partition>.<row>.<element>" deprecated:"stop the stage, then remove it; the journal is in the stream JOURNAL"`
	MaxBytes Size          `env:"JOURNAL_MAX_BYTES, default=1GiB" help:"size of the journal stream when it is created here; 0: unlimited" deprecated:"create the stream by stage setup --journal-max-bytes, or change it by nats stream edit --max-bytes"`
}

// StreamsConfig is what all streams have in common.
type StreamsConfig struct {
	DeadLetterSubject string `env:"DEAD_LETTER_SUBJECT" help:"failed rows also go here, with their original body and headers, Stage-Reason, Stage-Error, Stage-Source-Seq and Stage-Source-Subject; a stream must capture it; empty: nowhere"`
	Partitions        int    `env:"PARTITIONS, default=1" min:"1" max:"1024" help:"number of partitions, counted from 0; with more than one the input subject contains {partition}"`
	Create            bool   `env:"CREATE_STREAMS, default=true" help:"create missing streams and durables; existing streams are checked, never changed"`
	Replicas          int    `env:"STREAM_REPLICAS, default=1" min:"1" max:"5" help:"replicas of the streams created here, an odd number"`
	Storage           string `env:"STREAM_STORAGE, default=file" oneof:"file memory" help:"storage of the streams created here: {oneof}" deprecated:"create the streams by stage setup --stream-storage"`
}

// WindowConfig bounds what each partition has taken and not yet emitted.
type WindowConfig struct {
	Rows  int  `env:"WINDOW, default=1024" min:"1" max:"50000" help:"most rows taken and not yet emitted, for each partition; with STAGE_TASK=embed four times the rows of all calls in flight, if that is more"`
	Bytes Size `env:"WINDOW_BYTES, default=256MiB" min:"1MiB" help:"most bytes of rows and results taken and not yet emitted, for each partition: one process may serve all of them"`
}

// OrderConfig is the order in which the results of each partition come out.
type OrderConfig struct {
	Mode streams.Order `env:"ORDER, default=stream" oneof:"stream key none" help:"order of the results: {oneof}; stream: as the rows in the input stream; key: so within each key; none: as they are done"`
	Key  rowkey.Place  `env:"ORDER_KEY, default=subject" help:"with key: where a row's key is: subject, subject.N (its token N, from 1), header.NAME, field.NAME (top-level member of the row)"`
	Span int           `env:"ORDER_SPAN, default=65536" min:"1" max:"1000000" help:"with key and none: most rows taken above the low-water mark, at least the window" deprecated:"remove it; it is 64 times STAGE_WINDOW, at least 65536 and at most 1000000"`
}

// OfStream reports whether the results come in the order of the input stream.
func (c *OrderConfig) OfStream() bool { return c.Mode == streams.OrderStream || c.Mode == "" }

// PoolConfig is how many calls are in flight, and how fast they start.
type PoolConfig struct {
	Size              int           `env:"POOL_SIZE, default=16" min:"1" max:"10000" help:"most calls in flight, over all partitions of the process; 1 is sequential"`
	Throttle          string        `env:"THROTTLE, default=adaptive" oneof:"adaptive classic" help:"law of the dispatch rate: adaptive, or classic (the plain delay law)"`
	MinDispatchDelay  Milliseconds  `env:"MIN_DISPATCH_DELAY_MS, default=0" min:"0" help:"floor of the delay between dispatches, in milliseconds"`
	MaxDispatchDelay  Milliseconds  `env:"MAX_DISPATCH_DELAY_MS, default=5000" above:"0" help:"ceiling of that delay, at least the floor"`
	BackoffMultiplier float64       `env:"BACKOFF_MULTIPLIER, default=2.0" above:"1" max:"1000" help:"factor on the delay at a capacity error, above 1"`
	RecoveryStep      Milliseconds  `env:"RECOVERY_STEP_MS, default=50" min:"0" help:"milliseconds off the delay at a success, above 0 where the floor is 0; also the first delay"`
	RowTimeout        time.Duration `env:"ROW_TIMEOUT, default=0" help:"a row fails with row_timeout when it still waits for capacity, or for a retry, this long after its first attempt, pauses aside; 0: it waits for ever"`
}

// RetryConfig describes retries after transient errors.
type RetryConfig struct {
	MaxAttempts   int           `env:"MAX_ATTEMPTS, default=3" min:"1" max:"1000" help:"attempts at a row that meets transient errors; capacity errors do not count"`
	BaseDelay     time.Duration `env:"BASE_DELAY, default=2s" help:"the wait before retry n is uniform in [0, base x 2^(n-1)], and never above 60s"`
	BackoffFactor float64       `env:"BACKOFF_FACTOR, default=2.0" min:"1" max:"1000" help:"factor of that wait, at least 1" deprecated:"remove it; the wait before retry n is at most the base x 2^(n-1), and never above 60s"`
	MaxDelay      time.Duration `env:"MAX_DELAY, default=60s" help:"longest wait before a retry, at least the base" deprecated:"remove it; the wait before retry n is at most the base x 2^(n-1), and never above 60s"`
}

// LLMConfig describes the provider, its models and the shape of a call.
type LLMConfig struct {
	Provider        string         `env:"PROVIDER, default=openai" oneof:"providers" help:"{oneof}; any OpenAI-compatible server is openai with a base URL"`
	BaseURL         string         `env:"BASE_URL" url:"true" help:"base URL of the provider's API, with its version path; empty: the provider's own"`
	APIKey          Secret         `env:"API_KEY" holds:"key" help:"key of the provider"`
	Auth            string         `env:"AUTH" oneof:"key aws google entra" help:"what authorises calls: {oneof}; key is an API key, the others are an identity of a cloud; empty: key, but the cloud's identity for bedrock and vertex without a key"`
	Region          string         `env:"REGION" help:"region of the cloud, such as eu-central-1; empty: that of the cloud's own settings"`
	Project         string         `env:"PROJECT" help:"project of Google Cloud; empty: that of the cloud's own settings"`
	Model           string         `env:"MODEL" help:"model to call; no default, except for mock"`
	AzureAPIVersion string         `env:"AZURE_API_VERSION" help:"api-version of Azure; empty: its v1 path"`
	Timeout         time.Duration  `env:"TIMEOUT, default=120s" min:"1ms" help:"longest time of one attempt"`
	MaxReplyBytes   Size           `env:"MAX_REPLY_BYTES, default=8MiB" min:"1KiB" max:"1GiB" help:"largest reply, after decompression" deprecated:"remove it; a reply may have 8 MiB after decompression"`
	CAFile          string         `env:"CA_FILE" file:"true" help:"path of a PEM file with a private CA for the provider"`
	Temperature     *float64       `env:"TEMPERATURE, noinit" min:"0" max:"2" help:"sampling temperature; sent only when set"`
	MaxTokens       *int           `env:"MAX_TOKENS, noinit" min:"1" help:"longest reply, in tokens; sent only when set"`
	ExtraBody       Secret         `env:"EXTRA_BODY" flag:"value" holds:"body" help:"JSON object that is merged into every request; members named like a key, token or password are redacted"`
	ExtraHeaders    Secret         `env:"EXTRA_HEADERS" holds:"headers" help:"JSON object of headers that are sent with every request, to fallbacks too"`
	AcceptTruncated bool           `env:"ACCEPT_TRUNCATED, default=false" help:"accept replies that end at the token limit"`
	RPM             int            `env:"RPM, default=0" min:"0" help:"most requests per minute of this process, with STAGE_BUDGET of all that share it; 0: no limit"`
	TPM             int            `env:"TPM, default=0" min:"0" help:"most tokens per minute of this process, with STAGE_BUDGET of all that share it; 0: no limit"`
	MaxConcurrency  ProviderLimits `env:"MAX_CONCURRENCY" help:"most calls in flight per provider, such as openai=8,anthropic=4, with STAGE_BUDGET of all that share it; empty: the pool size"`

	// Own has the settings of each provider, in the order of [llm.Providers]. Their
	// variables begin as [ProviderVariables] says.
	Own []ProviderConfig `group:"Providers of fallbacks"`
}

// ProviderConfig is what one provider needs when it serves a fallback. The first provider
// uses it too where STAGE_LLM_BASE_URL, STAGE_LLM_API_KEY and so on are unset.
type ProviderConfig struct {
	BaseURL string `env:"BASE_URL" url:"true" help:"base URL of this provider; empty: its own"`
	APIKey  Secret `env:"API_KEY" holds:"key" help:"key of this provider"`
	Auth    string `env:"AUTH" oneof:"key aws google entra" help:"what authorises calls to this provider: {oneof}; empty: as STAGE_LLM_AUTH has it"`
	Region  string `env:"REGION" help:"region of this provider's cloud"`
	Project string `env:"PROJECT" help:"project of this provider's cloud"`
}

// FallbackConfig is the models to call when the first one fails.
type FallbackConfig struct {
	Models Fallbacks     `env:"FALLBACKS" help:"provider:model in order, separated by commas, tried when a row's transient attempts are used up"`
	After  time.Duration `env:"FALLBACK_AFTER, default=0" help:"try them also after that long without capacity, in a brown-out or in an outage; 0: at once in an outage, else never"`
}

// PromptConfig is how a row becomes a prompt and a reply becomes a result.
type PromptConfig struct {
	Template       string `env:"TEMPLATE" help:"Jinja template of the prompt; sees row and lookup, strict about undefined names"`
	TemplateFile   string `env:"TEMPLATE_FILE" file:"true" help:"path of the template; one of it, the template itself, a messages file, a messages field and a request field is required"`
	MessagesFile   string `env:"MESSAGES_FILE" file:"true" help:"path of a conversation in place of a template: a list of messages in YAML or JSON, each string a template"`
	MessagesField  string `env:"MESSAGES_FIELD" help:"top-level member of the row that holds the conversation, in OpenAI's chat form"`
	RequestField   string `env:"REQUEST_FIELD" help:"top-level member of the row that holds a whole chat-completions request, such as the body of a line of OpenAI's batch files"`
	ParamsField    string `env:"PARAMS_FIELD" help:"top-level member of the row, an object that is merged over STAGE_LLM_EXTRA_BODY for this row, such as {\"temperature\": 0}"`
	SystemPrompt   string `env:"SYSTEM_PROMPT" help:"system prompt; a template like that of the prompt if it has {{, {% or {#"`
	SystemFile     string `env:"SYSTEM_PROMPT_FILE" file:"true" help:"path of the system prompt, in place of the prompt itself"`
	LookupFile     string `env:"LOOKUP_FILE" file:"true" help:"path of a YAML or JSON file that the template sees as lookup"`
	ResponseField  string `env:"RESPONSE_FIELD, default=llm_response" help:"field that the reply goes into"`
	MediaMax       Size   `env:"MEDIA_MAX_BYTES, default=20MiB" min:"1KiB" max:"512MiB" help:"most bytes of pictures, documents and sounds of a row, with STAGE_FOREACH of an element, after decoding; a row with more is invalid_row"`
	ToolsFile      string `env:"TOOLS_FILE" file:"true" help:"path of a YAML or JSON list of tools in OpenAI's form, offered with each request; calls go into the result, and nothing is executed"`
	ToolChoice     string `env:"TOOL_CHOICE" help:"whether the model calls a tool: auto, none, required, a function's name or OpenAI's object; empty: the provider's default"`
	Keep           Parts  `env:"RESPONSE_KEEP" help:"parts of the reply that results have beside the answer, separated by commas: reasoning, logprobs, tool_calls, citations, finish_reason, id, raw"`
	ResponseSchema string `env:"RESPONSE_SCHEMA_FILE" file:"true" help:"path of a JSON Schema: the reply must validate, and the value is stored, not the text"`
}

// RowsConfig is what happens to equal rows, failed rows, fatal errors and outages.
type RowsConfig struct {
	Dedupe             string        `env:"DEDUPE, default=off" oneof:"off inflight stored" help:"off, inflight (equal requests in flight share one call) or stored (also across restarts and runs)"`
	DedupeTTL          time.Duration `env:"DEDUPE_TTL, default=24h" min:"1s" help:"how long stored replies are reused"`
	OnUpstreamError    string        `env:"ON_UPSTREAM_ERROR, default=pass" oneof:"pass process" help:"a row that arrives with Stage-Status: error is passed on unchanged in its place (pass), or processed (process)"`
	OnFatal            string        `env:"ON_FATAL, default=pause" oneof:"pause exit fail" help:"at a fatal provider error, or one that every row meets: pause (hold rows, report why, probe), exit, or fail (the row fails)"`
	FatalProbeInterval time.Duration `env:"FATAL_PROBE_INTERVAL, default=60s" min:"1s" help:"time between the probe calls of a pause; in an outage of the provider the longest time between two"`
	OutageHold         time.Duration `env:"OUTAGE_HOLD, default=0" help:"how long an outage of the provider holds a row before it fails with api_call_failed; 0: for ever"`
}

// ForeachConfig is the fan-out: one call for each element of an array of the row. See
// [Config.FansOut].
type ForeachConfig struct {
	Field  string `env:"FOREACH" help:"top-level member of the row, an array: one call for each element, which the template sees as item, with loop; the result holds the replies as an array; empty: one call a row"`
	Max    int    `env:"FOREACH_MAX, default=256" min:"1" max:"10000" help:"most elements of a row; one with more is invalid_row"`
	Errors string `env:"FOREACH_ERRORS, default=row" oneof:"row keep" help:"when an element fails: row (the row fails with foreach_failed, and says which) or keep (an error object is in the element's place)"`
}

// The values of STAGE_FOREACH_ERRORS.
const (
	ForeachRow  = "row"
	ForeachKeep = "keep"
)

// FansOut reports whether a row is one call for each element of an array.
func (c *Config) FansOut() bool { return c.Foreach.Field != "" }

// CostConfig bounds what the stage may spend.
type CostConfig struct {
	MaxUSD     float64 `env:"MAX_COST_USD, default=0" min:"0" help:"no call starts once the known cost reaches this; calls in flight may exceed it; needs prices; 0: no ceiling"`
	PricesFile string  `env:"PRICES_FILE" file:"true" help:"path of the prices, USD per million tokens by model: input, cached, cache_write, cache_write_1h, output, reasoning; or LiteLLM's list"`
}

// ServeConfig is whether batched requests are served.
type ServeConfig struct {
	Batches bool `env:"BATCH, default=true" help:"serve batched requests, over a NATS micro service; false: no service, no subscription, and no permission for it"`
}

// BatchConfig bounds batched requests.
type BatchConfig struct {
	MaxParallel   int            `env:"MAX_PARALLEL, default=5" min:"1" help:"calls in flight of a batched request that does not set max_parallel" deprecated:"remove it; a request that sets no max_parallel has 5 calls in flight"`
	ParallelLimit int            `env:"PARALLEL_LIMIT, default=20" min:"1" help:"most calls in flight that a batched request may ask for" deprecated:"remove it; a request has at most 20 calls in flight"`
	MaxPrompts    int            `env:"MAX_PROMPTS, default=1000" min:"1" max:"100000" help:"most prompts of one batched request" deprecated:"remove it; a request may have 1000 prompts, and more go in several requests"`
	RPM           ProviderLimits `env:"RPM, default=anthropic=60,openai=60,openrouter=100" help:"most calls per minute of batched requests, by provider, evenly spread; 0: no limit"`
	Stream        string         `env:"STREAM, default=BATCHES" help:"stream of deferred batches, on subjects batches.<name>.<id>.>"`
}

// HTTPConfig describes the server of metrics, health and dashboard.
type HTTPConfig struct {
	Addr              string    `env:"HTTP_ADDR, default=127.0.0.1:9464" help:"address of metrics, health and dashboard"`
	Hosts             HostNames `env:"HTTP_HOSTS" help:"names that the dashboard answers to besides localhost and IP addresses: stage.example.com,*.example.org; *: any; empty: this machine's"`
	DashboardPayloads bool      `env:"DASHBOARD_PAYLOADS, default=false" help:"show rows and prompts on the dashboard"`
}

// ControlConfig is who may steer the stage.
type ControlConfig struct {
	Obey bool `env:"CONTROL, default=false" help:"obey stage pause, resume, probe and drain, which whoever may publish on llm-stage.<name>.control can send"`
}

// ProcessConfig describes the process: how it stops and how it logs.
type ProcessConfig struct {
	StopTimeout time.Duration `env:"STOP_TIMEOUT, default=150s" min:"1ms" help:"how long a stop waits for the calls in flight; longer than one attempt" deprecated:"remove it; a stop waits a quarter longer than STAGE_LLM_TIMEOUT for the calls in flight"`
	LogLevel    string        `env:"LOG_LEVEL, default=info" oneof:"debug info warn error" help:"{oneof}"`
	LogFormat   string        `env:"LOG_FORMAT" oneof:"text json" help:"{oneof}; empty: text on a terminal, else json"`
}
