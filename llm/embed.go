package llm

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/jsonbytes"
)

// What a client asks of its models, see [ProviderConfig.Task].
const (
	TaskChat  = "chat"  // an answer to a prompt or a conversation
	TaskEmbed = "embed" // a vector for each of several texts
)

// The forms in which a [Reply] holds vectors, see [VectorFormat].
const (
	EncodingFloat  = "float"  // a JSON array of numbers, as the provider wrote them
	EncodingBase64 = "base64" // a JSON string: base64 of little-endian 32-bit floats
)

// VectorFormat is what the vectors of embeddings should be like.
type VectorFormat struct {
	// Dimensions is how many numbers a vector has. 0 leaves it to the model.
	Dimensions int
	// Base64 asks for vectors as [EncodingBase64] in place of [EncodingFloat]. They are
	// converted if the provider answers with the other form.
	Base64 bool
}

// errNoText refuses an empty text. Providers answer it with an error, or with a vector
// that means nothing.
var errNoText = errors.New("the text to embed is empty")

// CheckTexts reports why the texts of a request can't be embedded: an [*Error] with
// [ReasonInvalidRow], as [Client.Prepare] returns it.
func (p *Provider) CheckTexts(r *Request) error {
	if err := checkTexts(r); err != nil {
		return &Error{Provider: p.Name, Class: Permanent, Reason: ReasonInvalidRow, Err: err}
	}
	return nil
}

// checkTexts reports why texts can't be embedded.
func checkTexts(r *Request) error {
	switch {
	case len(r.Messages) > 0:
		return errors.New("a conversation can't be embedded, only a text")
	case r.System != "" || r.Context != "":
		return errors.New("a system prompt or a context can't be embedded: make it part of the " +
			"text")
	}
	for text := range r.inputs() {
		if text == "" {
			return errNoText
		}
	}
	return nil
}

// inputs are the texts to embed: Inputs or, without any, the prompt.
func (r *Request) inputs() func(yield func(string) bool) {
	return func(yield func(string) bool) {
		if len(r.Inputs) == 0 {
			yield(r.Prompt)
			return
		}
		for _, text := range r.Inputs {
			if !yield(text) {
				return
			}
		}
	}
}

// appendTexts appends the texts to embed, as a list.
func appendTexts(dst []byte, r *Request) []byte {
	dst = append(dst, '[')
	first := true
	for text := range r.inputs() {
		if !first {
			dst = append(dst, ',')
		}
		dst, first = jsonbytes.AppendString(dst, text), false
	}
	return append(dst, ']')
}

// Embeddings is OpenAI's /embeddings, spoken by most servers: OpenAI, OpenRouter, Azure
// OpenAI, vLLM, Ollama, text-embeddings-inference.
type Embeddings struct {
	// Azure and AzureAPIVersion are as in [ChatCompletions].
	Azure           bool
	AzureAPIVersion string
	VectorFormat
}

var _ Wire = Embeddings{}

// Path implements [Wire].
func (w Embeddings) Path(model string) string {
	switch {
	case w.Azure && w.AzureAPIVersion != "":
		return "/openai/deployments/" + url.PathEscape(model) + "/embeddings?api-version=" +
			url.QueryEscape(w.AzureAPIVersion)
	case w.Azure:
		return "/openai/v1/embeddings"
	}
	return "/embeddings"
}

// SetHeader implements [Wire].
func (w Embeddings) SetHeader(h http.Header, key string) {
	ChatCompletions{Azure: w.Azure}.SetHeader(h, key)
}

// AppendRequest implements [Wire].
func (w Embeddings) AppendRequest(dst []byte, r *Request) []byte {
	dst = append(dst, `{"model":`...)
	dst = jsonbytes.AppendString(dst, r.Model)
	dst = appendTexts(append(dst, `,"input":`...), r)
	if w.Dimensions > 0 {
		dst = strconv.AppendInt(append(dst, `,"dimensions":`...), int64(w.Dimensions), 10)
	}
	if w.Base64 {
		dst = append(dst, `,"encoding_format":"base64"`...)
	}
	return append(dst, '}')
}

func (Embeddings) check(r *Request) error { return checkTexts(r) }

func (Embeddings) media() *mediaRules { return &chatMedia }

// readReply implements [Wire]. Vectors come with the index of their text, mostly in order.
func (w Embeddings) readReply(body []byte, r *Reply, o *ending) {
	var id, model, prompt, total, cost, fault, data []byte
	pick(body, at("id", &id), at("model", &model), at("error", &fault), at("data", &data),
		each("usage", func(usage []byte) {
			pick(usage, at("prompt_tokens", &prompt), at("total_tokens", &total), at("cost", &cost))
		}))
	t := tally{
		prompt: countOf(prompt).or(countOf(total)), completion: count{reported: true},
		total: countOf(total), cost: amountOf(cost),
	}
	r.ID, r.Model = textOf(id), textOf(model)
	if t.prompt.reported || t.cost.reported {
		r.Usage = t.usage()
	}
	if isError(fault) || len(data) == 0 {
		o.malformed(body)
		return
	}
	vectors := newVectors(w.VectorFormat, o.Known.Inputs)
	place := 0
	for item := range jsonbytes.Elements(data) {
		var index, vector []byte
		pick(item, at("index", &index), at("embedding", &vector))
		at := place
		if n := countOf(index); n.reported {
			at = int(min(n.n, math.MaxInt32)) //nolint:gosec // not above
		} else if n.bad {
			vectors.refuse(fmt.Errorf("the index %.20q of a vector in the reply is not the "+
				"number of a text, from 0", excerpt.Of(index)))
		}
		vectors.put(at, vector)
		place++
	}
	vectors.finish(r, o)
}

func (Embeddings) keep([]byte, *Kept, Keep) {}

// elide implements [eliding].
func (Embeddings) elide(body []byte) []byte {
	return elideVectors(body, membersOf(jsonbytes.Find(body, "data"), "embedding"))
}

// BatchEmbedContents is Gemini's models/{model}:batchEmbedContents.
type BatchEmbedContents struct{ VectorFormat }

var _ Wire = BatchEmbedContents{}

// Path implements [Wire].
func (BatchEmbedContents) Path(model string) string {
	return (&url.URL{Path: "/" + geminiModel(model)}).EscapedPath() + ":batchEmbedContents"
}

// SetHeader implements [Wire].
func (BatchEmbedContents) SetHeader(h http.Header, key string) {
	GenerateContent{}.SetHeader(h, key)
}

// AppendRequest implements [Wire]. The extra body, such as a taskType, is merged into the
// request of each text: the request around them takes nothing else.
func (w BatchEmbedContents) AppendRequest(dst []byte, r *Request) []byte {
	dst = append(dst, `{"requests":[`...)
	first := true
	var one []byte
	for text := range r.inputs() {
		if !first {
			dst = append(dst, ',')
		}
		one = append(one[:0], `{"model":`...)
		one = jsonbytes.AppendString(one, geminiModel(r.Model))
		one = append(one, `,"content":{"parts":[{"text":`...)
		one = append(jsonbytes.AppendString(one, text), `}]}`...)
		if w.Dimensions > 0 {
			one = strconv.AppendInt(append(one, `,"outputDimensionality":`...), int64(w.Dimensions),
				10)
		}
		one = append(one, '}')
		if len(r.ExtraBody) > 0 {
			dst = jsonbytes.AppendMerged(dst, one, r.ExtraBody)
		} else {
			dst = append(dst, one...)
		}
		first = false
	}
	return append(dst, "]}"...)
}

// mergesExtraBody implements [merging].
func (BatchEmbedContents) mergesExtraBody() {}

func (BatchEmbedContents) check(r *Request) error { return checkTexts(r) }

func (BatchEmbedContents) media() *mediaRules { return &geminiMedia }

// readReply implements [Wire]. The vectors are in the order of the requests. A line of a
// batch is for one text, and has its vector by itself.
func (w BatchEmbedContents) readReply(body []byte, r *Reply, o *ending) {
	var fault, list, one, prompt, tokens []byte
	pick(body, at("error", &fault), at("embeddings", &list), at("embedding", &one),
		at("tokenCount", &tokens),
		each("usageMetadata", func(usage []byte) { pick(usage, at("promptTokenCount", &prompt)) }))
	if n := countOf(prompt).or(countOf(tokens)); n.reported {
		r.Usage = (&tally{prompt: n, completion: count{reported: true}}).usage()
	}
	vectors := newVectors(w.VectorFormat, o.Known.Inputs)
	switch {
	case isError(fault), len(list) == 0 && !isObject(one):
		o.malformed(body)
		return
	case len(list) == 0:
		vectors.put(0, jsonbytes.Find(one, "values"))
	}
	place := 0
	for item := range jsonbytes.Elements(list) {
		vectors.put(place, jsonbytes.Find(item, "values"))
		place++
	}
	vectors.finish(r, o)
}

func (BatchEmbedContents) keep([]byte, *Kept, Keep) {}

// elide implements [eliding].
func (BatchEmbedContents) elide(body []byte) []byte {
	return elideVectors(body, membersOf(jsonbytes.Find(body, "embeddings"), "values"))
}

// LineRequest returns the request of one text in the body of a request, as a line of
// Gemini's Batch API has it.
func (BatchEmbedContents) LineRequest(body []byte) []byte {
	for one := range jsonbytes.Elements(jsonbytes.Find(body, "requests")) {
		return one
	}
	return nil
}

// merging is a [Wire] that merges the extra body itself.
type merging interface{ mergesExtraBody() }

// eliding is a [Wire] whose replies are too long to be shown or kept whole beside their
// results.
type eliding interface {
	// elide returns the body of a reply without what is in the results anyway.
	elide(body []byte) []byte
}

// vectors collects the vectors of a reply, each in the place of its text.
type vectors struct {
	format     VectorFormat
	all        []string // as JSON; "" where none came
	came       int
	dimensions int // of the first one
	problem    error
	form       form // of a reply with that problem
}

func newVectors(f VectorFormat, texts int) *vectors {
	return &vectors{
		format: f, all: make([]string, max(1, texts)), dimensions: f.Dimensions,
		form: formMalformed,
	}
}

// refuse notes a problem of the reply. The first one stays.
func (v *vectors) refuse(problem error) {
	if v.problem == nil {
		v.problem = problem
	}
}

// put takes the vector of the text at a place. The first problem stays.
func (v *vectors) put(place int, raw []byte) {
	v.came++
	if v.problem != nil {
		return
	}
	switch {
	case place >= len(v.all):
		if v.came <= len(v.all) {
			v.problem = fmt.Errorf("the reply has a vector with the index %d, and the call has "+
				"%d texts, from 0", place, len(v.all))
		}
		return
	case v.all[place] != "":
		v.problem = fmt.Errorf("the reply has two vectors for text %d", place+1)
		return
	}
	vector, dimensions, err := v.format.convert(raw)
	switch {
	case err != nil:
		v.problem = fmt.Errorf("the vector of text %d %w", place+1, err)
	case v.came == 1 && v.dimensions != 0 && dimensions != v.dimensions:
		v.form = formDimensions
		v.problem = fmt.Errorf("the vector of text %d has %d dimensions in place of %d (the "+
			"model may have no choice: leave the number of dimensions unset)", place+1, dimensions,
			v.dimensions)
	case v.dimensions != 0 && dimensions != v.dimensions:
		v.problem = fmt.Errorf("the vector of text %d has %d dimensions in place of %d", place+
			1, dimensions, v.dimensions)
	}
	v.all[place], v.dimensions = vector, dimensions
}

// finish puts the vectors into the reply, or notes in o why it is malformed.
func (v *vectors) finish(r *Reply, o *ending) {
	if v.came != len(v.all) {
		v.form, v.problem = formMalformed, fmt.Errorf("the reply has %d vectors for %d texts",
			v.came, len(v.all))
	}
	if v.problem != nil {
		o.Form, o.Problem = v.form, v.problem
		return
	}
	r.Vectors = v.all
	if len(v.all) == 1 {
		r.Text = v.all[0]
	}
}

// convert returns a vector of a reply in this format and how many numbers it has. Its error
// continues a sentence that begins with the vector.
func (f VectorFormat) convert(raw []byte) (vector string, dimensions int, err error) {
	switch {
	case len(raw) > 0 && raw[0] == '[':
		return f.ofNumbers(raw)
	case len(raw) > 0 && raw[0] == '"':
		return f.ofBase64(raw)
	}
	return "", 0, errors.New("is missing")
}

// ofNumbers converts an array of numbers. As an array their text stays as it is: only the
// white space goes.
func (f VectorFormat) ofNumbers(raw []byte) (vector string, dimensions int, err error) {
	var bits []byte
	length := 1 // of the array without white space
	for number := range jsonbytes.Elements(raw) {
		if !isNumber(number) {
			return "", 0, notFinite(number, dimensions)
		}
		if f.Base64 || !isModerate(number) {
			value, err := strconv.ParseFloat(string(number), 32)
			if err != nil {
				return "", 0, notFinite(number, dimensions)
			}
			if f.Base64 {
				bits = binary.LittleEndian.AppendUint32(bits, math.Float32bits(float32(value)))
			}
		}
		length += len(number) + 1
		dimensions++
	}
	switch {
	case dimensions == 0:
		return "", 0, errors.New("is empty")
	case f.Base64:
		return `"` + base64.StdEncoding.EncodeToString(bits) + `"`, dimensions, nil
	case length == len(raw):
		return string(raw), dimensions, nil
	}
	dst := make([]byte, 0, length)
	for number := range jsonbytes.Elements(raw) {
		dst = append(append(dst, ','), number...)
	}
	dst[0] = '['
	return string(append(dst, ']')), dimensions, nil
}

func notFinite(number []byte, at int) error {
	return fmt.Errorf("has %.20q at %d, which is no finite number", number, at)
}

// isNumber reports whether a value of valid JSON is a number.
func isNumber(value []byte) bool { return value[0] == '-' || value[0]-'0' <= 9 }

// isModerate reports whether a number is finite in 32 bits by its length alone, as nearly
// all are: without an exponent, 38 digits are less than the largest, 3.4e38.
func isModerate(number []byte) bool {
	return len(number) <= 38 && !slices.ContainsFunc(number,
		func(c byte) bool { return c|0x20 == 'e' })
}

// ofBase64 converts a string with the base64 of little-endian 32-bit floats.
func (f VectorFormat) ofBase64(raw []byte) (vector string, dimensions int, err error) {
	text := jsonbytes.Text(raw)
	bits, err := base64.StdEncoding.DecodeString(text)
	switch {
	case err != nil || len(bits)%4 != 0:
		return "", 0, errors.New("is a string, but not the base64 of 32-bit floats")
	case len(bits) == 0:
		return "", 0, errors.New("is empty")
	}
	dimensions = len(bits) / 4
	dst := []byte{'['}
	for i := range dimensions {
		value := math.Float32frombits(binary.LittleEndian.Uint32(bits[4*i:]))
		if math.IsNaN(float64(value)) || math.IsInf(float64(value), 0) {
			return "", 0, fmt.Errorf("has %v at %d, which is no finite number", value, i)
		}
		if f.Base64 {
			continue
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendFloat(dst, float64(value), 'g', -1, 32)
	}
	if f.Base64 {
		return `"` + text + `"`, dimensions, nil
	}
	return string(append(dst, ']')), dimensions, nil
}

// elideVectors replaces vectors, which are slices of the body in its order, by how many
// dimensions they have: {"dimensions":1536}, or by their length where they are strings:
// {"base64_bytes":8192}.
func elideVectors(body []byte, vectors iter.Seq[[]byte]) []byte {
	var dst []byte
	done := 0 // bytes of the body that dst stands for
	for vector := range vectors {
		at := cap(body) - cap(vector) // both are slices of one array
		switch {
		case len(vector) == 0:
			continue
		case vector[0] == '[':
			n := bytes.Count(vector, []byte{','}) + 1 // numbers have none, and no vector is empty
			dst = append(append(dst, body[done:at]...), `{"dimensions":`...)
			dst = append(strconv.AppendInt(dst, int64(n), 10), '}')
		case vector[0] == '"':
			dst = append(append(dst, body[done:at]...), `{"base64_bytes":`...)
			dst = append(strconv.AppendInt(dst, int64(len(vector)-2), 10), '}')
		default:
			continue
		}
		done = at + len(vector)
	}
	return append(dst, body[done:]...)
}

// membersOf yields the member of each object in a list.
func membersOf(list []byte, name string) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for item := range jsonbytes.Elements(list) {
			if !yield(jsonbytes.Find(item, name)) {
				return
			}
		}
	}
}

// geminiModel is the name of a model with its kind: models/, tunedModels/.
func geminiModel(model string) string {
	if strings.Contains(model, "/") {
		return model
	}
	return "models/" + model
}
