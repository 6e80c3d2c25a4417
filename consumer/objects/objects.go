// Package objects keeps bodies that are too large for a message in a bucket of
// JetStream's object store. The message has a [Ref] in its headers in place of the body.
//
//	ref, err := objects.Put(ctx, nc, "LARGE", objects.Name("stage", 0, 7, body), body)
//	ref.Set(msg.Header)                 // the writer's message has no body then
//	ref, is := objects.RefOf(m.Header)  // a reader follows it
//	body, err := ref.Get(ctx, nc, 64<<20)
//
// It also reads the objects of others: [Get] reads a whole body, and [Look] and [Chunks]
// read one piece by piece.
//
// Objects are stored as the client library and the nats CLI store them, so `nats object
// get` reads them. The package has its own code for three reasons:
//
//   - The library sends the object's name along with its chunks, and a bucket that is full
//     may take the name without the chunks. Here the name is stored after every chunk is.
//   - The library asks any replica whether an object exists, also one that lags. Here the
//     leader is asked, so an object that was stored is never taken for a missing one.
//   - The library reads the chunks through a consumer, which stays for a while after a
//     kill. Here each chunk is a request of its own, whose answer also says at once whether
//     the chunk is missing or the server is.
package objects

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	digestPrefix = "SHA-256="
	// chunkBytes is the size of a chunk where the server's messages may be that large,
	// and chunkSpare is what is left for headers in one that is smaller.
	chunkBytes = 512 << 10
	chunkSpare = 1 << 10
	// chunkBytesMin bounds how small chunks get, however small the server's messages are.
	chunkBytesMin = 1 << 10
)

// Ref names an object and what is in it. The zero value names none.
type Ref struct {
	Bucket, Name string
	Digest       string
	Bytes        int64
}

// Name returns the name of the object of a row's body: stage, partition, row, and the
// SHA-256 of the body. So an attempt that is repeated after a crash writes the same object
// again, and a rival that has another body for the row never overwrites it.
func Name(stage string, partition int, row uint64, body []byte) string {
	sum := sha256.Sum256(body)
	return fmt.Sprintf("%s/%d/%d/%s", stage, partition, row, hex.EncodeToString(sum[:]))
}

// NewRef returns what [Put] returns for a body.
func NewRef(bucket, name string, body []byte) Ref {
	return Ref{Bucket: bucket, Name: name, Digest: digestOf(body), Bytes: int64(len(body))}
}

func digestOf(body []byte) string {
	sum := sha256.Sum256(body)
	return digestPrefix + base64.URLEncoding.EncodeToString(sum[:])
}

// String is BUCKET/NAME.
func (r Ref) String() string { return r.Bucket + "/" + r.Name }

// Set writes the headers of a message whose body is the object.
func (r Ref) Set(h nats.Header) {
	h[streams.HeaderObject] = []string{r.String()}
	h[streams.HeaderObjectDigest] = []string{r.Digest}
	h[streams.HeaderObjectBytes] = []string{strconv.FormatInt(r.Bytes, 10)}
}

// HeaderBytesMost is how many bytes the headers of [Ref.Set] take at most for a body of
// [Name].
const HeaderBytesMost = 512

// RefOf reads what [Ref.Set] has written. is is false for a message that has its own body.
func RefOf(h nats.Header) (r Ref, is bool) {
	if len(h[streams.HeaderObject]) == 0 { // nearly always
		return Ref{}, false
	}
	var named bool
	r.Bucket, r.Name, named = strings.Cut(h.Get(streams.HeaderObject), "/")
	r.Digest = h.Get(streams.HeaderObjectDigest)
	size, err := strconv.ParseInt(h.Get(streams.HeaderObjectBytes), 10, 64)
	r.Bytes = size
	if !named || r.Name == "" || !streams.IsBucket(r.Bucket) || err != nil || size < 0 || !strings.HasPrefix(r.Digest, digestPrefix) {
		return Ref{}, false
	}
	return r, true
}

// Get returns the body, of at most most bytes. One that is not the body which the Ref was
// made for is [ErrDamaged].
func (r Ref) Get(ctx context.Context, nc *nats.Conn, most int64) (body []byte, err error) {
	if r.Bytes > most {
		return nil, fmt.Errorf("%s: %w: it has %d bytes, at most %d are read", r, ErrLarge, r.Bytes, most)
	}
	body, err = Get(ctx, nc, r.Bucket, r.Name, r.Bytes)
	if errors.Is(err, ErrLarge) {
		return nil, fmt.Errorf("%s: %w: it has more than the %d bytes that it should", r, ErrDamaged, r.Bytes)
	}
	if err == nil && digestOf(body) != r.Digest {
		return nil, fmt.Errorf("%s: %w: its digest is %s, not %s", r, ErrDamaged, digestOf(body), r.Digest)
	}
	return body, err
}

// Put stores a body as an object, unless the bucket has it already. When it returns, every
// byte is acknowledged.
//
// The chunks go first and the name last, so that a name never stands for half a body. The
// name is stored on condition that nobody has stored one meanwhile:
//
//	A sends all chunks of row 7's body, and is suspended.
//	B takes over, has an equal reply for the row, and stores the same object, with chunks of its own.
//	A wakes up. Without the condition its name would replace B's, and nobody would ever remove B's chunks.
//	With it A is refused, finds that the object is there, and removes its own chunks.
func Put(ctx context.Context, nc *nats.Conn, bucket, name string, body []byte) (Ref, error) {
	ref := NewRef(bucket, name, body)
	o, err := Look(ctx, nc, bucket, name)
	if err == nil && !o.holds(ref) {
		err = o.write(ctx, nc, ref, body)
	}
	if err != nil {
		return Ref{}, fmt.Errorf("object %s: %w", ref, err)
	}
	return ref, nil
}

// holds reports whether the object is the one that ref names.
func (o *Object) holds(ref Ref) bool {
	return o.Exists() && o.Digest == ref.Digest && o.Size == uint64(ref.Bytes) //nolint:gosec // not negative
}

// write stores the object on condition that o is still what the bucket says about the
// name.
func (o *Object) write(ctx context.Context, nc *nats.Conn, ref Ref, body []byte) error {
	id := rand.Text()
	chunks := streams.BucketChunks(ref.Bucket) + id
	size := max(min(chunkBytes, int(nc.MaxPayload())-chunkSpare), chunkBytesMin)
	count := uint32(0)
	for rest := body; len(rest) > 0; count++ {
		chunk := rest[:min(size, len(rest))]
		if err := appendOne(ctx, nc, ref.Bucket, &nats.Msg{Subject: chunks, Data: chunk, Header: nats.Header{}}); err != nil {
			purge(ctx, nc, ref.Bucket, chunks)
			return err
		}
		rest = rest[len(chunk):]
	}
	data, err := json.Marshal(&jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: ref.Name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: uint32(size)}}, //nolint:gosec // at most 512 KiB
		Bucket:     ref.Bucket, NUID: id, Size: uint64(len(body)), Chunks: count, Digest: ref.Digest,
	})
	if err != nil {
		return err
	}
	err = appendOne(ctx, nc, ref.Bucket, &nats.Msg{Subject: streams.BucketObject(ref.Bucket, ref.Name), Data: data, Header: nats.Header{
		jetstream.MsgRollup:                 {jetstream.MsgRollupSubject},
		jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(o.seq, 10)},
	}})
	if !errors.Is(err, streams.ErrRefused) {
		return err // without an answer the name may be stored, so the chunks stay
	}
	purge(ctx, nc, ref.Bucket, chunks)
	if now, lookErr := Look(ctx, nc, ref.Bucket, ref.Name); lookErr == nil && now.holds(ref) {
		return nil
	}
	return err
}

func appendOne(ctx context.Context, nc *nats.Conn, bucket string, m *nats.Msg) error {
	m.Header[jetstream.ExpectedStreamHeader] = []string{streams.BucketStream(bucket)}
	_, err := streams.Append(ctx, nc, []*nats.Msg{m})
	return err
}

// Remove removes an object and leaves nothing of it. One that does not exist is no error.
// The name goes first: a reader finds either the object or none.
func Remove(ctx context.Context, nc *nats.Conn, bucket, name string) error {
	o, err := Look(ctx, nc, bucket, name)
	if err == nil && o.seq > 0 {
		stream := streams.BucketStream(bucket)
		if err = streams.Purge(ctx, nc, stream, streams.BucketObject(bucket, name)); err == nil {
			err = streams.Purge(ctx, nc, stream, o.chunksSubject())
		}
	}
	if err != nil {
		return fmt.Errorf("remove object %s/%s: %w", bucket, name, err)
	}
	return nil
}

// purge removes the chunks of an attempt that has failed. Where that fails, too, they
// stay: no object names them. A caller that must end does not wait for it.
func purge(ctx context.Context, nc *nats.Conn, bucket, chunks string) {
	if ctx.Err() != nil {
		_ = streams.AskForPurge(nc, streams.BucketStream(bucket), chunks)
		return
	}
	_ = streams.Purge(ctx, nc, streams.BucketStream(bucket), chunks)
}

// Erase is [Remove] with the bytes overwritten on disk as far as the server can. The
// chunks go first: only the name says which they are, so an attempt that was interrupted
// finds the rest of them.
func Erase(ctx context.Context, nc *nats.Conn, bucket, name string) error {
	o, err := Look(ctx, nc, bucket, name)
	if err == nil && o.seq > 0 {
		err = o.erase(ctx, nc)
	}
	if err != nil {
		return fmt.Errorf("erase object %s/%s: %w", bucket, name, err)
	}
	return nil
}

func (o *Object) erase(ctx context.Context, nc *nats.Conn) error {
	stream, chunks := streams.BucketStream(o.bucket), o.chunksSubject()
	for {
		seq, err := streams.NextSequence(ctx, nc, stream, chunks, 1)
		if err != nil {
			return err
		}
		if seq == 0 {
			_, err := streams.Erase(ctx, nc, stream, o.seq)
			return err
		}
		if _, err := streams.Erase(ctx, nc, stream, seq); err != nil {
			return err
		}
	}
}
