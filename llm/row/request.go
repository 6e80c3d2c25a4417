package row

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm"
)

// Requests reads whole requests of chat completions out of rows, see [Requests.Read]. It
// is safe for concurrent use. Its zero value is ready.
type Requests struct {
	// last is the format with a schema that was read last: the rows of a job usually have
	// the same, and it is compiled once then.
	last atomic.Pointer[llm.ResponseFormat]
}

// Read puts into a request what the row's member with this name asks for: an object in the
// form of OpenAI's chat completions, such as the body of a line of its batch files. What
// the member says takes the place of what is in the request already; what it leaves out, or
// has as null, stays. A system prompt of the request stays only where the messages have no
// system message.
//
// Anything that can't be asked for is an [*llm.Error] with [llm.ReasonInvalidRow] that
// names it: a member of the wrong form, a stream, more than one reply, and, in a line of a
// batch file, another address than that of chat completions. Whether the provider has a
// place for each member is checked when the request is prepared.
func (q *Requests) Read(of *Row, name string, into *llm.Request) error {
	if err := of.checkBatchLine(); err != nil {
		return invalidRow(of.body, err)
	}
	object := of.member(name)
	if len(object) == 0 || object[0] != '{' {
		return invalidRow(of.body, fmt.Errorf("there is no object %q: it must be a request of "+
			"chat completions", name))
	}
	r := requestReader{requests: q, row: of, name: name, into: into}
	r.options = new(llm.Options)
	for key, value := range jsonbytes.Members(object) {
		if err := r.member(string(key), value); err != nil {
			if _, reported := errors.AsType[*llm.Error](err); reported {
				return err
			}
			return invalidRow(of.body, fmt.Errorf("the member %q %w", name+"."+string(key), err))
		}
	}
	if err := r.finish(); err != nil {
		return invalidRow(of.body, fmt.Errorf("the request %q: %w", name, err))
	}
	return nil
}

// checkBatchLine reports why a line of OpenAI's batch files is no request of chat
// completions. A row is taken for such a line if it has the three members that these lines
// have beside their body, all of them texts.
func (r *Row) checkBatchLine() error {
	id, method, url := r.member("custom_id"), r.member("method"), r.member("url")
	if !isText(id) || !isText(method) || !isText(url) {
		return nil
	}
	if at := jsonbytes.Text(url); !strings.HasSuffix(strings.TrimSuffix(at, "/"),
		"/chat/completions") {
		return fmt.Errorf("the line's url is %q: only requests to /v1/chat/completions can be "+
			"answered", excerpt.Of([]byte(at)))
	}
	if with := jsonbytes.Text(method); with != "POST" {
		return fmt.Errorf("the line's method is %q: only POST can be answered",
			excerpt.Of([]byte(with)))
	}
	return nil
}

// requestReader reads one request.
type requestReader struct {
	requests *Requests
	row      *Row
	name     string // of the row's member
	into     *llm.Request
	options  *llm.Options
	limits   int // members that bound the reply
	messages bool
	tools    bool   // the request has tools of its own
	choice   []byte // among the tools, which may stand behind it
}

// member reads one member of the request.
func (r *requestReader) member(name string, value []byte) (err error) {
	if isNull(value) && name != "messages" {
		return nil
	}
	o := r.options
	switch name {
	case "messages":
		if value[0] != '[' {
			return errors.New("must be a list of messages")
		}
		r.messages = true
		r.into.Messages, err = r.row.readMessages(value, r.name+".messages")
	case "model":
		if r.into.Model = textOf(value); r.into.Model == "" {
			err = errors.New("must be the name of a model")
		}
	case "temperature":
		r.into.Temperature, err = readNumber(value)
	case "max_tokens", "max_completion_tokens":
		r.limits++
		r.into.MaxTokens, err = readCount(value, 1)
	case "top_p":
		o.TopP, err = readNumber(value)
	case "stop":
		o.Stop, err = readStop(value)
	case "seed":
		seed, problem := strconv.ParseInt(string(value), 10, 64)
		if o.Seed = &seed; problem != nil {
			err = errors.New("must be a whole number")
		}
	case "reasoning_effort":
		if o.Effort = textOf(value); !slices.Contains(efforts[:], o.Effort) {
			err = fmt.Errorf("must be one of %s", strings.Join(efforts[:], ", "))
		}
	case "logprobs":
		o.LogProbs, err = readBool(value)
	case "top_logprobs":
		o.TopLogProbs, err = readCount(value, 0)
	case "response_format":
		o.Format, err = r.requests.format(value)
	case "tools":
		r.tools = true
		r.into.Tools, err = llm.ParseTools(value)
	case "tool_choice":
		r.choice = value
	case "stream":
		if on, problem := readBool(value); problem != nil || *on {
			err = errors.New("is not supported: the stage waits for whole replies")
		}
	case "n":
		if n, problem := readCount(value, 1); problem != nil || *n != 1 {
			err = errors.New("must be 1: the others would be paid for and dropped")
		}
	default:
		err = r.other(name, value)
	}
	return err
}

// efforts are the values of reasoning_effort.
var efforts = [...]string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}

// other keeps a member that has no meaning of its own. One that would replace what the
// stage sets, in any spelling that a server may read, is refused.
func (r *requestReader) other(name string, value []byte) error {
	dst := r.options.Others
	if len(dst) == 0 {
		dst = append(dst, '{')
	} else {
		dst[len(dst)-1] = ','
	}
	start := len(dst)
	dst = append(jsonbytes.AppendString(dst, name), ':')
	dst = append(append(dst, value...), '}')
	r.options.Others = dst
	alone := append([]byte{'{'}, dst[start:]...)
	if err := llm.ValidateExtraBody(alone); err != nil {
		return errors.New("may not be set by a row")
	}
	return nil
}

// finish checks what several members say together, and hands the options over.
func (r *requestReader) finish() error {
	switch {
	case !r.messages:
		return errors.New("there is no list of messages")
	case r.limits > 1:
		return errors.New("max_tokens and max_completion_tokens are both set: leave one of them " +
			"out")
	case r.into.Schema != nil && r.options.Format != nil && r.options.Format.Type != llm.FormatText:
		return errors.New("response_format can't be set by a row where " +
			"STAGE_RESPONSE_SCHEMA_FILE is set")
	}
	if r.tools {
		r.into.ToolChoice = llm.ToolChoice{}
	}
	if r.choice != nil {
		var err error
		if r.into.ToolChoice, err = llm.ReadToolChoice(r.choice, r.into.Tools); err != nil {
			return fmt.Errorf("tool_choice: %w", err)
		}
	}
	if llm.HasSystem(r.into.Messages) {
		r.into.System = ""
	}
	r.into.Options = r.options
	return nil
}

// format reads a response_format, with the schema of the last one if that is the same.
func (q *Requests) format(value []byte) (*llm.ResponseFormat, error) {
	f, err := llm.ReadResponseFormat(value, q.last.Load())
	if err == nil && f.Schema != nil {
		q.last.Store(f)
	}
	return f, err
}

func isNull(value []byte) bool { return value[0] == 'n' }

func readNumber(value []byte) (*float64, error) {
	var number float64
	if json.Unmarshal(value, &number) != nil {
		return nil, errors.New("must be a number")
	}
	return &number, nil
}

func readCount(value []byte, least int) (*int, error) {
	count, err := strconv.Atoi(string(value))
	if err != nil || count < least {
		return nil, fmt.Errorf("must be a whole number of at least %d", least)
	}
	return &count, nil
}

func readBool(value []byte) (*bool, error) {
	var b bool
	if json.Unmarshal(value, &b) != nil {
		return nil, errors.New("must be true or false")
	}
	return &b, nil
}

// readStop reads a text or a list of texts.
func readStop(value []byte) (stop []string, err error) {
	if isText(value) {
		return []string{jsonbytes.Text(value)}, nil
	}
	if value[0] != '[' {
		return nil, errors.New("must be a text or a list of texts")
	}
	for one := range jsonbytes.Elements(value) {
		if !isText(one) {
			return nil, errors.New("must be a text or a list of texts")
		}
		stop = append(stop, jsonbytes.Text(one))
	}
	return stop, nil
}
