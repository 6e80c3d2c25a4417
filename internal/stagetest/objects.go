package stagetest

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Picture is the beginning of a PNG, enough to be taken for one.
const Picture = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x08\x00\x00\x00\x08"

// Bucket is an object store. The library's own client starts goroutines that outlive a
// bubble.
type Bucket struct {
	tb     testing.TB
	js     jetstream.JetStream
	stream jetstream.Stream
	name   string
	chunks map[string]string // subjects of the contents, by name
}

// NewBucket creates an object store.
func NewBucket(tb testing.TB, js jetstream.JetStream, name string) *Bucket {
	tb.Helper()
	Value(js.CreateObjectStore(tb.Context(), jetstream.ObjectStoreConfig{Bucket: name}))(tb)
	return &Bucket{tb: tb, js: js, name: name, stream: Value(js.Stream(tb.Context(), "OBJ_"+name))(tb), chunks: make(map[string]string)}
}

// Put stores an object in place of the one with its name. Without content it is deleted.
func (b *Bucket) Put(name, content string) {
	b.tb.Helper()
	ctx, sum := b.tb.Context(), sha256.Sum256([]byte(content))
	id := hex.EncodeToString(sum[:11])
	chunks := "$O." + b.name + ".C." + id
	if before := b.chunks[name]; before != "" {
		Must(b.tb, b.stream.Purge(ctx, jetstream.WithPurgeSubject(before)))
	}
	b.chunks[name] = chunks
	if content != "" {
		Value(b.js.Publish(ctx, chunks, []byte(content)))(b.tb)
	}
	m := nats.NewMsg("$O." + b.name + ".M." + base64.URLEncoding.EncodeToString([]byte(name)))
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	m.Data = Value(json.Marshal(&jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: name}, Bucket: b.name, NUID: id, Size: uint64(len(content)), Chunks: 1,
		Digest: "SHA-256=" + base64.URLEncoding.EncodeToString(sum[:]), Deleted: content == "",
	}))(b.tb)
	Value(b.js.PublishMsg(ctx, m))(b.tb)
}
