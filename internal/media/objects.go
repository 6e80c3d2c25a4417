package media

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/llm"
)

// Objects are the JetStream object stores of a connection. It is safe for concurrent use.
//
// Package objects reads them. What this package adds is what a row needs: a link is
// followed, the bytes are not kept, and an error says whether the row is invalid or has to
// wait.
type Objects struct{ nc atomic.Pointer[nats.Conn] }

// NewObjects returns the object stores that a connection leads to.
func NewObjects(nc *nats.Conn) *Objects {
	s := new(Objects)
	s.Use(nc)
	return s
}

// Use makes the stores use another connection, since the present one is closed for good.
func (s *Objects) Use(nc *nats.Conn) {
	if s != nil {
		s.nc.Store(nc)
	}
}

// object says where an object is.
type object struct {
	source       string // as the row names it
	bucket, name string
}

// splitObject splits "nats://photos/2026/1.jpg" into the bucket photos and the name
// 2026/1.jpg. A name is taken as it is, without decoding of percent signs.
func splitObject(source string) (o object, err error) {
	o.source = source
	o.bucket, o.name, _ = strings.Cut(strings.TrimPrefix(source, objectScheme), "/")
	if !streams.IsBucket(o.bucket) || o.name == "" {
		return o, fmt.Errorf("%q names no object: write nats://BUCKET/NAME", excerpt.Of(source))
	}
	return o, nil
}

// describe reads what the store knows of an object, and its first bytes.
func (s *Objects) describe(ctx context.Context, source string, limit int64) (*llm.Content, error) {
	o, err := splitObject(source)
	if err != nil {
		return nil, err
	}
	info, err := s.look(ctx, &o)
	if err != nil {
		return nil, err
	}
	if link := info.Link(); link != nil { // it leads to an object, never to another link
		if o.bucket, o.name = link.Bucket, link.Name; !streams.IsBucket(o.bucket) || o.name == "" {
			return nil, o.foreign("is a link to a whole bucket")
		}
		if info, err = s.look(ctx, &o); err != nil {
			return nil, err
		}
	}
	digest := info.SHA256()
	switch {
	case digest == "" || info.Size == 0:
		return nil, o.foreign("has no content, or no SHA-256 digest")
	case info.Size > uint64(limit):
		return nil, fmt.Errorf("the object %s: %w", excerpt.Of(source), llm.ErrTooMuchMedia)
	}
	open := func(ctx context.Context) (io.ReadCloser, error) {
		return &objectReader{ctx: ctx, store: s, object: o, chunks: info.Chunks()}, nil
	}
	r, _ := open(ctx) // never fails: the first read does
	head := make([]byte, min(llm.HeadBytes, info.Size))
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	shape, err := llm.Sniff(head, int64(info.Size))
	if err != nil {
		return nil, fmt.Errorf("the object %s: %w", excerpt.Of(source), err)
	}
	return &llm.Content{SHA256: digest, Bytes: int64(info.Size), Shape: shape, Open: open}, nil
}

// look reads what the store knows of an object that exists.
func (s *Objects) look(ctx context.Context, o *object) (*objects.Object, error) {
	found, err := objects.Look(ctx, s.nc.Load(), o.bucket, o.name)
	switch {
	case err != nil:
		return nil, o.failed(ctx, err)
	case found.Deleted:
		return nil, o.foreign("was deleted")
	case !found.Exists():
		return nil, o.foreign("is missing")
	}
	return found, nil
}

// failed returns the error of a request that failed: the object can't be used, or nobody
// knows for now.
func (o *object) failed(ctx context.Context, err error) error {
	switch cause := context.Cause(ctx); {
	case cause != nil:
		return cause
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return o.foreign("is missing: there is no such bucket")
	case errors.Is(err, objects.ErrReplaced):
		return o.foreign("changed or was deleted after the row was read")
	case errors.Is(err, objects.ErrDamaged):
		return o.foreign("can't be read: " + err.Error())
	}
	return &llm.AwayError{Source: o.source, Err: err}
}

// foreign returns the error of an object that can't be used.
func (o *object) foreign(problem string) *llm.Error {
	return llm.InvalidMedia(fmt.Errorf("the object %s %s", excerpt.Of(o.source), problem))
}

// objectReader reads the body of an object, each chunk when it is needed.
type objectReader struct {
	ctx    context.Context //nolint:containedctx // of the one who opened it, who reads it
	store  *Objects
	object object
	chunks *objects.Chunks
	chunk  []byte // what is left of the last one
}

// Read implements [io.Reader].
func (r *objectReader) Read(p []byte) (n int, err error) {
	if len(r.chunk) == 0 {
		r.chunk, err = r.chunks.Next(r.ctx, r.store.nc.Load())
		if errors.Is(err, io.EOF) {
			return 0, io.EOF
		}
		if err != nil {
			return 0, r.object.failed(r.ctx, err)
		}
	}
	n = copy(p, r.chunk)
	r.chunk = r.chunk[n:]
	return n, nil
}

// Close implements [io.Closer].
func (r *objectReader) Close() error { return nil }
