package streams

import (
	"encoding/base64"
	"regexp"

	"github.com/nats-io/nats.go/jetstream"
)

// A bucket of the object store is a stream of the name OBJ_<bucket>. An object is a message
// on the subject of its name, and the chunks of its body on a subject of their own.
const (
	bucketStreamPrefix  = "OBJ_"
	bucketSubjectPrefix = "$O."
	bucketNameBytesMax  = 64
)

var bucketName = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)

// IsBucket reports whether text can be the name of a bucket.
func IsBucket(text string) bool {
	return len(text) <= bucketNameBytesMax && bucketName.MatchString(text)
}

// BucketStream returns the name of the stream of a bucket.
func BucketStream(bucket string) string { return bucketStreamPrefix + bucket }

// BucketChunks returns what the subjects of chunks in a bucket begin with, before the
// token of an object.
func BucketChunks(bucket string) string { return bucketSubjectPrefix + bucket + ".C." }

// BucketObjects returns what the subjects of objects in a bucket begin with, before the
// token that is made of an object's name.
func BucketObjects(bucket string) string { return bucketSubjectPrefix + bucket + ".M." }

// BucketObject returns the subject of an object in a bucket.
func BucketObject(bucket, name string) string {
	return BucketObjects(bucket) + base64.URLEncoding.EncodeToString([]byte(name))
}

// bucketConfig is the stream of the bucket of large results, as the client library and
// the nats CLI create that of a bucket.
func (s Config) bucketConfig() jetstream.StreamConfig {
	cfg := s.stream(BucketStream(s.ResultBucket), "results of llm-stage that are larger than a message",
		0, BucketChunks(s.ResultBucket)+">", BucketObjects(s.ResultBucket)+">")
	cfg.AllowRollup, cfg.AllowAtomicPublish = true, false
	return cfg
}

// checkBucket refuses every setting by which a body could vanish while the result that
// names it stays.
func (s Config) checkBucket(cfg jetstream.StreamConfig) findings {
	wrong := takes(cfg, FieldResultBucket, bucketSubjectPrefix+s.ResultBucket+".>",
		BucketChunks(s.ResultBucket)+">", BucketObjects(s.ResultBucket)+">")
	return append(wrong, keeps(cfg, losses{
		read:   "deletes a body with its first read",
		aged:   "results name objects that are gone",
		full:   "drops old objects when it is full: set discard to new, then a full bucket makes the stage wait",
		killed: "a killed server would lose bodies of results that rows were acked for",
	})...)
}
