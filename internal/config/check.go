package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
)

// checker checks the values of a configuration, by themselves and against each other. It
// adds what it finds to the problems that were found while the values were read. The check
// of a feature is beside its settings, in the file of the feature.
type checker struct {
	*Config
	*problems
	need Need // what the command requires
}

// all adds every problem. Single fields come first: a comparison of two fields makes sense
// only if both are valid, so the checks between fields skip those with a problem.
func (c *checker) all() {
	for _, f := range Fields() {
		if !c.none(f.Variable) {
			continue
		}
		if problem := f.check(c.Config); problem != "" {
			c.add(f.Variable, "%s", problem)
		}
	}
	c.checkServer()
	c.checkStreams()
	c.checkInput()
	c.checkPairs()
	c.checkBudget()
	c.checkOrder()
	c.checkRecovery()
	c.checkLane()
	c.checkLLM()
	c.checkTask()
	c.checkPrompt()
	c.checkForeach()
	c.checkFallbackAfter()
	c.checkCost()
	c.checkHTTP()
}

// check returns the problem that the field has on its own, or "".
func (f *Field) check(c *Config) string {
	v := reflect.Indirect(f.value(c))
	if !v.IsValid() {
		return "" // unset
	}
	if n, ok := number(v); ok {
		return f.checkRange(n, f.text(c))
	}

	text := v.String()
	switch {
	case text == "":
		return ""
	case len(f.OneOf) > 0 && !slices.Contains(f.OneOf, text):
		return fmt.Sprintf("%q is unknown: choose %s", text, orList(f.OneOf))
	case f.kind.check != nil:
		return f.kind.check(text)
	}
	return ""
}

// checkRange compares the number n, written as text, with the bounds of the field. A
// field without a lower bound must be at least 0, so that a tag is needed only for
// stricter ones.
func (f *Field) checkRange(n float64, text string) string {
	switch {
	case math.IsNaN(n) || math.IsInf(n, 0):
		return text + " is not a finite number"
	case f.above.text != "" && n <= f.above.value:
		return fmt.Sprintf("%s is too small: give more than %s", text, f.above.text)
	case f.above.text == "" && n < f.min.value:
		return fmt.Sprintf("%s is too small: give %s or more", text, cmp.Or(f.min.text, "0"))
	case f.max.text != "" && n > f.max.value:
		return fmt.Sprintf("%s is too large: give %s or less", text, f.max.text)
	}
	return ""
}

// number returns the number in v, in the unit of its variable. For example, it is 50 for
// STAGE_RECOVERY_STEP_MS=50, but 2e9 for STAGE_RETRY_BASE_DELAY=2s: a [time.Duration]
// counts in nanoseconds, and its bounds are read as durations, too.
func number(v reflect.Value) (float64, bool) {
	switch {
	case v.Type() == reflect.TypeFor[Milliseconds]():
		return float64(v.Int()) / 1e6, true
	case v.CanInt():
		return float64(v.Int()), true
	case v.CanFloat():
		return v.Float(), true
	default:
		return 0, false
	}
}

// Patterns of names that become tokens of subjects. A stage's name is also part of the
// durables that it creates.
var (
	stageName  = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)
	budgetName = regexp.MustCompile(budgetPattern)
)

// ValidStageName reports whether a stage may have the name.
func ValidStageName(name string) bool { return stageName.MatchString(name) }

// checkServer checks the stage's name and the connection. Without a URL the program runs
// its own server, which uses no login; then a login is the mistake, not its absence.
func (c *checker) checkServer() {
	if !ValidStageName(c.Name) {
		c.add("STAGE_NAME", "%q is not a valid name: use 1 to 32 characters of a-z, 0-9 and -",
			c.Name)
	}
	if len(c.NATS.URL) == 0 && !c.from.offline && c.none("STAGE_NATS_URL") {
		c.checkEmbedded()
	} else {
		c.checkLogin()
	}
}

// checkEmbedded reports settings that only an external server would use. For example,
// with a password but without STAGE_NATS_URL the user expects another server than the one
// that starts. An inbox prefix does no harm, so it is not reported.
func (c *checker) checkEmbedded() {
	for _, f := range Fields() {
		external := strings.HasPrefix(f.Variable, VariablePrefix+"NATS_") &&
			f.Variable != "STAGE_NATS_INBOX_PREFIX"
		switch {
		case !external || f.value(c.Config).IsZero() || !c.none(f.Variable):
		case c.from.external:
			c.add(f.Variable,
				"the embedded server does not use it: set STAGE_NATS_URL too, or unset this")
		default:
			c.add(f.Variable,
				"this command runs its own server, which does not use it: unset this")
		}
	}
}

// checkLogin checks that there is at most one way to log in, and that it is complete.
func (c *checker) checkLogin() {
	var used []string
	ways := []string{"STAGE_NATS_CREDS", "STAGE_NATS_NKEY", "STAGE_NATS_TOKEN", "STAGE_NATS_USER"}
	for _, variable := range ways {
		if !fieldsByVariable()[variable].value(c.Config).IsZero() {
			used = append(used, variable)
		}
	}
	if len(used) > 1 {
		c.add(used[1], "set together with %s: choose one way to log in", used[0])
	}
	if c.NATS.Password.IsSet() && c.NATS.User == "" {
		c.add("STAGE_NATS_PASSWORD", "a password without a user: set STAGE_NATS_USER")
	}
	if c.NATS.User != "" && !c.NATS.Password.IsSet() {
		c.add("STAGE_NATS_USER", "a user without a password: set STAGE_NATS_PASSWORD")
	}
	if (c.NATS.TLSCert == "") != (c.NATS.TLSKey == "") {
		c.add("STAGE_NATS_TLS_CERT",
			"certificate and key go together: set both it and STAGE_NATS_TLS_KEY, or neither")
	}

	c.checkJetStream()
	if prefix := c.NATS.InboxPrefix; prefix != "" {
		c.checkSubject("STAGE_NATS_INBOX_PREFIX", prefix, "_INBOX_stage")
	}
}

// checkJetStream checks where the API of JetStream is. A domain is one token, and stands
// for the prefix $JS.<domain>.API, so only one of the two may be set.
func (c *checker) checkJetStream() {
	domain, prefix := c.NATS.JSDomain, c.NATS.JSPrefix
	if domain != "" && (strings.Contains(domain, ".") || !validTokens(domain, false)) {
		c.add("STAGE_NATS_JS_DOMAIN",
			"%q is not the name of a domain, which has no dots, wildcards or spaces, such as hub",
			domain)
	}
	if prefix != "" && !validTokens(strings.TrimSuffix(prefix, "."), false) {
		c.add("STAGE_NATS_JS_PREFIX",
			"%q is not a subject without wildcards, such as JS.hub.API", prefix)
	}
	if domain != "" && prefix != "" {
		c.add("STAGE_NATS_JS_PREFIX", "set together with STAGE_NATS_JS_DOMAIN, "+
			"which is the prefix $JS.<domain>.API: unset one of them")
	}
}

// checkPairs checks pairs of limits and times where one must not be above the other, for
// example STAGE_MIN_DISPATCH_DELAY_MS and STAGE_MAX_DISPATCH_DELAY_MS.
func (c *checker) checkPairs() {
	for _, pair := range []struct {
		variable, relation, other string
		wrong                     bool
		remedy                    string
	}{
		{
			"STAGE_MAX_DISPATCH_DELAY_MS", "below", "STAGE_MIN_DISPATCH_DELAY_MS",
			c.Pool.MaxDispatchDelay < c.Pool.MinDispatchDelay, "raise this or lower that",
		},
		{
			"STAGE_ORDER_SPAN", "below", "STAGE_WINDOW",
			!c.Order.OfStream() && c.Order.Span < c.Window.Rows, "raise this or lower that",
		},
		{
			"STAGE_RETRY_MAX_DELAY", "below", "STAGE_RETRY_BASE_DELAY",
			c.Retry.MaxDelay < c.Retry.BaseDelay, "raise this or lower that",
		},
		{
			"STAGE_BATCH_MAX_PARALLEL", "above", "STAGE_BATCH_PARALLEL_LIMIT",
			c.Batch.MaxParallel > c.Batch.ParallelLimit, "lower this or raise that",
		},
		{
			"STAGE_STOP_TIMEOUT", "not longer than one attempt,", "STAGE_LLM_TIMEOUT",
			c.Process.StopTimeout <= c.LLM.Timeout, "raise this or lower that",
		},
	} {
		if pair.wrong && c.none(pair.variable, pair.other) {
			fields := fieldsByVariable()
			c.add(pair.variable, "%s is %s %s, %s: %s",
				fields[pair.variable].text(c.Config), pair.relation,
				pair.other, fields[pair.other].text(c.Config), pair.remedy)
		}
	}
}

// checkRecovery checks that the delay between dispatches can grow. The recovery step is
// also the first delay, and a capacity error multiplies the delay: from 0 it would stay 0.
func (c *checker) checkRecovery() {
	if c.none("STAGE_RECOVERY_STEP_MS", "STAGE_MIN_DISPATCH_DELAY_MS") &&
		c.Pool.RecoveryStep == 0 && c.Pool.MinDispatchDelay == 0 {
		c.add("STAGE_RECOVERY_STEP_MS", "0 with a floor of 0 would keep the delay at 0 for "+
			"ever: give more than 0, or raise STAGE_MIN_DISPATCH_DELAY_MS")
	}
}

// checkOrder reports a key that no subject of the input has. For example, subjects of
// rows.{partition}.customer have three tokens, so subject.4 would be empty for each row:
// all rows would have the same key, and wait for each other.
func (c *checker) checkOrder() {
	input, key := c.Input.PartitionSubject(0), c.Order.Key
	if c.Order.Mode == streams.OrderKey && key.OutsideOf(input) &&
		c.none("STAGE_ORDER_KEY", "STAGE_INPUT_SUBJECT") {
		c.add("STAGE_ORDER_KEY", "%s: subjects of %s have %d tokens, give one of them", key,
			input, 1+strings.Count(input, "."))
	}
}

// extraBodyProblem returns the problem of the extra body. Where a member has a setting of
// its own, such as model, the text names that setting.
func extraBodyProblem(err error) string {
	e, ok := errors.AsType[*llm.ExtraBodyError](err)
	if !ok || e.Setting == "" {
		return strings.TrimPrefix(err.Error(), "extra body: ") // the name of the variable is enough
	}
	instead := map[string]string{
		"Model":  "use STAGE_LLM_MODEL, or the header Stage-Model for one row",
		"Prompt": "use STAGE_TEMPLATE",
		"System": "use STAGE_SYSTEM_PROMPT",
	}[e.Setting]
	return fmt.Sprintf("%q may not be set here: %s", e.Member, instead)
}

// checkLLM checks that the first provider and the fallbacks have what calls to them need.
// It does nothing for commands that make no call: stage load needs no key.
func (c *checker) checkLLM() {
	if c.need != NeedCalls || !c.none("STAGE_LLM_PROVIDER") {
		return
	}
	first := c.LLM.Endpoint(c.LLM.Provider)
	if c.LLM.Model == "" {
		c.add("STAGE_LLM_MODEL", "give the model of %s to call", c.LLM.Provider)
	}
	if first.NeedsKey() && !first.APIKey.IsSet() {
		c.add("STAGE_LLM_API_KEY",
			"give the key of %s, or STAGE_LLM_API_KEY_FILE (STAGE_LLM_PROVIDER=mock needs none)",
			c.LLM.Provider)
	}
	if c.LLM.Provider == "azure" && first.BaseURL == "" {
		c.add("STAGE_LLM_BASE_URL", "azure has no base URL of its own: "+
			"give that of your resource, such as https://NAME.openai.azure.com")
	}
	if c.none("STAGE_FALLBACKS") {
		c.checkFallbacks()
	}
}

// checkFallbacks checks each fallback by the variables of its own provider. A fallback at
// the first provider uses that one's address and key, which checkLLM has checked.
func (c *checker) checkFallbacks() {
	for _, m := range c.Fallback.Models {
		if m.Provider == c.LLM.Provider {
			if m.Model == c.LLM.Model {
				c.add("STAGE_FALLBACKS", "%s:%s is the first model already: remove it",
					m.Provider, m.Model)
			}
			continue
		}
		own := ProviderVariables(m.Provider)
		e := c.LLM.Endpoint(m.Provider)
		if m.Provider == "azure" && e.BaseURL == "" && c.none(own+"_BASE_URL") {
			c.add(own+"_BASE_URL", "a fallback uses azure, which has no base URL of its own: "+
				"give that of your resource")
		}
		if e.NeedsKey() && !e.APIKey.IsSet() && c.none(own+"_API_KEY") {
			or := own + "_API_KEY" + FileSuffix
			if m.Provider == "azure" {
				or += ", or set " + own + "_AUTH=entra"
			}
			c.add(own+"_API_KEY", "a fallback uses %s: give its key, or %s", m.Provider, or)
		}
	}
}

// checkFallbackAfter reports a wait for a fallback where there is none.
func (c *checker) checkFallbackAfter() {
	if c.Fallback.After > 0 && len(c.Fallback.Models) == 0 && c.none("STAGE_FALLBACKS") {
		c.add("STAGE_FALLBACK_AFTER",
			"there is no fallback: set STAGE_FALLBACKS, or unset this")
	}
}

// checkHTTP checks the address of the dashboard and the metrics.
func (c *checker) checkHTTP() {
	if c.none("STAGE_HTTP_ADDR") {
		if problem := checkAddr(c.HTTP.Addr); problem != "" {
			c.add("STAGE_HTTP_ADDR", "%s", problem)
		}
	}
}

// checkPrompt checks that there is exactly one source of the prompt, and at most one of
// the system prompt. The fan-out needs a source that renders once for each element: the
// conversation or the request of a row is the same for all its elements.
func (c *checker) checkPrompt() {
	var set []string
	for _, variable := range PromptSources {
		if !fieldsByVariable()[variable].value(c.Config).IsZero() {
			set = append(set, variable)
		}
	}
	switch {
	case len(set) > 1:
		c.add(set[0], "both it and %s are set: unset one of them",
			strings.Join(set[1:], " and "))
	case c.need >= NeedPrompt && len(set) == 0:
		c.add("STAGE_TEMPLATE", "give the template of the prompt, "+
			"or STAGE_TEMPLATE_FILE with its path; or a conversation, "+
			"with STAGE_MESSAGES_FILE or STAGE_MESSAGES_FIELD; "+
			"or the rows' own requests, with STAGE_REQUEST_FIELD")
	}

	if c.Prompt.SystemPrompt != "" && c.Prompt.SystemFile != "" {
		c.add("STAGE_SYSTEM_PROMPT",
			"both it and STAGE_SYSTEM_PROMPT_FILE are set: unset one of them")
	}

	if c.Foreach.Field == "" {
		return
	}
	if c.Prompt.MessagesField != "" {
		c.add("STAGE_MESSAGES_FIELD", "each element of the array of STAGE_FOREACH would get "+
			"the same conversation: use STAGE_MESSAGES_FILE, which sees item")
	}
	if c.Prompt.RequestField != "" {
		c.add("STAGE_REQUEST_FIELD", "each element of the array of STAGE_FOREACH would make "+
			"the same request: use STAGE_MESSAGES_FILE, which sees item")
	}
}

// checkForeach reports an array that the result would overwrite. For example, with STAGE_FOREACH
// and STAGE_RESPONSE_FIELD both answers, the replies would replace the elements that they
// answer.
func (c *checker) checkForeach() {
	keep := c.Prompt.Keep.Keep
	if c.Prompt.ToolsFile != "" {
		keep |= llm.KeepToolCalls
	}
	if field := c.Prompt.ResponseField; c.none("STAGE_FOREACH", "STAGE_RESPONSE_FIELD") &&
		row.Adds(field, c.Foreach.Field, keep) {
		c.add("STAGE_FOREACH", "a result has its own field %s, which would replace the array: "+
			"set STAGE_RESPONSE_FIELD to another name than %s", c.Foreach.Field, field)
	}
}

// checkFile opens the file and closes it again, so that a missing one fails at start-up.
func checkFile(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Sprintf("%v: give the path of a file that can be read", plainPathError(err))
	}
	defer f.Close() //nolint:errcheck // nothing was written
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return fmt.Sprintf("%s: is a directory: give the path of a file", path)
	}
	return ""
}

// plainPathError drops the operation from an error of package os, which means nothing to
// a user: "open x: no such file or directory" becomes "x: no such file or directory".
func plainPathError(err error) error {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %w", pathError.Path, pathError.Err)
	}
	return err
}

// checkBaseURL returns the problem of a provider's base URL, or "".
func checkBaseURL(text string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return "not an address: write it as https://host/v1"
	case u.User != nil:
		return "holds a user or password: remove it, and give the key as a variable"
	case u.Fragment != "":
		return "holds a fragment (#…): remove it"
	}
	return ""
}

// checkAddr returns the problem of an address to listen on, or "".
func checkAddr(addr string) string {
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Sprintf("%q is not host:port: write it as 127.0.0.1:9464, "+
			"or :9464 for all interfaces", addr)
	}
	return ""
}

// orList lists words as a sentence does, for example "stream, key or none".
func orList(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}
