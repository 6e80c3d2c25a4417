package llmtest

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// The server has no eyes, but it says what it was shown. To texts of the user it answers as
// [Answer] does. To a conversation with other roles, and to one with pictures, documents or
// sounds, it adds which roles and which media it was sent, so that a test or an example sees
// that they arrived whole:
//
//	Answer 5f0c1e77 to: What is this? | saw system, user (image/png, 70 bytes, sha256 1d8f…)

// message is a turn of a conversation. Its content is a text, or a list of parts.
type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// turn reads the message.
func (m message) turn() (t turn, err error) {
	t.role = m.Role
	if json.Unmarshal(m.Content, &t.text) == nil {
		return t, nil
	}
	var parts []part
	_ = json.Unmarshal(m.Content, &parts) // what is neither a text nor a list of parts says nothing
	return t, t.add(parts)
}

// text returns the texts of the message, whatever else it holds.
func (m message) text() string {
	t, _ := m.turn() // of the system prompt, which has no media
	return t.text
}

// turn is what the server saw of one message.
type turn struct {
	role  string
	text  string
	media []string // one description of each
}

// part is one part of a message, in the words of any dialect.
type part struct {
	Text string `json:"text"`

	// OpenAI's chat completions, and responses where they differ.
	ImageURL   json.RawMessage `json:"image_url"` // an object with a URL; in responses the URL
	InputAudio *struct {
		Data   string `json:"data"`
		Format string `json:"format"`
	} `json:"input_audio"`
	File *struct {
		Data string `json:"file_data"`
	} `json:"file"`
	FileData string `json:"file_data"`
	FileURL  string `json:"file_url"`

	// Anthropic's messages.
	Source *struct {
		MediaType string `json:"media_type"`
		Data      string `json:"data"`
		URL       string `json:"url"`
	} `json:"source"`

	// Gemini's generateContent.
	InlineData *struct {
		MIMEType string `json:"mimeType"`
		Data     string `json:"data"`
	} `json:"inlineData"`
	Remote *struct {
		URI string `json:"fileUri"`
	} `json:"fileData"`
}

// add adds the parts of a message to the turn.
func (t *turn) add(parts []part) error {
	var text strings.Builder
	for i := range parts {
		text.WriteString(parts[i].Text)
		medium, err := parts[i].medium()
		if err != nil {
			return fmt.Errorf("messages: part %d: %w", i+1, err)
		}
		if medium != "" {
			t.media = append(t.media, medium)
		}
	}
	t.text = text.String()
	return nil
}

// medium describes the picture, document or sound of a part. A part of text has none.
func (p *part) medium() (string, error) {
	switch {
	case len(p.ImageURL) > 0:
		var object struct {
			URL string `json:"url"`
		}
		if json.Unmarshal(p.ImageURL, &object.URL) != nil && json.Unmarshal(p.ImageURL, &object) != nil {
			return "", errors.New("image_url: neither a URL nor an object with one")
		}
		return linked(object.URL)
	case p.InputAudio != nil:
		return encoded("audio/"+p.InputAudio.Format, p.InputAudio.Data)
	case p.File != nil:
		return linked(p.File.Data)
	case p.FileData != "":
		return linked(p.FileData)
	case p.FileURL != "":
		return linked(p.FileURL)
	case p.Source != nil && p.Source.URL != "":
		return linked(p.Source.URL)
	case p.Source != nil:
		return encoded(p.Source.MediaType, p.Source.Data)
	case p.InlineData != nil:
		return encoded(p.InlineData.MIMEType, p.InlineData.Data)
	case p.Remote != nil:
		return linked(p.Remote.URI)
	}
	return "", nil
}

// linked describes what a URL leads to: the data within it, or, as nothing is fetched, the
// URL itself.
func linked(url string) (string, error) {
	rest, isData := strings.CutPrefix(url, "data:")
	if !isData {
		if !strings.HasPrefix(url, "https://") && !strings.HasPrefix(url, "gs://") {
			return "", fmt.Errorf("%.40q is neither an https URL nor a data URL", url)
		}
		return url, nil
	}
	kind, data, ok := strings.Cut(rest, ";base64,")
	if !ok {
		return "", fmt.Errorf("%.40q is no data URL in base64", url)
	}
	return encoded(kind, data)
}

// encoded describes data in base64.
func encoded(kind, data string) (string, error) {
	content, err := base64.StdEncoding.DecodeString(data)
	switch {
	case err != nil:
		return "", fmt.Errorf("data of %s: %w", kind, err)
	case len(content) == 0:
		return "", fmt.Errorf("data of %s: empty", kind)
	}
	return fmt.Sprintf("%s, %d bytes, sha256 %x", kind, len(content), sha256.Sum256(content)), nil
}

// see notes the turns of a call. The last one's text is the prompt.
func (c *call) see(turns []turn) {
	last := len(turns) - 1
	c.Prompt = turns[last].text
	var saw []string
	if c.System != "" {
		saw = append(saw, "system")
	}
	plain := true // only the user speaks, and only in texts
	for i, t := range turns {
		if t.role == "system" || t.role == "developer" { // its text is in c.System
			continue
		}
		if i < last {
			c.earlier += len(t.text)
		}
		plain = plain && t.media == nil && (t.role == "user" || t.role == "")
		for _, medium := range t.media {
			t.role += " (" + medium + ")"
		}
		saw = append(saw, t.role)
	}
	if !plain {
		c.saw = strings.Join(saw, ", ")
	}
}
