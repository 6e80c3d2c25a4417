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
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/llm"
)

// bucketsMax bounds the buckets whose streams are remembered.
const bucketsMax = 64

// Objects are the JetStream object stores of a connection. It is safe for concurrent use.
//
// A store is a stream. An object is one message with what is known of it, digest included,
// under a subject made of its name, and its chunks under a subject of their own. Both are
// read by single gets: these need no consumer, so they leave nothing behind when the
// process is killed, and each says at once whether the message is missing or nobody
// answered.
type Objects struct {
	mu      sync.Mutex
	js      jetstream.JetStream
	buckets map[string]jetstream.Stream
}

// NewObjects returns the object stores that a connection leads to.
func NewObjects(nc *nats.Conn) (*Objects, error) {
	s := &Objects{}
	return s, s.Use(nc)
}

// Use has the stores be reached over another connection, since the present one is closed
// for good.
func (s *Objects) Use(nc *nats.Conn) error {
	if s == nil {
		return nil
	}
	js, err := streams.JetStream(nc)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.js, s.buckets = js, make(map[string]jetstream.Stream)
	return nil
}

var (
	bucketName = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)
	chunksName = regexp.MustCompile(`^[a-zA-Z0-9]+$`)
)

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
	if !bucketName.MatchString(o.bucket) || o.name == "" {
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
		if o.bucket, o.name = info.Opts.Link.Bucket, info.Opts.Link.Name; !bucketName.MatchString(o.bucket) || o.name == "" {
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
		stream, err := s.bucket(ctx, &o)
		if err != nil {
			return nil, err
		}
		return &objectReader{
			ctx: ctx, store: s, object: o, stream: stream,
			subject: "$O." + o.bucket + ".C." + info.NUID, left: info.Size,
		}, nil
	}
	r, err := open(ctx)
	if err != nil {
		return nil, err
	}
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
	stream, err := s.bucket(ctx, o)
	if err != nil {
		return nil, err
	}
	m, err := stream.GetLastMsgForSubject(ctx, "$O."+o.bucket+".M."+base64.URLEncoding.EncodeToString([]byte(o.name)))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, o.foreign("is missing")
	}
	if err != nil {
		return nil, s.away(ctx, o, err)
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

// bucket returns the stream of a bucket.
func (s *Objects) bucket(ctx context.Context, o *object) (jetstream.Stream, error) {
	s.mu.Lock()
	stream, js := s.buckets[o.bucket], s.js
	s.mu.Unlock()
	if stream != nil {
		return stream, nil
	}
	stream, err := js.Stream(ctx, "OBJ_"+o.bucket)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, o.foreign("is missing: there is no such bucket")
	}
	if err != nil {
		return nil, s.away(ctx, o, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.buckets) >= bucketsMax {
		clear(s.buckets)
	}
	s.buckets[o.bucket] = stream
	return stream, nil
}

// away returns the error of a request that nobody answered. The stream is asked for again
// next time: the one that is remembered may have been deleted.
func (s *Objects) away(ctx context.Context, o *object, err error) error {
	s.mu.Lock()
	delete(s.buckets, o.bucket)
	s.mu.Unlock()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return &llm.AwayError{Source: o.source, Err: fmt.Errorf("bucket %s: %w", o.bucket, err)}
}

// foreign returns the error of an object that can't be used.
func (o *object) foreign(problem string) *llm.Error {
	return llm.InvalidMedia(fmt.Errorf("the object %s %s", excerpt.Of(o.source), problem))
}

// objectReader reads the chunks of an object, each when it is needed.
type objectReader struct {
	ctx     context.Context //nolint:containedctx // of the one who opened it, who reads it
	store   *Objects
	object  object
	stream  jetstream.Stream
	subject string
	seq     uint64 // of the last chunk
	chunk   []byte // what is left of it
	left    uint64 // bytes of the chunks that were not got yet
}

// Read implements [io.Reader].
func (r *objectReader) Read(p []byte) (int, error) {
	if len(r.chunk) == 0 {
		if r.left == 0 {
			return 0, io.EOF
		}
		m, err := r.stream.GetMsg(r.ctx, r.seq+1, jetstream.WithGetMsgSubject(r.subject))
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound): // a new content replaces the chunks of the old one
			return 0, r.object.foreign("changed or was deleted after the row was read")
		case err != nil:
			return 0, r.store.away(r.ctx, &r.object, err)
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
