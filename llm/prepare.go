package llm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm/schema"
)

// Prepared is a request as it goes over the wire, ready to be sent any number of times.
// It is read only.
type Prepared struct {
	// Model is the model called.
	Model string
	// Body is the JSON sent. It holds no credential but what the extra body holds. Where the
	// request has media an object with their sha256, bytes and type stands in the place of
	// the content, which [Prepared.Load] reads when the request is sent.
	Body []byte
	// MediaTokens estimates the tokens of the media, by the provider's published rule.
	MediaTokens int64

	*address
	rowModel bool
	inputs   int  // how many the request asks vectors for, of TaskEmbed
	cached   bool // marks parts for the provider's cache
	keep     Keep // what to read of the reply beside the answer

	media []placement // in the order of the body
	wire  []byte      // what is sent in place of Body; nil until the media are loaded
}

// address is where requests for a model go, and in which format.
type address struct {
	format Wire
	url    *url.URL
	target string // its host and path
}

// Target returns the host and path that the request goes to, without credentials.
// Together with Body it identifies the request: some wire formats name the model in the
// path alone.
func (p *Prepared) Target() string { return p.target }

// Prepare translates a request. The error is an [*Error] of class Permanent:
// a temperature that is not a number, an extra body that cannot be merged, and, with
// [ReasonInvalidRow], a conversation or options that the wire format can't carry, or a model
// other than the client's own that can't be called.
func (c *Client) Prepare(r *Request) (*Prepared, error) {
	p := &Prepared{Model: r.Model, address: c.own, keep: r.Kept(), inputs: len(r.Inputs)}
	if r.Temperature != nil && (math.IsNaN(*r.Temperature) || math.IsInf(*r.Temperature, 0)) {
		return nil, c.invalid(fmt.Errorf("temperature: %v is not a number", *r.Temperature))
	}
	if err := ValidateExtraBody(r.ExtraBody); err != nil {
		return nil, c.invalid(err)
	}
	if p.Model == "" {
		named := *r
		named.Model, p.Model = c.cfg.Model, c.cfg.Model
		r = &named
	} else if p.Model != c.cfg.Model {
		address, err := c.address(p.Model)
		if err != nil {
			return nil, &Error{
				Provider: c.provider, Class: Permanent, Reason: ReasonInvalidRow,
				Err: fmt.Errorf("model %q: %w", excerpt.Of(p.Model), err),
			}
		}
		p.address, p.rowModel = address, true
	}
	if err := p.format.check(r); err != nil {
		return nil, &Error{
			Provider: c.provider, Class: Permanent, Reason: ReasonInvalidRow, Err: err,
		}
	}
	if hasMedia(r.Messages) {
		if err := p.format.media().check(r.Messages); err != nil {
			return nil, &Error{
				Provider: c.provider, Class: Permanent, Reason: ReasonInvalidRow, Err: err,
			}
		}
		p.MediaTokens = p.format.media().estimate(r.Messages)
		placed := *r
		placed.placed = new(placements)
		r = &placed
	}
	p.Body = p.format.AppendRequest(make([]byte, 0, sizeOf(r)), r)
	if _, merges := p.format.(merging); len(r.ExtraBody) > 0 && !merges {
		p.cached = bytes.Contains(r.ExtraBody, []byte(`"cache_control"`))
		own := p.Body
		p.Body = jsonbytes.AppendMerged(make([]byte, 0, len(own)+len(r.ExtraBody)), own,
			r.ExtraBody)
		r.placed.rebase(own, p.Body)
	}
	if r.placed != nil {
		p.media = r.placed.list
	}
	return p, nil
}

// sizeOf estimates the size of a request in bytes: its texts, some escapes, the frame.
func sizeOf(r *Request) int {
	n := len(r.Model) + len(r.System) + len(r.Context) + len(r.Prompt) + len(r.Rejected) +
		len(r.Complaint)
	for _, text := range r.Inputs {
		n += len(text) + 8
	}
	for i := range r.Messages {
		n += len(r.Messages[i].Text) + 32
		for j := range r.Messages[i].Parts {
			n += len(r.Messages[i].Parts[j].Text) + 32
			if r.Messages[i].Parts[j].Media != nil {
				n += 256
			}
		}
	}
	if r.Schema != nil {
		n += len(r.Schema.Source())
	}
	for i := range r.Tools {
		n += len(r.Tools[i].Description) + len(r.Tools[i].Parameters) + 128
	}
	return n + n/16 + 256
}

func (c *Client) invalid(err error) error {
	return &Error{Provider: c.provider, Class: Permanent, Reason: ReasonAPICallFailed, Err: err}
}

// address returns where requests for model go. A row may name the model, so a
// name must not lead the key to another address of the provider.
func (c *Client) address(model string) (*address, error) {
	if strings.Contains(model, "..") {
		return nil, errors.New(`".." could lead to another address of the provider: name a model ` +
			`without it`)
	}
	format := c.wire
	if c.formatOf != nil {
		var err error
		if format, err = c.formatOf(model); err != nil {
			return nil, err
		}
	}
	u, err := url.Parse(c.base.String() + format.Path(model))
	if err != nil {
		return nil, err
	}
	return &address{format: format, url: u, target: u.Host + u.RequestURI()}, nil
}

// Hash returns the SHA-256 of b in lower-case hexadecimal.
func Hash(b []byte) string {
	sum := sha256.Sum256(b)
	var text [2 * sha256.Size]byte
	hex.Encode(text[:], sum[:])
	return string(text[:])
}

const (
	shapeBytes = 500 // bounds Prepared.Shape
	urlBytes   = 300 // bounds the address in it
	wordBytes  = 80  // bounds each name and value
)

// Shape returns the request without its contents, to help find a wrong setting: method,
// address, and the members of the body in order, such as
//
//	POST http://host/v1/chat/completions {model: "m", messages: [2], temperature: 0.7, user: "…" (12 bytes), text: {…}}
//
// Of the strings only the model is shown; an array is shown as the number of its
// elements. It holds no credential, and at most 500 bytes.
func (p *Prepared) Shape() string {
	const end = ", …}"
	dst := append([]byte(http.MethodPost+" "), excerpt.Clip(p.url.Redacted(), urlBytes)...)
	dst = append(dst, " {"...)
	some := false
	for key, value := range jsonbytes.Members(p.Body) {
		before := len(dst)
		if some {
			dst = append(dst, ", "...)
		}
		dst = appendShape(append(append(dst, excerpt.Clip(string(key), wordBytes)...), ": "...),
			string(key), value)
		if len(dst) > shapeBytes-len(end) {
			return string(append(dst[:before], end...))
		}
		some = true
	}
	return string(append(dst, '}'))
}

// appendShape appends what a member's value is.
func appendShape(dst []byte, key string, value []byte) []byte {
	switch value[0] {
	case '"':
		text := jsonbytes.Text(value)
		if key == "model" {
			return strconv.AppendQuote(dst, excerpt.Clip(text, wordBytes))
		}
		return append(strconv.AppendInt(append(dst, `"…" (`...), int64(len(text)), 10),
			" bytes)"...)
	case '{':
		return append(dst, "{…}"...)
	case '[':
		n := 0
		for range jsonbytes.Elements(value) {
			n++
		}
		return append(strconv.AppendInt(append(dst, '['), int64(n), 10), ']')
	}
	return append(dst, excerpt.Clip(string(value), wordBytes)...)
}

// ErrStreaming refuses an extra body that asks for a streamed reply.
var ErrStreaming = errors.New(`extra body: "stream" is not supported; remove it`)

// ExtraBodyError refuses a member of an extra body that would replace a member of the
// request itself, or request a reply that cannot be read.
type ExtraBodyError struct {
	// Member is the name as given; the names in nested objects are joined by dots.
	Member string
	// Setting is the field of [Request] to set in its place: "Model", "Prompt" or
	// "System". It is empty if there is none.
	Setting string
	reason  string
}

// Error names the member and what to do about it.
func (e *ExtraBodyError) Error() string {
	advice := "remove it"
	if e.Setting != "" {
		advice = "set Request." + e.Setting
	}
	return fmt.Sprintf("extra body: %q %s; %s", e.Member, e.reason, advice)
}

// reservedMember is a member that no wire format may be given in an extra body. All
// formats refuse the same: one extra body goes to fallbacks of other formats too, and no
// format uses the names of another in its own way.
type reservedMember struct {
	name     string // lower case, without underscores
	setting  string
	reason   string
	harmless func(value []byte) bool // nil means never
}

var reservedMembers = [...]reservedMember{
	{"model", "Model", "is set by the stage", nil},
	{"modelid", "Model", "is set by the stage", nil},   // Bedrock, in the path
	{"messages", "Prompt", "is set by the stage", nil}, // chat completions, Anthropic
	{"input", "Prompt", "is set by the stage", nil},    // OpenAI responses
	{"contents", "Prompt", "is set by the stage", nil}, // Gemini
	{"prompt", "Prompt", "is set by the stage", nil},   // OpenAI responses: a stored prompt
	// OpenAI responses. In a conversation rows would also read each other's prompts.
	{"previousresponseid", "", "puts other text into every prompt", isNull},
	{"conversation", "", "puts other text into every prompt", isNull},
	// A list of blocks is the only way to mark a system prompt for Anthropic's cache.
	{"system", "System", "is set by the stage", isList},
	{"instructions", "System", "is set by the stage", nil},
	{"systeminstruction", "System", "is set by the stage", nil},
	{"streamoptions", "", "is for streaming, which is not supported", isNull},
	{"background", "", "has no reply to wait for", isOff}, // OpenAI responses
	{"deferred", "", "has no reply to wait for", isOff},   // xAI chat completions
	{"n", "", "asks for replies that would be paid for and dropped", isOne},
	{"candidatecount", "", "asks for replies that would be paid for and dropped", isOne},
}

func isNull(value []byte) bool { return value[0] == 'n' }
func isList(value []byte) bool { return value[0] == '[' }
func isOff(value []byte) bool  { return value[0] == 'n' || value[0] == 'f' }
func isOne(value []byte) bool  { return value[0] == 'n' || countOf(value).n == 1 }

// ValidateExtraBody reports why raw cannot be merged into a request: it is not a JSON
// object, asks for a streamed reply ([ErrStreaming]), or has a member that it may not set
// (an [*ExtraBodyError]): the model, the prompts, additional text, replies in the
// background, or more than one. Names count in any case and with or without underscores,
// as some servers read them. Empty is fine.
func ValidateExtraBody(raw json.RawMessage) error {
	if len(raw) == 0 {
		return nil
	}
	if !jsonbytes.Valid(raw) || raw[jsonbytes.SkipSpace(raw, 0)] != '{' {
		return fmt.Errorf("extra body: not a JSON object: %.40q", excerpt.Of(raw))
	}
	for key, value := range jsonbytes.Members(raw) {
		if sameName(key, "stream") && !isOff(value) {
			return ErrStreaming
		}
		if e := reserved(key, value); e != nil {
			return e
		}
		if !sameName(key, "generationconfig") || !isObject(value) { // Gemini
			continue
		}
		for name, value := range jsonbytes.Members(value) {
			if e := reserved(name, value); e != nil && sameName(name, "candidatecount") {
				e.Member = string(key) + "." + e.Member
				return e
			}
		}
	}
	return nil
}

func reserved(key, value []byte) *ExtraBodyError {
	for i := range reservedMembers {
		m := &reservedMembers[i]
		if sameName(key, m.name) && (m.harmless == nil || !m.harmless(value)) {
			return &ExtraBodyError{Member: string(key), Setting: m.setting, reason: m.reason}
		}
	}
	return nil
}

// sameName reports whether key is name, which is in lower case, but for underscores and
// the case of ASCII letters.
func sameName(key []byte, name string) bool {
	n := 0
	for _, c := range key {
		if c == '_' {
			continue
		}
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if n == len(name) || name[n] != c {
			return false
		}
		n++
	}
	return n == len(name)
}

// valueDepthMax bounds the nesting of a validated reply: the result is an object that
// holds it, in an array where each element of a row is a call, and must itself be a row
// that can be read.
const valueDepthMax = jsonbytes.DepthMax - 2

// ValidateReply is [schema.Schema.Validate] with an [*Error] of class [Transient] and
// reason [ReasonSchemaValidationFailed]: the model may do better when it is called again
// with a [Complaint]. A value that is nested deeper than 9,998 does not satisfy a schema.
// Of a text that fails as a whole, what follows the last closing tag of reasoning is
// validated: a chat template may have taken the opening tag into the prompt.
func ValidateReply(s *schema.Schema, text string) (json.RawMessage, error) {
	value, err := s.Validate(text)
	if err != nil {
		// A tag within a string of a JSON value never gets here by mistake: what follows
		// it is no JSON value.
		if answer, found := afterReasoning(text); found {
			value, err = s.Validate(answer)
		}
	}
	if err == nil && !jsonbytes.ValidDepth(value, valueDepthMax) {
		err = fmt.Errorf("reply is nested deeper than %d", valueDepthMax)
	}
	if err != nil {
		return nil, &Error{
			Class: Transient, Reason: ReasonSchemaValidationFailed,
			Alike: string(ReasonSchemaValidationFailed), Err: err,
		}
	}
	return value, nil
}

// Complaint returns the message to the model after [ValidateReply] returned err, for
// [Request.Complaint].
func Complaint(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		err = e.Err
	}
	return "Your " + err.Error() + ". Answer again with one JSON value that satisfies the " +
		"schema, and nothing else."
}

// systemPrompt returns the system prompt, with the system messages that the conversation
// begins with, and with the schema where the provider's own member would refuse it.
func (r *Request) systemPrompt(d schema.Dialect, instructions []Message) string {
	prompt := joinSystem(r.System, instructions)
	s := r.schema()
	switch {
	case s == nil || s.Within(d):
		return prompt
	case prompt == "":
		return s.Instruction()
	}
	return prompt + "\n\n" + s.Instruction()
}
