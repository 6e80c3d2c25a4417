package objects

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

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Errors of reading that last: another attempt finds the same. Any other error may pass.
var (
	ErrMissing = errors.New("the object does not exist")
	ErrDamaged = errors.New("the object is damaged")
	ErrLarge   = errors.New("the object is too large")
)

// ErrReplaced is an [ErrDamaged] of [Chunks.Next]: a chunk is missing. The usual reason is
// that the object was deleted since it was looked up, or that another one has its name.
var ErrReplaced = fmt.Errorf("%w: a chunk is missing", ErrDamaged)

// Lasts reports whether an error of reading lasts.
func Lasts(err error) bool {
	return errors.Is(err, ErrMissing) || errors.Is(err, ErrDamaged) || errors.Is(err, ErrLarge)
}

const (
	// bodyBytesFirst bounds the memory for a body before any of it is read.
	bodyBytesFirst = 16 << 20
	// replacedMost is how often an object may be replaced by another of its name while it
	// is read, until that counts as damage.
	replacedMost = 3
)

// Get returns the body of an object, of at most most bytes. The digest that is stored
// with the object is checked. Besides [ErrMissing], [ErrDamaged] and [ErrLarge] the error
// may be that the server does not answer, or that the bucket does not exist.
func Get(ctx context.Context, nc *nats.Conn, bucket, name string, most int64) (body []byte, err error) {
	for range replacedMost {
		var o *Object
		if o, err = Look(ctx, nc, bucket, name); err != nil {
			break
		}
		if body, err = o.read(ctx, nc, most); !errors.Is(err, ErrReplaced) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("object %s/%s: %w", bucket, name, err)
	}
	return body, nil
}

// Object is what a bucket says about a name. What is embedded was written by whoever has
// stored the object; it is empty if there is none.
type Object struct {
	jetstream.ObjectInfo

	bucket string
	seq    uint64 // of the message that says it, or 0 if there is none
}

// chunksToken is what an object may name its chunks by. It becomes a token of a subject:
// with ">" there, the removal of one object would purge the chunks of all.
var chunksToken = regexp.MustCompile(`^[a-zA-Z0-9]*$`)

// Look asks the leader of a bucket what it says about a name. The error is [ErrDamaged]
// where that describes no object; otherwise the server does not answer, or the bucket does
// not exist.
func Look(ctx context.Context, nc *nats.Conn, bucket, name string) (*Object, error) {
	m, err := streams.LastMessage(ctx, nc, streams.BucketStream(bucket), streams.BucketObject(bucket, name))
	if err != nil {
		return nil, err
	}
	o := &Object{bucket: bucket}
	if m == nil {
		return o, nil
	}
	if err := json.Unmarshal(m.Data, &o.ObjectInfo); err != nil {
		return nil, fmt.Errorf("%w: what is stored about it is no JSON: %w", ErrDamaged, err)
	}
	if !chunksToken.MatchString(o.NUID) {
		return nil, fmt.Errorf("%w: what is stored about it names no chunks: nuid %.40q", ErrDamaged, o.NUID)
	}
	o.seq = m.Sequence
	return o, nil
}

// Exists reports whether there is an object of the name. A deleted one leaves a message
// that says so.
func (o *Object) Exists() bool { return o.seq > 0 && !o.Deleted }

// Link returns what the object is a link to, or nil if it has a body of its own.
func (o *Object) Link() *jetstream.ObjectLink {
	if o.Opts == nil {
		return nil
	}
	return o.Opts.Link
}

// SHA256 returns the hash of the body in hexadecimal, as it is stored with the object. It
// is empty if the object has none.
func (o *Object) SHA256() string {
	sum, err := base64.URLEncoding.DecodeString(strings.TrimPrefix(o.Digest, digestPrefix))
	if err != nil || len(sum) != 32 {
		return ""
	}
	return hex.EncodeToString(sum)
}

// chunksSubject is the subject of the object's chunks.
func (o *Object) chunksSubject() string { return streams.BucketChunks(o.bucket) + o.NUID }

// read returns the whole body, and checks its digest.
func (o *Object) read(ctx context.Context, nc *nats.Conn, most int64) ([]byte, error) {
	switch {
	case !o.Exists():
		return nil, ErrMissing
	case o.Link() != nil:
		return nil, fmt.Errorf("%w: it is a link to another object", ErrDamaged)
	case o.Size > uint64(max(most, 0)): //nolint:gosec // not negative
		return nil, fmt.Errorf("%w: it has %d bytes, at most %d are read", ErrLarge, o.Size, most)
	}
	body := make([]byte, 0, min(o.Size, bodyBytesFirst)) // its size is what somebody has written
	for chunks := o.Chunks(); ; {
		chunk, err := chunks.Next(ctx, nc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		body = append(body, chunk...)
	}
	if digestOf(body) != o.Digest {
		return nil, fmt.Errorf("%w: its digest is %s, not %s", ErrDamaged, digestOf(body), o.Digest)
	}
	return body, nil
}

// Chunks reads the body of an object in pieces. It is for one goroutine.
type Chunks struct {
	stream, subject string
	seq             uint64 // of the last chunk that was read
	size, left      uint64 // bytes of the body, and those that were not read yet
}

// Chunks returns the chunks of the object, which must exist.
func (o *Object) Chunks() *Chunks {
	return &Chunks{
		stream: streams.BucketStream(o.bucket), subject: o.chunksSubject(), size: o.Size, left: o.Size,
	}
}

// Next reads the next chunk from the bucket's leader. It has at least one byte. The error
// is [io.EOF] after the last chunk, [ErrReplaced] where one is missing, and [ErrDamaged]
// where the chunks do not have the size of the object. After any other error, such as that
// the server does not answer, Next may be called again, also with another connection.
//
// The caller compares the body with the object's hash: the chunks may be others of the same
// size.
func (c *Chunks) Next(ctx context.Context, nc *nats.Conn) ([]byte, error) {
	if c.left == 0 {
		return nil, io.EOF
	}
	m, err := streams.NextMessage(ctx, nc, c.stream, c.subject, c.seq+1)
	switch {
	case err != nil:
		return nil, err
	case m == nil:
		return nil, fmt.Errorf("%w: it has %d of %d bytes", ErrReplaced, c.size-c.left, c.size)
	case len(m.Data) == 0 || uint64(len(m.Data)) > c.left:
		return nil, fmt.Errorf("%w: its chunks do not have its size", ErrDamaged)
	}
	c.seq = m.Sequence
	c.left -= uint64(len(m.Data))
	return m.Data, nil
}
