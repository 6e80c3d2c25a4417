package media

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/llm"
)

// Objects are the JetStream object stores of a connection. It is safe for concurrent use.
//
// A store is a stream. An object is one message with what is known of it, digest included,
// under a subject made of its name, and its chunks under a subject of their own. Both are
// read by single gets from the stream's leader. These need no consumer, so they leave
// nothing behind when the process is killed, and each says at once whether the message is
// missing or nobody answered. A replica that lags is never asked: it would miss the photo
// that a producer has stored just before its row.
type Objects struct{ nc atomic.Pointer[nats.Conn] }

// NewObjects returns the object stores that a connection leads to.
func NewObjects(nc *nats.Conn) *Objects {
	s := new(Objects)
	s.Use(nc)
	return s
}

// Use has the stores be reached over another connection, since the present one is closed
// for good.
func (s *Objects) Use(nc *nats.Conn) {
	if s != nil {
		s.nc.Store(nc)
	}
}

// chunksName matches the token of an object's chunks, which goes into a subject.
var chunksName = regexp.MustCompile(`^[a-zA-Z0-9]+$`)

// object is where an object is.
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
	info, err := s.info(ctx, &o)
	if err == nil && info.Opts != nil && info.Opts.Link != nil { // one link leads to an object, never to another link
		if o.bucket, o.name = info.Opts.Link.Bucket, info.Opts.Link.Name; !streams.IsBucket(o.bucket) || o.name == "" {
			return nil, o.foreign("is a link to a whole bucket")
		}
		info, err = s.info(ctx, &o)
	}
	if err != nil {
		return nil, err
	}
	digest, err := digestOf(info)
	switch {
	case err != nil || info.Size == 0 || !chunksName.MatchString(info.NUID):
		return nil, o.foreign("has no content, or no SHA-256 digest")
	case info.Size > uint64(limit):
		return nil, fmt.Errorf("the object %s: %w", excerpt.Of(source), llm.ErrTooMuchMedia)
	}
	open := func(ctx context.Context) (io.ReadCloser, error) {
		return &objectReader{ctx: ctx, store: s, object: o, chunks: streams.BucketChunks(o.bucket) + info.NUID, left: info.Size}, nil
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

// digestOf returns the SHA-256 of an object in hexadecimal.
func digestOf(info *jetstream.ObjectInfo) (string, error) {
	sum, err := base64.URLEncoding.DecodeString(strings.TrimPrefix(info.Digest, "SHA-256="))
	if err != nil || len(sum) != 32 {
		return "", errors.New("no digest")
	}
	return hex.EncodeToString(sum), nil
}

// info reads what the store knows of an object.
func (s *Objects) info(ctx context.Context, o *object) (*jetstream.ObjectInfo, error) {
	m, err := streams.LastMessage(ctx, s.nc.Load(), streams.BucketStream(o.bucket), streams.BucketObject(o.bucket, o.name))
	switch {
	case err != nil:
		return nil, o.failed(ctx, err)
	case m == nil:
		return nil, o.foreign("is missing")
	}
	var info jetstream.ObjectInfo
	switch err := json.Unmarshal(m.Data, &info); {
	case err != nil:
		return nil, o.foreign("is no object")
	case info.Deleted:
		return nil, o.foreign("was deleted")
	}
	return &info, nil
}

// failed returns the error of a request that got no message: the bucket does not exist, or
// nobody knows for now.
func (o *object) failed(ctx context.Context, err error) error {
	switch cause := context.Cause(ctx); {
	case cause != nil:
		return cause
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return o.foreign("is missing: there is no such bucket")
	}
	return &llm.AwayError{Source: o.source, Err: err}
}

// foreign returns the error of an object that can't be used.
func (o *object) foreign(problem string) *llm.Error {
	return llm.InvalidMedia(fmt.Errorf("the object %s %s", excerpt.Of(o.source), problem))
}

// objectReader reads the chunks of an object, each when it is needed.
type objectReader struct {
	ctx    context.Context //nolint:containedctx // of the one who opened it, who reads it
	store  *Objects
	object object
	chunks string // their subject
	seq    uint64 // of the last chunk
	chunk  []byte // what is left of it
	left   uint64 // bytes of the chunks that were not got yet
}

// Read implements [io.Reader].
func (r *objectReader) Read(p []byte) (int, error) {
	if len(r.chunk) == 0 {
		if r.left == 0 {
			return 0, io.EOF
		}
		m, err := streams.NextMessage(r.ctx, r.store.nc.Load(), streams.BucketStream(r.object.bucket), r.chunks, r.seq+1)
		switch {
		case err != nil:
			return 0, r.object.failed(r.ctx, err)
		case m == nil: // a new content replaces the chunks of the old one
			return 0, r.object.foreign("changed or was deleted after the row was read")
		case len(m.Data) == 0 || uint64(len(m.Data)) > r.left:
			return 0, r.object.foreign("is damaged: its chunks do not have its size")
		}
		r.seq, r.chunk = m.Sequence, m.Data
		r.left -= uint64(len(m.Data))
	}
	n := copy(p, r.chunk)
	r.chunk = r.chunk[n:]
	return n, nil
}

// Close implements [io.Closer].
func (r *objectReader) Close() error { return nil }
