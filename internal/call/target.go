package call

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/openfiles"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/identity"
	"github.com/llm-stage/stage/llm/redact"
)

// Target is one model of one provider, with its client. It is safe for concurrent use.
type Target struct {
	// Client makes the calls. Its login changes with [Targets.ReloadKey].
	*llm.Client

	endpoint config.Endpoint
	variable string         // prefix of the variables of its base URL and its key
	models   string         // the variable that names its model
	auth     llm.Authorizer // the cloud's identity; nil if a key authorises calls
	builtIn  bool           // it is in this process: its address says nothing
}

// Key identifies a request and the target that it is sent to, in all processes alike.
func (t *Target) Key(p *llm.Prepared) string {
	address := p.Target()
	if t.builtIn {
		address = t.Provider()
	}
	var short [1024]byte // most are hashed without an allocation
	text := append(append(short[:0], address...), '\n')
	return llm.Hash(append(text, p.Body...))
}

// Fingerprint identifies the account whose batches the target can see. It is the same for
// each built-in LLM: what one of an earlier process had is gone.
func (t *Target) Fingerprint() string {
	if t.builtIn {
		return t.Provider()
	}
	return t.Client.Account()
}

// BuiltIn reports whether the target is the built-in LLM, which knows nothing of what
// another process has asked it.
func (t *Target) BuiltIn() bool { return t.builtIn }

// Account names, in one token of a subject, the account whose limits calls to the target
// share: the provider, and the host where that is not the provider's own.
func (t *Target) Account() string {
	provider := t.Provider()
	own, _ := llm.LookupProvider(provider)
	if t.builtIn || t.endpoint.BaseURL == own.BaseURL {
		return provider
	}
	u, err := url.Parse(t.endpoint.BaseURL)
	if err != nil {
		return provider
	}
	return provider + "-" + notToken.ReplaceAllString(u.Host, "_")
}

// notToken matches what a token of a subject should not hold.
var notToken = regexp.MustCompile("[^A-Za-z0-9_-]")

// builtInURL is the base URL of the built-in LLM. No proxy of the environment is for
// localhost.
const builtInURL = "http://localhost/v1"

// newTargets makes the clients of the first provider and of the fallbacks, in the order
// of preference. builtIn returns what connects to the built-in LLM, which serves the
// provider mock where it has no base URL. The error lists every problem with the name of
// its variable; the targets returned with it must be closed too.
func newTargets(
	cfg *config.Config, ids *identity.Identities, dial dialFunc, builtIn func() (dialFunc, error),
) ([]*Target, error) {
	first := &Target{
		endpoint: cfg.LLM.Endpoint(cfg.LLM.Provider), variable: config.VariablePrefix + "LLM",
		models: "STAGE_LLM_MODEL",
	}
	models, targets := []string{cfg.LLM.Model}, []*Target{first}
	for _, m := range cfg.Fallback.Models {
		t := &Target{
			endpoint: cfg.LLM.Endpoint(m.Provider), variable: config.ProviderVariables(m.Provider),
			models: "STAGE_FALLBACKS",
		}
		if m.Provider == cfg.LLM.Provider {
			t.variable = first.variable
		}
		models, targets = append(models, m.Model), append(targets, t)
	}
	var problems []error
	for i, t := range targets {
		var err error
		connect := dial
		if t.endpoint.BaseURL == "" && t.endpoint.Provider == llm.Mock {
			t.builtIn, t.endpoint.BaseURL = true, builtInURL
			connect, err = builtIn()
		}
		if err == nil {
			err = t.open(cfg, ids, models[i], connect)
		}
		if err != nil {
			problems = append(problems, err)
		}
	}
	return targets, errors.Join(problems...)
}

// Check reports what is wrong with the settings of the providers: it makes the clients as
// [Open] does and closes them. It makes no connection, except to ask the metadata server of
// Google Cloud for the project where nothing else names it. It returns the cloud's identity
// of each provider that has one, such as "bedrock: AWS: profile work".
func Check(cfg *config.Config) (identities []string, err error) {
	ids := newIdentities(cfg, nil)
	defer ids.Close()
	targets, err := newTargets(cfg, ids, nil, func() (dialFunc, error) { return nil, nil }) //nolint:nilnil // nothing connects
	for _, t := range targets {
		if t.Client != nil {
			t.Close()
		}
		if text := t.identity(); text != "" && !slices.Contains(identities, text) {
			identities = append(identities, text)
		}
	}
	return identities, err
}

// identity names the provider and the cloud's identity that authorises its calls. It is
// empty if a key does.
func (t *Target) identity() string {
	if t.auth == nil {
		return ""
	}
	return fmt.Sprintf("%s: %s", t.endpoint.Provider, t.auth)
}

// open makes the client, or returns every problem with the name of its variable.
func (t *Target) open(
	cfg *config.Config, ids *identity.Identities, model string, dial dialFunc,
) error {
	auth, err := t.identify(ids)
	if err != nil {
		return err
	}
	t.auth = auth
	key, err := t.endpoint.APIKey.Value()
	if err != nil {
		return fmt.Errorf("%s_API_KEY%s: %w", t.variable, config.FileSuffix, err)
	}
	t.Client, err = llm.NewProvider(t.endpoint.Provider, llm.ProviderConfig{
		BaseURL: t.endpoint.BaseURL, APIKey: redact.NewSecret(key), Auth: auth, Model: model,
		AzureAPIVersion: cfg.LLM.AzureAPIVersion,
		Task:            cfg.Task, Vectors: cfg.Embed.Vectors(),
		Region: t.endpoint.Region, Project: t.endpoint.Project,
		ExtraHeaders: cfg.LLM.ExtraHeaders, Redactor: cfg.Redactor(),
		CAFile: cfg.LLM.CAFile, Concurrency: cfg.Pool.Size, Timeout: cfg.LLM.Timeout,
		MaxReplyBytes: int64(cfg.LLM.MaxReplyBytes), AcceptTruncated: cfg.LLM.AcceptTruncated,
		Control: openfiles.Control, DialContext: dial,
	})
	return t.nameSettings(err, "")
}

// identify completes the endpoint with what the cloud's own settings say, and returns the
// identity that authorises calls to it; nil where a key does, or nothing.
func (t *Target) identify(ids *identity.Identities) (auth llm.Authorizer, err error) {
	e := &t.endpoint
	p, _ := llm.LookupProvider(e.Provider)
	if e.Auth != llm.AuthKey && !mayIdentify(&p, e, t.builtIn) {
		return nil, fmt.Errorf("%s_AUTH: %s must not be sent to %s, which is no server of that "+
			"cloud: "+
			"give the address of the cloud's server as %s_BASE_URL, or let a key authorise the "+
			"calls", t.variable, e.Auth, e.Provider, t.variable)
	}
	switch e.Auth {
	case llm.AuthAWS:
		if auth, e.Region, err = ids.AWS(e.Region, e.BaseURL); err != nil {
			if errors.Is(err, identity.ErrNoRegion) {
				return nil, fmt.Errorf("%s_REGION: %w", t.variable, err)
			}
			return nil, fmt.Errorf("%s_AUTH: %s: %w", t.variable, e.Auth, err)
		}
	case llm.AuthGoogle:
		if auth, e.Project, err = ids.Google(e.Project); err != nil {
			return nil, fmt.Errorf("%s_AUTH: %s: %w", t.variable, e.Auth, err)
		}
		own := e.BaseURL == p.Address(e.Region)
		e.Region = cmp.Or(e.Region, os.Getenv("GOOGLE_CLOUD_LOCATION"),
			os.Getenv("GOOGLE_CLOUD_REGION"))
		if own { // the provider's own address depends on the region, too
			e.BaseURL = p.Address(e.Region)
		}
	case llm.AuthEntra:
		auth = ids.Entra(e.BaseURL)
	default:
		if p.Auth == llm.AuthAWS && e.Region == "" {
			// The address of a key's server depends on it, too.
			e.Region, _ = identity.AWSRegion()
		}
	}
	if e.BaseURL == "" {
		e.BaseURL = p.Address(e.Region)
	}
	return auth, nil
}

// mayIdentify reports whether an endpoint may get the credential of a cloud. The provider's
// own server may not, unless it belongs to that cloud: others could use what it gets.
func mayIdentify(p *llm.Provider, e *config.Endpoint, builtIn bool) bool {
	switch {
	case builtIn:
		return false
	case e.BaseURL != p.Address(e.Region), e.BaseURL == "" && p.Auth == "":
		return true
	default:
		return e.Auth == p.Auth || e.Auth == llm.AuthGoogle && p.Name == llm.Gemini
	}
}

// newIdentities makes the identities of the clouds for the clients of a configuration.
func newIdentities(cfg *config.Config, dial dialFunc) *identity.Identities {
	roots, _ := llm.RootCAs(cfg.LLM.CAFile) // each client reports the error
	return identity.New(identity.Options{Redactor: cfg.Redactor(), Roots: roots, DialContext: dial})
}

// reloadKey reads the key and the extra headers again if they are in files: they may have
// been corrected or rotated. Both are replaced together, or neither is: a credential may
// move from one to the other.
func (t *Target) reloadKey(headers config.Secret) (changed bool, err error) {
	changed, err = t.SetLogin(t.endpoint.APIKey, headers)
	// Nothing but the content of a file can have changed.
	return changed, t.nameSettings(err, config.FileSuffix)
}

// nameSettings adds the variable, with a suffix, to each setting that the client rejected.
func (t *Target) nameSettings(err error, suffix string) error {
	variables := map[string]string{
		"Provider": "STAGE_LLM_PROVIDER", "Task": "STAGE_TASK", "BaseURL": t.variable + "_BASE_URL",
		"APIKey": t.variable + "_API_KEY", "Model": t.models,
		"Region": t.variable + "_REGION", "Project": t.variable + "_PROJECT",
		"CAFile": "STAGE_LLM_CA_FILE", "Timeout": "STAGE_LLM_TIMEOUT",
		"MaxReplyBytes": "STAGE_LLM_MAX_REPLY_BYTES",
		"Concurrency":   "STAGE_POOL_SIZE", "ExtraHeaders": "STAGE_LLM_EXTRA_HEADERS",
	}
	problems := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok { // by llm
		problems = slices.Clone(joined.Unwrap())
	}
	for i, problem := range problems {
		if e, ok := errors.AsType[*llm.SettingError](problem); ok && variables[e.Setting] != "" {
			problems[i] = fmt.Errorf("%s%s: %w", variables[e.Setting], suffix, e.Err)
		}
	}
	return errors.Join(problems...)
}
