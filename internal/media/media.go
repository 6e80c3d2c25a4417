// Package media finds the pictures, documents and sounds that the parts of a prompt name:
// what each is, and how to open it when the request is sent.
//
// A source is a data: URL, an object of a JetStream object store, or a file below the
// directory of a job's input. An https: URL is left to the provider. The bytes are not kept:
// digest, size and type are found before the row gets into the pool, so that the request
// has its hash, and the bytes are read when the call is made.
//
//	reader := &media.Reader{MaxBytes: 20 << 20, Objects: objects}
//	err := reader.Describe(ctx, request.Messages)
//	if away, ok := errors.AsType[*llm.AwayError](err); ok { /* wait: it is not the row's fault */ }
//	prepared, err := client.Prepare(&request)
//	loaded, err := prepared.Load(ctx) // now the bytes are read
package media

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/llm"
)

// Reader describes the media of conversations. Its fields are set before it is used. It is
// safe for concurrent use.
type Reader struct {
	// MaxBytes bounds the bytes of all media of a row, after decoding.
	MaxBytes int64
	// Objects are the object stores. Without them their addresses are left as they are.
	Objects *Objects
	// Files are the files that a path may name. Without them a path is an error.
	Files *Files
}

// These are the beginnings of sources, by which their kinds are told apart.
const (
	objectScheme = "nats://"
	httpsScheme  = "https://"
	bucketScheme = "gs://" // of Google's Cloud Storage, which Vertex AI reads itself
)

// NeedsReading reports whether the messages have media whose description takes more than a
// look at the prompt: a request to a server, or a file to read.
func NeedsReading(messages []llm.Message) bool {
	for m := range llm.MediaOf(messages) {
		if m.Content == nil && !llm.IsDataURL(m.Source) && m.URL() == "" {
			return true
		}
	}
	return false
}

// Describe sets the content of all media in messages, except those behind an https: or gs:
// URL, which the provider fetches, and objects where there are no stores.
// The error is an [*llm.Error] with [llm.ReasonInvalidRow] that names the part, an
// [*llm.AwayError] where a store can't be reached, or the cause of the end of ctx.
func (r *Reader) Describe(ctx context.Context, messages []llm.Message) error {
	left := r.MaxBytes
	for i := range messages {
		for j := range messages[i].Parts {
			m := messages[i].Parts[j].Media
			if m == nil {
				continue
			}
			c, err := r.content(ctx, m, left)
			if err != nil {
				return r.explain(err, i+1, j+1)
			}
			if m.Content = c; c != nil {
				left -= c.Bytes
			}
		}
	}
	return nil
}

// explain says which part an error is about.
func (r *Reader) explain(err error, message, part int) error {
	if _, is := errors.AsType[*llm.AwayError](err); is {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if errors.Is(err, llm.ErrTooMuchMedia) {
		err = fmt.Errorf("%w: at most %d bytes are allowed in a row (STAGE_MEDIA_MAX_BYTES)", err, r.MaxBytes)
	}
	if e, is := errors.AsType[*llm.Error](err); is {
		err = e.Err
	}
	return llm.InvalidMedia(fmt.Errorf("message %d, part %d: %w", message, part, err))
}

// content returns the content behind a source. It is nil where the provider fetches it.
func (r *Reader) content(ctx context.Context, m *llm.Media, limit int64) (*llm.Content, error) {
	source := m.Source
	switch scheme, _, is := strings.Cut(source, "://"); {
	case m.Content != nil:
		return m.Content, nil
	case llm.IsDataURL(source):
		return llm.DataURL(source, limit)
	case strings.HasPrefix(source, httpsScheme), strings.HasPrefix(source, bucketScheme):
		if u, err := url.Parse(source); err != nil || u.Host == "" {
			return nil, fmt.Errorf("%q is no address", excerpt.Of(source))
		}
		return nil, nil
	case strings.HasPrefix(source, objectScheme):
		if r.Objects == nil {
			return nil, nil
		}
		return r.Objects.describe(ctx, source, limit)
	case is:
		return nil, fmt.Errorf("%q begins with %q, which is not supported: there are https:, data: and nats://BUCKET/NAME", excerpt.Of(source), excerpt.Of(scheme)+":")
	case r.Files == nil:
		return nil, fmt.Errorf("%q is a path, and only rows that stage process reads from a file may have those: there are https:, data: and nats://BUCKET/NAME", excerpt.Of(source))
	}
	return r.Files.describe(source, limit)
}
