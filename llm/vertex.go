package llm

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm/schema"
)

// VertexAI is where Vertex AI, the platform of Google Cloud, has the models of a project.
// Gemini's models speak [GenerateContent] there, and Anthropic's speak [Messages], so the
// wire format of a request follows its model. The zero value is any other server.
type VertexAI struct {
	// Project is the id of the project, or its number. It is empty in express mode, where
	// the API key belongs to a project.
	Project string
	// Region is "global", a region such as "europe-west4", or one of the multi-regions "us"
	// and "eu".
	Region string
}

// vertexGlobal is the region of calls that may be answered anywhere.
const vertexGlobal = "global"

// vertexVersion is the version of Anthropic's format that Vertex AI serves. It stands in the
// body in place of a header.
const vertexVersion = "vertex-2023-10-16"

// vertexAddress returns the base URL of a region.
func vertexAddress(region string) string {
	switch region {
	case "", vertexGlobal:
		return "https://aiplatform.googleapis.com/v1"
	case "us", "eu":
		return "https://aiplatform." + region + ".rep.googleapis.com/v1"
	}
	return "https://" + region + "-aiplatform.googleapis.com/v1"
}

// vertexWire returns the wire format of a model. Beside an error, which says why no call of
// the model can be made from here, it is not nil either.
func vertexWire(cfg *ProviderConfig, name string) (Wire, error) {
	place := VertexAI{Project: cfg.Project, Region: cmp.Or(cfg.Region, vertexGlobal)}
	var wire Wire = GenerateContent{Vertex: place}
	m, err := vertexModelOf(name)
	if m.publisher == anthropicPublisher {
		wire = Messages{Vertex: place}
	}
	switch own := m.project != "" || place.Project != ""; {
	case err != nil:
		return wire, err
	case m.region != "" && m.region != place.Region && cfg.BaseURL == vertexAddress(cfg.Region):
		return wire, fmt.Errorf("it is in the region %s, and calls go to %s: set the region",
			m.region, place.Region)
	case !own && m.publisher == anthropicPublisher:
		return wire, errors.New("models of Anthropic need a project: an API key without one has " +
			"Google's models alone")
	case !own && m.publisher == "":
		return wire, errors.New("an endpoint needs a project")
	}
	return wire, nil
}

// vertexDialect returns what a model accepts as the schema of its reply. Anthropic's models
// have structured outputs there only once the organization's policy allows them, which it
// does not by default, so the schema goes into the system prompt.
func vertexDialect(_, name string) schema.Dialect {
	if m, err := vertexModelOf(name); err == nil && m.publisher == anthropicPublisher {
		return schema.PromptOnly
	}
	return schema.GeminiOutput
}

// vertexModel is a model as the address of a request names it.
type vertexModel struct {
	project, region string // empty: those of the client
	publisher       string // empty for an endpoint
	id              string // of the model, or of the endpoint that a tuned model is deployed to
}

// The publishers whose formats the provider speaks.
const (
	googlePublisher    = "google"
	anthropicPublisher = "anthropic"
)

// vertexModelOf reads the name of a model: an id of Google's, such as gemini-2.5-flash,
// PUBLISHER/ID, models/ID, publishers/PUBLISHER/models/ID, endpoints/ID, or one of the last
// two behind projects/PROJECT/locations/REGION/.
func vertexModelOf(name string) (m vertexModel, err error) {
	parts := strings.Split(name, "/")
	if slices.Contains(parts, "") {
		return m, errors.New("a part of its name is empty")
	}
	if len(parts) > 4 && parts[0] == "projects" && parts[2] == "locations" {
		m.project, m.region = parts[1], parts[3]
		parts = parts[4:]
		if len(parts) < 2 || parts[0] != "publishers" && parts[0] != "endpoints" {
			return m, errNotVertex
		}
	}
	switch n := len(parts); {
	case n == 1:
		m.publisher, m.id = googlePublisher, parts[0]
	case n == 2 && parts[0] == "endpoints":
		m.id = parts[1]
	case n == 2 && parts[0] == "models":
		m.publisher, m.id = googlePublisher, parts[1]
	case n == 2:
		m.publisher, m.id = parts[0], parts[1]
	case n == 4 && parts[0] == "publishers" && parts[2] == "models":
		m.publisher, m.id = parts[1], parts[3]
	default:
		return m, errNotVertex
	}
	if m.publisher != "" && m.publisher != googlePublisher && m.publisher != anthropicPublisher {
		return m, fmt.Errorf("models of the publisher %q speak neither Gemini's format nor "+
			"Anthropic's: "+
			"call them as provider openai, whose base URL then ends in /endpoints/openapi",
			m.publisher)
	}
	return m, nil
}

var errNotVertex = errors.New("write it as gemini-…, anthropic/claude-…, publishers/…/models/…, " +
	"endpoints/… or projects/…/locations/…/endpoints/…")

// modelPath returns the path of a request that calls a method of a model, such as
// generateContent.
func (v VertexAI) modelPath(name, method string) string {
	m, err := vertexModelOf(name)
	if err != nil { // no request is made
		m = vertexModel{publisher: googlePublisher, id: name}
	}
	if m.project == "" {
		m.project, m.region = v.Project, v.Region
	}
	p := "/"
	if m.project != "" {
		p += "projects/" + m.project + "/locations/" + m.region + "/"
	}
	if m.publisher == "" {
		p += "endpoints/" + m.id
	} else {
		p += "publishers/" + m.publisher + "/models/" + m.id
	}
	return (&url.URL{Path: p}).EscapedPath() + ":" + method
}

// isZero reports whether it is another server.
func (v VertexAI) isZero() bool { return v == VertexAI{} }

// vertexTurns writes the messages of Gemini's format as Vertex AI wants them: there what is
// behind an address has to have a type.
var vertexTurns = turnWriter{
	model: geminiTurns.model, text: geminiTurns.text, list: geminiTurns.list,
	part: appendVertexPart,
	turn: geminiTurns.turn, answers: geminiTurns.answers,
}

// appendVertexPart appends a part of a message, but for its brace.
func appendVertexPart(dst []byte, r *Request, role string, p *Part) []byte {
	if p.Media == nil || p.Media.URL() == "" {
		return appendGeminiPart(dst, r, role, p)
	}
	dst = append(append(append(dst, `{"fileData":{"mimeType":"`...), vertexType(p.Media)...),
		`","fileUri":`...)
	return append(jsonbytes.AppendString(dst, p.Media.URL()), '}')
}

// vertexTypes are Vertex AI's names of the types of media behind an address, by the ends that
// addresses have.
var vertexTypes = map[MediaKind]map[string]string{
	KindImage: {".png": TypePNG, ".jpg": TypeJPEG, ".jpeg": TypeJPEG, ".webp": TypeWebP},
	KindFile:  {"": TypePDF}, // there is no other kind of document
	KindAudio: {
		".wav": TypeWAV, ".mp3": "audio/mp3", ".ogg": TypeOgg, ".flac": TypeFLAC,
		".m4a": TypeM4A,
	},
}

// vertexType returns the type of media behind an address, or "" where the address does not
// tell.
func vertexType(m *Media) string {
	types := vertexTypes[m.Kind]
	u, err := url.Parse(m.URL())
	if err != nil {
		return types[""]
	}
	if t := types[strings.ToLower(path.Ext(u.Path))]; t != "" {
		return t
	}
	return types[""]
}

// checkVertexURL reports that Vertex AI would have to know the type of what is behind a URL,
// and nothing tells.
func checkVertexURL(m *Media) error {
	if vertexType(m) == "" {
		return fmt.Errorf("Vertex AI wants the type of the %s, and its URL does not end in one, "+ //nolint:staticcheck // a name
			"such as .png or .mp3: give its content, for example as a data: URL", m.Kind)
	}
	return nil
}
