package llmtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// vertexGemini is generateContent at Vertex AI, in whose path a publisher, an endpoint or a
// project stands. Unlike the Gemini API it wants the role of each content, and the type of
// what is behind an address.
type vertexGemini struct{ gemini }

func (d vertexGemini) read(c *call) error {
	var v struct {
		Contents []struct {
			Role  string `json:"role"`
			Parts []struct {
				Remote *struct {
					MIMEType string `json:"mimeType"`
				} `json:"fileData"`
			} `json:"parts"`
		} `json:"contents"`
	}
	if err := json.Unmarshal(c.Body, &v); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	for _, content := range v.Contents {
		if content.Role != "user" && content.Role != "model" {
			return errors.New("Please use a valid role: user, model.") //nolint:revive,staticcheck // Google's words
		}
		for _, p := range content.Parts {
			if p.Remote != nil && p.Remote.MIMEType == "" {
				return errors.New("fileData.mimeType: required")
			}
		}
	}
	c.Model = vertexID(c.path)
	return d.gemini.read(c)
}

// vertexClaude is Anthropic's messages at Vertex AI. The model is in the path, and the
// version in the body.
type vertexClaude struct{ anthropic }

func (d vertexClaude) read(c *call) error {
	var v struct {
		Version string          `json:"anthropic_version"`
		Model   json.RawMessage `json:"model"`
	}
	if err := json.Unmarshal(c.Body, &v); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	switch {
	case v.Version == "":
		return errors.New("anthropic_version: Field required")
	case v.Model != nil:
		return errors.New("model: Extra inputs are not permitted")
	case !strings.Contains(c.path, "/publishers/anthropic/models/"):
		return errNoModel
	}
	c.Model = vertexID(c.path)
	return d.anthropic.read(c)
}

// fault is Google's where the request does not get to the model, and else Anthropic's.
func (d vertexClaude) fault(f failure) []byte {
	switch f.status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return gemini{}.fault(f)
	}
	return d.anthropic.fault(f)
}

// vertexID returns the last part of a model's path, without the method.
func vertexID(path string) string {
	id, _, _ := strings.Cut(path[strings.LastIndexByte(path, '/')+1:], ":")
	return id
}

// isVertex reports whether a path is one of Vertex AI.
func isVertex(path string) bool {
	return strings.Contains(path, "/publishers/") || strings.Contains(path, "/endpoints/")
}
