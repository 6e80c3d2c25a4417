package llm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/jsonbytes"
)

// Prepared is a request as it goes over the wire, ready to be sent any number
// of times. It is read only.
type Prepared struct {
	// Model is the model asked.
	Model string
	// Body is the JSON sent. It holds no credential but what the extra body holds.
	Body []byte

	*address
	rowModel bool
	cached   bool // marks parts for the provider's cache
}

// address is where requests for a model go.
type address struct {
	url    *url.URL
	target string // its host and path
}

// Target returns the host and path that the request goes to, without
// credentials. Together with Body it identifies what is asked of whom: some
// wire formats name the model in the path alone.
func (p *Prepared) Target() string { return p.target }

// Prepare translates a request. The error is an [*Error] of class Permanent:
// a temperature that is no number, an extra body that cannot be merged.
func (c *Client) Prepare(r *Request) (*Prepared, error) {
	p := &Prepared{Model: r.Model, address: c.own}
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
			return nil, c.invalid(fmt.Errorf("model %q: %w", excerpt.Of(p.Model), err))
		}
		p.address, p.rowModel = address, true
	}
	p.Body = c.cfg.Wire.AppendRequest(make([]byte, 0, sizeOf(r)), r)
	if len(r.ExtraBody) > 0 {
		p.cached = bytes.Contains(r.ExtraBody, []byte(`"cache_control"`))
		p.Body = jsonbytes.AppendMerged(make([]byte, 0, len(p.Body)+len(r.ExtraBody)), p.Body, r.ExtraBody)
	}
	return p, nil
}

// sizeOf estimates the bytes of a request: its texts, some escapes, the frame.
func sizeOf(r *Request) int {
	n := len(r.Model) + len(r.System) + len(r.Context) + len(r.Prompt) + len(r.Rejected) + len(r.Complaint)
	if r.Schema != nil {
		n += len(r.Schema.Source())
	}
	return n + n/16 + 256
}

func (c *Client) invalid(err error) error {
	return &Error{Provider: c.cfg.Provider, Class: Permanent, Reason: ReasonAPICallFailed, Err: err}
}

// address returns where requests for model go. A row may name the model, so a
// name must not lead the key to another address of the provider.
func (c *Client) address(model string) (*address, error) {
	if strings.Contains(model, "..") {
		return nil, errors.New(`holds ".."`)
	}
	u, err := url.Parse(c.base.String() + c.cfg.Wire.Path(model))
	if err != nil {
		return nil, err
	}
	return &address{url: u, target: u.Host + u.RequestURI()}, nil
}

// Hash returns the SHA-256 of b in lower-case hexadecimal.
func Hash(b []byte) string {
	sum := sha256.Sum256(b)
	var text [2 * sha256.Size]byte
	hex.Encode(text[:], sum[:])
	return string(text[:])
}
