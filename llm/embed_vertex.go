package llm

import (
	"encoding/json"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// Predict is Vertex AI's predict, by which Google's models make vectors there:
// gemini-embedding-001, text-embedding-005 and others. Gemini's later models, such as
// gemini-embedding-2, have embedContent in its place, for one text.
type Predict struct {
	VertexAI
	VectorFormat
}

var _ Wire = Predict{}

// Limits of one call at Vertex AI.
const (
	predictTexts  = 250
	predictTokens = 20_000
)

// vertexTexts is how many texts a model takes in a call. Gemini's take one.
func vertexTexts(model string) int {
	if m, err := vertexModelOf(model); err == nil && strings.HasPrefix(m.id, "gemini-") {
		return 1
	}
	return predictTexts
}

// embedsContent reports whether a model has embedContent in place of predict.
func embedsContent(model string) bool {
	m, err := vertexModelOf(model)
	return err == nil && strings.HasPrefix(m.id, "gemini-") && m.id != "gemini-embedding-001"
}

// Path implements [Wire].
func (w Predict) Path(model string) string {
	if embedsContent(model) {
		return w.modelPath(model, "embedContent")
	}
	return w.modelPath(model, "predict")
}

// SetHeader implements [Wire].
func (Predict) SetHeader(h http.Header, key string) { GenerateContent{}.SetHeader(h, key) }

// AppendRequest implements [Wire]. The member parameters of the extra body, such as
// {"autoTruncate":false}, is merged into that of the request. All others, such as a
// task_type, are merged into the instance of each text. Where a model has embedContent, the
// extra body, such as a taskType, is merged into the request as a whole.
func (w Predict) AppendRequest(dst []byte, r *Request) []byte {
	if embedsContent(r.Model) {
		return w.appendContent(dst, r)
	}
	ofText, ofAll := splitExtra(r.ExtraBody)
	dst = append(dst, `{"instances":[`...)
	first := true
	var one []byte
	for text := range r.inputs() {
		if !first {
			dst = append(dst, ',')
		}
		one = append(jsonbytes.AppendString(append(one[:0], `{"content":`...), text), '}')
		dst, first = jsonbytes.AppendMerged(dst, one, ofText), false
	}
	dst = append(dst, ']')
	if w.Dimensions > 0 || ofAll != nil {
		parameters := []byte("{}")
		if w.Dimensions > 0 {
			parameters = strconv.AppendInt([]byte(`{"outputDimensionality":`), int64(w.Dimensions),
				10)
			parameters = append(parameters, '}')
		}
		if ofAll == nil {
			ofAll = []byte("{}")
		}
		dst = jsonbytes.AppendMerged(append(dst, `,"parameters":`...), parameters, ofAll)
	}
	return append(dst, '}')
}

// appendContent appends the request of embedContent.
func (w Predict) appendContent(dst []byte, r *Request) []byte {
	var one []byte
	for text := range r.inputs() {
		one = append(jsonbytes.AppendString([]byte(`{"content":{"parts":[{"text":`), text),
			`}]}`...)
		break // it takes one text, see vertexTexts
	}
	if w.Dimensions > 0 {
		one = strconv.AppendInt(append(one, `,"outputDimensionality":`...), int64(w.Dimensions), 10)
	}
	if one = append(one, '}'); len(r.ExtraBody) > 0 {
		return jsonbytes.AppendMerged(dst, one, r.ExtraBody)
	}
	return append(dst, one...)
}

// splitExtra divides an extra body into the members of each text, and those of parameters,
// which are nil if there are none.
func splitExtra(extra json.RawMessage) (ofText, ofAll []byte) {
	ofText = []byte{'{'}
	for key, value := range jsonbytes.Members(extra) {
		if string(key) == "parameters" && isObject(value) {
			ofAll = value
			continue
		}
		if len(ofText) > 1 {
			ofText = append(ofText, ',')
		}
		ofText = append(append(jsonbytes.AppendString(ofText, key), ':'), value...)
	}
	return append(ofText, '}'), ofAll
}

// mergesExtraBody implements [merging].
func (Predict) mergesExtraBody() {}

func (Predict) check(r *Request) error { return checkTexts(r) }

func (Predict) media() *mediaRules { return &geminiMedia }

// readReply implements [Wire]. The predictions are in the order of the instances, each with
// its own tokens.
func (w Predict) readReply(body []byte, r *Reply, o *ending) {
	var fault, list, one []byte
	pick(body, at("error", &fault), at("predictions", &list), at("embedding", &one))
	if isObject(one) {
		BatchEmbedContents{w.VectorFormat}.readReply(body, r, o)
		return
	}
	if isError(fault) || len(list) == 0 {
		o.malformed(body)
		return
	}
	vectors, place := newVectors(w.VectorFormat, o.Known.Inputs), 0
	sum := count{}
	for item := range jsonbytes.Elements(list) {
		var embeddings []byte
		pick(item, at("embeddings", &embeddings))
		vectors.put(place, jsonbytes.Find(embeddings, "values"))
		place++
		if n := countOf(jsonbytes.Find(jsonbytes.Find(embeddings, "statistics"),
			"token_count")); n.reported {
			sum.n, sum.reported = sum.n+n.n, true
		}
	}
	if sum.reported {
		r.Usage = (&tally{prompt: sum, completion: count{reported: true}}).usage()
	}
	vectors.finish(r, o)
}

func (Predict) keep([]byte, *Kept, Keep) {}

// elide implements [eliding].
func (Predict) elide(body []byte) []byte {
	if one := jsonbytes.Find(body, "embedding"); isObject(one) {
		return elideVectors(body, slices.Values([][]byte{jsonbytes.Find(one, "values")}))
	}
	var values iter.Seq[[]byte] = func(yield func([]byte) bool) {
		for embeddings := range membersOf(jsonbytes.Find(body, "predictions"), "embeddings") {
			if !yield(jsonbytes.Find(embeddings, "values")) {
				return
			}
		}
	}
	return elideVectors(body, values)
}
