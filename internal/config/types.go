package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
)

// Size is a number of bytes, written as 512, 64KiB, 256MiB or 1GiB. Never negative.
type Size int64

// sizeUnits are the units of a [Size], the largest first, so that printing takes the
// first that divides.
var sizeUnits = []struct {
	suffix string
	bytes  int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// EnvDecode reads a size. KB and MB are refused: some programs mean 1,000 by the K,
// others 1,024.
func (s *Size) EnvDecode(text string) error {
	number, unit := strings.TrimSpace(text), int64(1)
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(number, u.suffix); ok {
			number, unit = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && n > math.MaxInt64/unit:
		return fmt.Errorf("%q is too large", text)
	case err != nil || n < 0:
		return fmt.Errorf("%q is not a size: write a whole number of bytes, or one with KiB, "+
			"MiB or GiB, such as 64MiB", text)
	}
	*s = Size(n * unit)
	return nil
}

// String writes the size in the largest unit that divides it, so that it reads back as
// the same: 1GiB, but 1536MiB and not 1.5GiB.
func (s Size) String() string {
	for _, u := range sizeUnits[:len(sizeUnits)-1] {
		if s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// Milliseconds is a duration that its variable gives as a bare number of milliseconds,
// which may have a fraction.
type Milliseconds time.Duration

// EnvDecode reads a number of milliseconds.
func (m *Milliseconds) EnvDecode(text string) error {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(f) || math.Abs(f) > float64(math.MaxInt64/time.Millisecond) {
		return fmt.Errorf("%q is not a number of milliseconds: write it without a unit, "+
			"such as 50", text)
	}
	*m = Milliseconds(math.Round(f * float64(time.Millisecond)))
	return nil
}

// String writes the number of milliseconds.
func (m Milliseconds) String() string {
	return strconv.FormatFloat(float64(m)/float64(time.Millisecond), 'f', -1, 64)
}

// SyncPolicy is how often the embedded server flushes its store to the disk.
type SyncPolicy struct {
	Always   bool          // before each answer
	Interval time.Duration // above 0, without Always
}

// EnvDecode reads the word always or a duration above 0.
func (s *SyncPolicy) EnvDecode(text string) error {
	if text == "always" {
		*s = SyncPolicy{Always: true}
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q is neither the word always nor an interval such as 1s", text)
	}
	*s = SyncPolicy{Interval: d}
	return nil
}

// String writes what EnvDecode reads.
func (s SyncPolicy) String() string {
	if s.Always {
		return "always"
	}
	return formatDuration(s.Interval)
}

// URLs is a list of server addresses in the order given. The default scheme is nats. An
// address may hold a password.
type URLs []Secret

// EnvDecode reads addresses that are separated by commas.
func (u *URLs) EnvDecode(text string) error {
	var urls URLs
	for _, part := range splitList(text) {
		if part == "" {
			continue
		}
		if !strings.Contains(part, "://") {
			part = "nats://" + part
		}
		// The error of url.Parse holds the text, and the text may hold a password.
		parsed, err := url.Parse(part)
		if err != nil || parsed.Hostname() == "" {
			return errors.New("not a list of server URLs: write them as nats://host:4222, " +
				"separated by commas")
		}
		if !slices.Contains([]string{"nats", "tls", "ws", "wss"}, parsed.Scheme) {
			return fmt.Errorf("scheme %q is not one of nats, tls, ws and wss", parsed.Scheme)
		}
		urls = append(urls, redact.NewSecret(part))
	}
	*u = urls
	return nil
}

// Joined returns the list as nats.Connect takes it. It may hold a password: print String
// instead.
func (u URLs) Joined() string { return strings.Join(u.addresses(), ",") }

// addresses returns the addresses with their passwords, for connecting alone.
func (u URLs) addresses() []string {
	all := make([]string, len(u))
	for i, address := range u {
		all[i], _ = address.Value() // it is in no file
	}
	return all
}

// String returns the list with user names, passwords and tokens hidden.
func (u URLs) String() string {
	hidden := make([]string, len(u))
	for i, address := range u.addresses() {
		parsed, err := url.Parse(address)
		if err != nil {
			hidden[i] = "?"
			continue
		}
		if parsed.User != nil {
			parsed.User = url.User("xxxxx") // a name without a password is a token
		}
		hidden[i] = parsed.String()
	}
	return strings.Join(hidden, ",")
}

// GoString hides what String hides.
func (u URLs) GoString() string { return u.String() }

// LogValue hides what String hides.
func (u URLs) LogValue() slog.Value { return slog.StringValue(u.String()) }

// MarshalText hides what String hides.
func (u URLs) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// ProviderLimits maps providers to limits, as in openai=8,anthropic=4. A provider that is
// missing, or has 0, has no limit.
type ProviderLimits map[string]int

// EnvDecode reads pairs that are separated by commas. Unknown providers and providers
// named twice are errors.
func (p *ProviderLimits) EnvDecode(text string) error {
	limits := ProviderLimits{}
	for _, pair := range splitList(text) {
		provider, number, ok := strings.Cut(pair, "=")
		n, err := strconv.Atoi(number)
		switch _, twice := limits[provider]; {
		case !ok || err != nil || n < 0:
			return fmt.Errorf("%q is not provider=number: write it as openai=8,anthropic=4", pair)
		case !slices.Contains(llm.Providers(), provider):
			return unknownProvider(provider)
		case twice:
			return fmt.Errorf("provider %q is named twice", provider)
		}
		limits[provider] = n
	}
	*p = limits
	return nil
}

// String writes the pairs, sorted by provider.
func (p ProviderLimits) String() string {
	pairs := make([]string, 0, len(p))
	for provider, n := range p {
		pairs = append(pairs, provider+"="+strconv.Itoa(n))
	}
	slices.Sort(pairs)
	return strings.Join(pairs, ",")
}

// FallbackModel is a model that is called when the first one fails.
type FallbackModel struct {
	Provider string // one of the providers of STAGE_LLM_PROVIDER
	Model    string // as the provider names it, never empty
}

// Parts are the parts of a reply that are kept beside the answer.
type Parts struct{ llm.Keep }

// partsPattern matches a list of parts, for the JSON Schema.
var partsPattern = func() string {
	part := `(` + strings.Join(llm.KeepNames(), "|") + `)`
	return `^( *` + part + ` *(, *` + part + ` *)*)?$`
}()

// EnvDecode reads names of parts that are separated by commas.
func (p *Parts) EnvDecode(text string) error {
	var parts Parts
	for _, name := range splitList(text) {
		part, ok := llm.ParseKeep(name)
		if !ok {
			return fmt.Errorf("%q is no part of a reply: choose from %s", name,
				strings.Join(llm.KeepNames(), ", "))
		}
		parts.Keep |= part
	}
	*p = parts
	return nil
}

// String writes the names as EnvDecode reads them.
func (p Parts) String() string { return strings.Join(slices.Collect(p.Names()), ",") }

// Fallbacks is a list of models in the order in which they are called.
type Fallbacks []FallbackModel

// EnvDecode reads provider:model pairs that are separated by commas. The model may
// contain colons.
func (f *Fallbacks) EnvDecode(text string) error {
	var models Fallbacks
	for _, pair := range splitList(text) {
		provider, model, _ := strings.Cut(pair, ":")
		switch {
		case model == "":
			return fmt.Errorf("%q is not provider:model: write it as anthropic:claude-sonnet-4-5",
				pair)
		case !slices.Contains(llm.Providers(), provider):
			return unknownProvider(provider)
		case slices.Contains(models, FallbackModel{provider, model}):
			return fmt.Errorf("%s:%s is named twice", provider, model)
		}
		models = append(models, FallbackModel{provider, model})
	}
	*f = models
	return nil
}

// String writes the pairs as EnvDecode reads them.
func (f Fallbacks) String() string {
	pairs := make([]string, len(f))
	for i, m := range f {
		pairs[i] = m.Provider + ":" + m.Model
	}
	return strings.Join(pairs, ",")
}

// ReadExtraBody returns the object of STAGE_LLM_EXTRA_BODY, from its file if it has one,
// or nil if there is none.
func (c *LLMConfig) ReadExtraBody() (json.RawMessage, error) {
	text, err := c.ExtraBody.Value()
	if err != nil || text == "" {
		return nil, err
	}
	return readExtraBody(text)
}

// readExtraBody reads a JSON object that can be merged into requests, and removes its
// insignificant space.
func readExtraBody(text string) (json.RawMessage, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &object); err != nil || object == nil {
		return nil, errors.New(`not a JSON object: write it as {"top_p": 0.9}`)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, []byte(text)); err != nil {
		return nil, err
	}
	return compact.Bytes(), llm.ValidateExtraBody(compact.Bytes())
}

// formatDuration writes a duration without the zero units that [time.Duration] adds: 720h
// and not 720h0m0s.
func formatDuration(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// HostNames is a list of host names without ports. *.example.com is all names below
// example.com, a lone * every name.
type HostNames []string

// hostName is one name of the list, after normalizeHost.
var hostName = regexp.MustCompile(`^(\*|(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?)$`)

// EnvDecode reads names that are separated by commas.
func (h *HostNames) EnvDecode(text string) error {
	var names HostNames
	for _, part := range splitList(text) {
		name := NormalizeHost(part)
		_, addrErr := netip.ParseAddr(name)
		_, _, portErr := net.SplitHostPort(part)
		switch {
		case part == "":
			continue
		case addrErr != nil && !hostName.MatchString(name), portErr == nil,
			name == "*" && part != name: // "*."
			return fmt.Errorf("%q is not a host name: write names without scheme and port, "+
				"as stage.example.com or *.example.com", part)
		}
		names = append(names, name)
	}
	*h = names
	return nil
}

// String writes the names as EnvDecode reads them.
func (h HostNames) String() string { return strings.Join(h, ",") }

// Has reports whether the list names the host, which must be as [NormalizeHost] returns
// it.
func (h HostNames) Has(host string) bool {
	return slices.ContainsFunc(h, func(name string) bool {
		if below, ok := strings.CutPrefix(name, "*"); ok {
			return len(host) > len(below) && strings.HasSuffix(host, below)
		}
		return name == host
	})
}

// NormalizeHost returns a Host header, or a name, in the one form in which names are
// compared: in lower case, without port, brackets and final dot, and an IP address in its
// shortest form. For example, Stage.Example.com.:9464 becomes stage.example.com.
func NormalizeHost(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if len(host) > 1 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().String()
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
