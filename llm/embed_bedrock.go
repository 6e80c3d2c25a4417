package llm

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// InvokeEmbeddings is Bedrock's InvokeModel for models that make vectors. Each maker has
// its own format there: Cohere's models take many texts, Amazon's Titan takes one.
type InvokeEmbeddings struct{ VectorFormat }

var _ Wire = InvokeEmbeddings{}

// isCohere reports whether a model is one of Cohere's, such as cohere.embed-v4:0 or
// eu.cohere.embed-v4:0.
func isCohere(model string) bool { return strings.Contains(model, "cohere.") }

// cohereTexts is how many texts Cohere's models take in a call.
const cohereTexts = 96

// bedrockTexts is how many texts a model takes in a call.
func bedrockTexts(model string) int {
	if isCohere(model) {
		return cohereTexts
	}
	return 1
}

// Path implements [Wire].
func (InvokeEmbeddings) Path(model string) string {
	return strings.TrimSuffix(Converse{}.Path(model), "/converse") + "/invoke"
}

// SetHeader implements [Wire].
func (InvokeEmbeddings) SetHeader(h http.Header, key string) { Converse{}.SetHeader(h, key) }

// AppendRequest implements [Wire]. Cohere demands to know what the vectors are for. Unless
// the extra body has another input_type, they are for documents that a search should find.
func (w InvokeEmbeddings) AppendRequest(dst []byte, r *Request) []byte {
	if !isCohere(r.Model) {
		dst = append(dst, '{')
		if w.Dimensions > 0 {
			dst = append(strconv.AppendInt(append(dst, `"dimensions":`...), int64(w.Dimensions),
				10), ',')
		}
		for text := range r.inputs() {
			dst = jsonbytes.AppendString(append(dst, `"inputText":`...), text)
			break // it takes one text, see bedrockTexts
		}
		return append(dst, '}')
	}
	dst = append(dst, `{"input_type":"search_document",`...)
	if w.Dimensions > 0 {
		dst = append(strconv.AppendInt(append(dst, `"output_dimension":`...), int64(w.Dimensions),
			10), ',')
	}
	return append(appendTexts(append(dst, `"texts":`...), r), '}')
}

func (InvokeEmbeddings) check(r *Request) error { return checkTexts(r) }

func (InvokeEmbeddings) media() *mediaRules { return &chatMedia }

// tokenCountHeader has the tokens of the texts, which Cohere's replies lack.
const tokenCountHeader = "X-Amzn-Bedrock-Input-Token-Count"

// readReply implements [Wire].
func (w InvokeEmbeddings) readReply(body []byte, r *Reply, o *ending) {
	var one, many, tokens []byte
	pick(body, at("embedding", &one), at("embeddings", &many), at("inputTextTokenCount", &tokens))
	if n := countOf([]byte(o.Header.Get(tokenCountHeader))).or(countOf(tokens)); n.reported {
		r.Usage = (&tally{prompt: n, completion: count{reported: true}}).usage()
	}
	if len(one) == 0 && len(many) == 0 {
		o.malformed(body)
		return
	}
	vectors, place := newVectors(w.VectorFormat, o.Known.Inputs), 0
	for vector := range bedrockVectors(body) {
		vectors.put(place, vector)
		place++
	}
	vectors.finish(r, o)
}

// bedrockVectors yields the vectors of a reply: Titan's one, or Cohere's, which are a list,
// or a list for each type of numbers.
func bedrockVectors(body []byte) func(yield func([]byte) bool) {
	var one, many []byte
	pick(body, at("embedding", &one), at("embeddings", &many))
	if isObject(many) {
		many = jsonbytes.Find(many, "float")
	}
	if len(one) > 0 {
		return slices.Values([][]byte{one})
	}
	return jsonbytes.Elements(many)
}

func (InvokeEmbeddings) keep([]byte, *Kept, Keep) {}

// elide implements [eliding].
func (InvokeEmbeddings) elide(body []byte) []byte {
	return elideVectors(body, bedrockVectors(body))
}
