package llm_test

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
)

// The beginnings of files, as short as they may be.
var samples = map[string]string{
	llm.TypePNG:  "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x04\x00\x00\x00\x03\x00",
	llm.TypeJPEG: "\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11\x08\x03\x00\x04\x00\x03",
	llm.TypeGIF:  "GIF89a\x00\x04\x00\x03",
	llm.TypeWebP: "RIFF\x00\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x00\x00\x00\x00\xff\x03\x00\xff\x02\x00",
	llm.TypePDF:  "%PDF-1.7\n1 0 obj <</Type /Page>>\n2 0 obj <</Type /Page >> <</Type /Pages>>",
	llm.TypeWAV:  "RIFF\x00\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x80\x3e\x00\x00\x02\x00\x10\x00",
	llm.TypeMP3:  "ID3\x04",
	llm.TypeOgg:  "OggS\x00",
	llm.TypeFLAC: "fLaC\x00\x00\x00\x22\x10\x00\x10\x00\x00\x00\x0a\x00\x00\x0a\x0a\xc4\x42\xf0\x00\x01\x58\x88",
	llm.TypeM4A:  "\x00\x00\x00\x18ftypM4A \x00\x00\x00\x00M4A mp42",
}

func dataURL(content string) string {
	return "data:application/octet-stream;base64," + base64.StdEncoding.EncodeToString([]byte(content))
}

func mediaOf(t *testing.T, kind llm.MediaKind, mediaType string) *llm.Media {
	t.Helper()
	source := dataURL(samples[mediaType])
	return &llm.Media{Kind: kind, Source: source, Content: must.Value(llm.DataURL(source, 1<<20))(t)}
}

func TestTheTypeComesFromTheFirstBytes(t *testing.T) {
	for want, content := range samples {
		s, err := llm.Sniff([]byte(content), int64(len(content)))
		if err != nil || s.Type != want {
			t.Errorf("%s: %q, %v", want, s.Type, err)
		}
		if s.Kind() == llm.KindImage && (s.Width != 1024 || s.Height != 768) {
			t.Errorf("%s: %d × %d", want, s.Width, s.Height)
		}
	}
	for _, tt := range []struct{ content, want string }{
		{"", "empty"},
		{"hello, world", "no known type"},
		{"\xff\xf1\x50\x80", "no known type"},                         // AAC
		{"\x00\x00\x00\x14ftypisom\x00\x00\x00\x00", "no known type"}, // a video
		{"\x89PNG\r\n\x1a\n", "broken or cut off"},
		{samples[llm.TypeJPEG][:9], "broken or cut off"},
		{"\xff\xd8\xff\xd9          ", "broken or cut off"},
		{"GIF89a", "broken or cut off"},
		{samples[llm.TypeWebP][:20], "broken or cut off"},
		{samples[llm.TypeWAV][:20], "broken or cut off"},
		{"fLaC", "broken or cut off"},
	} {
		if s, err := llm.Sniff([]byte(tt.content), int64(len(tt.content))); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %+v, %v", tt.content, s, err)
		}
	}
	pdf := samples[llm.TypePDF]
	if s, _ := llm.Sniff([]byte(pdf), int64(len(pdf))); s.Pages != 2 {
		t.Errorf("%d pages", s.Pages)
	}
	for mediaType, want := range map[string]float64{llm.TypeWAV: 1, llm.TypeFLAC: 2} {
		size := int64(16000)
		if s, _ := llm.Sniff([]byte(samples[mediaType]), size); s.Seconds != want {
			t.Errorf("%s: %v s", mediaType, s.Seconds)
		}
	}
}

func FuzzSniff(f *testing.F) {
	for _, content := range samples {
		f.Add([]byte(content), int64(len(content)))
	}
	f.Fuzz(func(t *testing.T, head []byte, size int64) {
		if s, err := llm.Sniff(head, max(size, int64(len(head)))); err == nil && s.Type == "" {
			t.Error("no type and no error")
		}
	})
}

func TestDataURLs(t *testing.T) {
	png := samples[llm.TypePNG]
	text := base64.StdEncoding.EncodeToString([]byte(png + "ab"))
	for _, source := range []string{
		"data:;base64," + text, "DATA:image/jpeg;name=x;BASE64," + text, "data:;base64," + strings.TrimRight(text, "="),
		"data:;base64," + text[:8] + "\n" + text[8:] + "\r\n", "data:;base64," + strings.NewReplacer("+", "-", "/", "_").Replace(text),
	} {
		c, err := llm.DataURL(source, int64(len(png)+2))
		if err != nil || c.Type != llm.TypePNG || c.Bytes != int64(len(png)+2) || c.SHA256 != llm.Hash([]byte(png+"ab")) {
			t.Errorf("%s: %+v, %v", source, c, err)
			continue
		}
		r := must.Value(c.Open(t.Context()))(t)
		if again := must.Value(io.ReadAll(r))(t); string(again) != png+"ab" {
			t.Errorf("%s: opened again it is %q", source, again)
		}
	}
	for _, tt := range []struct{ source, want string }{
		{"data:image/png;base64", "no comma"},
		{"data:image/png,abc", "not in base64"},
		{"data:;base64,!!!!", "not valid base64"},
		{"data:;base64,iVBOR", "not valid base64"},
		{"data:;base64,", "empty"},
		{dataURL(strings.Repeat("x", 200)), llm.ErrTooMuchMedia.Error()},
		{dataURL(png + strings.Repeat("x", 100-len(png)+1)), llm.ErrTooMuchMedia.Error()},
	} {
		if _, err := llm.DataURL(tt.source, 100); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.source, err, tt.want)
		}
	}
}

const address = "https://example.com/a"

// Bedrock takes few characters in a name, and no name twice.
func TestNamesOfDocumentsAtBedrock(t *testing.T) {
	client := newClient(t, llm.Bedrock, llm.ProviderConfig{Model: "m", Region: "eu-central-1", APIKey: redact.NewSecret("k")})
	var parts []llm.Part
	for _, name := range []string{"may-1", "May_1.pdf", "Über  uns (1)[a].PDF", "", "../..", strings.Repeat("x", 300)} {
		m := mediaOf(t, llm.KindFile, llm.TypePDF)
		m.Name = name
		parts = append(parts, llm.Part{Media: m})
	}
	documents := func(parts ...llm.Part) []llm.Message { return []llm.Message{{Role: llm.RoleUser, Parts: parts}} }
	const want = `"may-1" "May-1 (2)" "-ber uns (1)[a]" "document" "document (2)"`
	var names []string
	for _, list := range [][]llm.Part{append(parts[:5:5], llm.Part{Text: "compare"}), {{Text: "read"}, parts[5]}} {
		p := must.Value(client.Prepare(&llm.Request{Messages: documents(list...)}))(t)
		var body struct {
			Messages []struct {
				Content []struct {
					Document struct {
						Name string `json:"name"`
					} `json:"document"`
				} `json:"content"`
			} `json:"messages"`
		}
		must.Do(t, json.Unmarshal(p.Body, &body))
		for _, block := range body.Messages[0].Content {
			if block.Document.Name != "" {
				names = append(names, strconv.Quote(block.Document.Name))
			}
		}
	}
	if got := strings.Join(names[:5], " "); got != want || len(names[5]) > 202 {
		t.Errorf("got %s and %d bytes, want %s", got, len(names[5]), want)
	}
	for want, messages := range map[string][]llm.Message{
		"6 documents, and Bedrock's Converse takes at most 5 in a request": documents(append(parts, llm.Part{Text: "compare"})...),
		"message 1 has a document and no text":                             documents(parts[0]),
	} {
		if _, err := client.Prepare(&llm.Request{Messages: messages}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// clientOf makes a client of "provider", or of "provider: model".
func clientOf(t *testing.T, provider string) *llm.Client {
	t.Helper()
	provider, model, _ := strings.Cut(provider, ": ")
	return newClient(t, provider, llm.ProviderConfig{
		Model: cmp.Or(model, "m"), Region: "eu-central-1", Project: "p", APIKey: redact.NewSecret("k"),
	})
}

// TestMediaOfEachWireFormat runs the parts of testdata/media.txt: what is kept has the digest, what is sent the content.
func TestMediaOfEachWireFormat(t *testing.T) {
	datadriven.RunTest(t, "testdata/media.txt", func(t *testing.T, d *datadriven.TestData) string {
		model, out := "m", new(strings.Builder)
		d.MaybeScanArgs(t, "model", &model)
		client := clientOf(t, d.Cmd+": "+model)
		for part := range strings.Lines(d.Input) {
			kind, what, _ := strings.Cut(strings.TrimSpace(part), " ")
			m := &llm.Media{Kind: llm.MediaKind(kind), Source: what}
			if !strings.Contains(what, "://") {
				m = mediaOf(t, llm.MediaKind(kind), what)
			}
			switch kind {
			case "image":
				m.Detail = "low"
			case "file":
				m.Name = "a.pdf"
			}
			p, err := client.Prepare(&llm.Request{Messages: []llm.Message{{Role: llm.RoleUser, Parts: []llm.Part{{Text: "look"}, {Media: m}}}}})
			if e, ok := errors.AsType[*llm.Error](err); ok {
				fmt.Fprintf(out, "%s %s: %s: %v\n", kind, what, e.Reason, e)
				continue
			}
			b64 := base64.StdEncoding.EncodeToString([]byte(samples[what]))
			sent := string(must.Value(p.Load(t.Context()))(t).Sent())
			if !json.Valid([]byte(sent)) || int64(len(sent)) != p.WireBytes() {
				t.Errorf("%s: %s: sent %s in place of %d bytes", d.Cmd, what, sent, p.WireBytes())
			}
			if m.Content != nil {
				if !json.Valid(p.Body) || strings.Contains(string(p.Body), b64) || !strings.Contains(string(p.Body), `{"sha256":"`+m.SHA256+`","bytes":`) {
					t.Errorf("%s: %s: kept %s", d.Cmd, what, p.Body)
				}
				sent = strings.ReplaceAll(sent, b64, "B64")
			}
			fmt.Fprintf(out, "%s %s: %s\n", kind, what, sent)
		}
		return out.String()
	})
}

// Limits that a provider states, and media where no format has a place for them.
func TestMediaThatDoNotFit(t *testing.T) {
	large := mediaOf(t, llm.KindImage, llm.TypePNG)
	large.Bytes = 30 << 20
	wide := mediaOf(t, llm.KindImage, llm.TypePNG)
	wide.Width = 9000
	half := mediaOf(t, llm.KindFile, llm.TypePDF)
	half.Bytes = 15 << 20
	picture := llm.Part{Media: mediaOf(t, llm.KindImage, llm.TypePNG)}
	user := func(parts ...llm.Part) []llm.Message { return []llm.Message{{Role: llm.RoleUser, Parts: parts}} }
	var many []llm.Message
	for range 601 {
		many = append(many, user(picture)...)
	}
	for _, tt := range []struct {
		provider, want string
		messages       []llm.Message
	}{
		{"anthropic", "the image takes 41943042 bytes in base64, and Anthropic's messages takes at most 10485760", user(llm.Part{Media: large})},
		{"openai-responses", "the image takes 41943042 bytes in base64, and responses takes at most 20971520", user(llm.Part{Media: large})},
		{"vertex: anthropic/m", "the image takes 41943042 bytes in base64, and Anthropic's messages at Vertex AI takes at most 5242880", user(llm.Part{Media: large})},
		{"anthropic", "the image has 9000 × 768 pixels", user(llm.Part{Media: wide})},
		{"anthropic", "the media take 41943044 bytes in base64", user(llm.Part{Media: half}, llm.Part{Media: half})},
		{"anthropic", "601 images and documents, and Anthropic's messages takes at most 600", many},
		{"openai", "media of role assistant: only a message of the user can have any", []llm.Message{{Role: llm.RoleAssistant, Parts: []llm.Part{picture}}}},
		{"openai", "media of role system", []llm.Message{{Role: llm.RoleSystem, Parts: []llm.Part{picture}}}},
		{"openai", `the image is not described: its source is "nats://a/b"`, user(llm.Part{Media: &llm.Media{Kind: llm.KindImage, Source: "nats://a/b"}})},
	} {
		_, err := clientOf(t, tt.provider).Prepare(&llm.Request{Messages: tt.messages})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.provider, err, tt.want)
		}
	}
}

// Nothing that a row or an extra body contains is taken for the place of media.
func TestNoTextForgesAPlaceholder(t *testing.T) {
	m := mediaOf(t, llm.KindImage, llm.TypePNG)
	forged := `{"sha256":"` + m.SHA256 + `","bytes":24,"type":"image/png"}`
	r := &llm.Request{
		Model: "m", Messages: []llm.Message{{Role: llm.RoleUser, Parts: []llm.Part{{Text: forged}, {Media: m}}}},
		ExtraBody: json.RawMessage(`{"system":[{"type":"text","text":"x","cache_control":` + forged + `}],"metadata":` + forged + `}`),
	}
	client := newClient(t, "anthropic", llm.ProviderConfig{Model: "m", APIKey: redact.NewSecret("k")})
	r.System = "a system prompt that the extra body replaces by a shorter one, or by a longer one as it is here"
	p := must.Value(client.Prepare(r))(t)
	loaded := must.Value(p.Load(t.Context()))(t)
	b64 := base64.StdEncoding.EncodeToString([]byte(samples[llm.TypePNG]))
	want := strings.Replace(string(p.Body), `"data":`+forged, `"data":"`+b64+`"`, 1)
	if got := string(loaded.Sent()); got != want || strings.Count(got, forged) != 2 {
		t.Errorf("sent %s\nwant %s", got, want)
	}
}

// Do sends the content, and the exchange, which is what is stored, has the digest.
func TestDoSendsTheContent(t *testing.T) {
	var received string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		received = string(body)
		_, _ = io.WriteString(w, `{"choices":[{"message":{"content":"a cat"},"finish_reason":"stop"}]}`)
	}))
	defer server.Close()
	client := newClient(t, "mock", llm.ProviderConfig{BaseURL: server.URL})
	m := mediaOf(t, llm.KindImage, llm.TypePNG)
	p := must.Value(client.Prepare(&llm.Request{Messages: []llm.Message{{Role: llm.RoleUser, Parts: []llm.Part{{Media: m}}}}}))(t)
	x, err := client.Do(t.Context(), p)
	b64 := base64.StdEncoding.EncodeToString([]byte(samples[llm.TypePNG]))
	if err != nil || !strings.Contains(received, b64) || string(x.Request) != string(p.Body) {
		t.Errorf("%v: received %s, kept %s", err, received, x.Request)
	}

	open := m.Open
	for _, tt := range []struct {
		open  func(context.Context) (io.ReadCloser, error)
		class llm.Class
		want  string
	}{
		{func(context.Context) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("another")), nil }, llm.Permanent, "changed after the row was read"},
		{func(context.Context) (io.ReadCloser, error) { return nil, llm.InvalidMedia(errors.New("is gone")) }, llm.Permanent, "is gone"},
		{func(context.Context) (io.ReadCloser, error) {
			return nil, &llm.AwayError{Source: "nats://a/b", Err: errors.New("timeout")}
		}, llm.Transient, "nats://a/b: timeout"},
	} {
		m.Open, received = tt.open, ""
		x, err := client.Do(t.Context(), p)
		if e, ok := errors.AsType[*llm.Error](err); !ok || e.Class != tt.class || !strings.Contains(err.Error(), tt.want) || received != "" || x.Sent {
			t.Errorf("%v, want %s", err, tt.want)
		}
	}
	m.Open = open
}

// The estimates are those of the providers' own examples.
func TestTokensOfMedia(t *testing.T) {
	picture := func(w, h int, detail string) *llm.Media {
		m := mediaOf(t, llm.KindImage, llm.TypePNG)
		m.Width, m.Height, m.Detail = w, h, detail
		return m
	}
	pdf, sound := mediaOf(t, llm.KindFile, llm.TypePDF), mediaOf(t, llm.KindAudio, llm.TypeWAV)
	pdf.Pages, sound.Seconds = 3, 10
	url := &llm.Media{Kind: llm.KindImage, Source: address}
	for _, tt := range []struct {
		provider string
		media    *llm.Media
		want     int64
	}{
		{"openai", picture(1024, 1024, "high"), 765},
		{"openai", picture(2048, 4096, ""), 1105},
		{"openai", picture(4096, 8192, "low"), 85},
		{"openai", url, 765},
		{"openai", sound, 100},
		{"openai-responses", pdf, 3 * 1265},
		{"anthropic", picture(200, 200, ""), 54},
		{"anthropic", picture(1000, 1000, ""), 1334},
		{"anthropic", picture(8000, 8000, ""), 1600},
		{"anthropic", pdf, 3 * 2250},
		{"gemini", picture(384, 100, ""), 258},
		{"gemini", picture(1000, 700, ""), 516},
		{"gemini", pdf, 3 * 258},
		{"gemini", sound, 320},
		{"bedrock", picture(1000, 1000, ""), 1334},
		{"bedrock", sound, 320},
		{"vertex", picture(1000, 700, ""), 516},
		{"vertex: anthropic/m", picture(1000, 1000, ""), 1334},
	} {
		client := clientOf(t, tt.provider)
		p := must.Value(client.Prepare(&llm.Request{Messages: []llm.Message{{Role: llm.RoleUser, Parts: []llm.Part{{Media: tt.media}, {Media: tt.media}}}}}))(t)
		if p.MediaTokens != 2*tt.want {
			t.Errorf("%s: two of %s: %d tokens, want %d each", tt.provider, tt.media, p.MediaTokens, tt.want)
		}
	}
}
