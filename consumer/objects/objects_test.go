package objects_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestMain(m *testing.M) { stagetest.Main(m) }

// bucket returns a server with a bucket, as the client library creates it.
func bucket(t *testing.T, bytesMax int64) (*stagetest.NATS, jetstream.ObjectStore) {
	t.Helper()
	n := stagetest.StartNATS(t)
	store := stagetest.Value(n.JS.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{
		Bucket: "LARGE", Storage: jetstream.MemoryStorage, MaxBytes: bytesMax,
	}))(t)
	return n, store
}

// messages is how many messages the bucket holds.
func messages(t *testing.T, n *stagetest.NATS) uint64 {
	t.Helper()
	return stagetest.Value(n.JS.Stream(t.Context(), streams.BucketStream("LARGE")))(t).CachedInfo().State.Msgs
}

func TestTheClientLibraryReadsWhatWasPutAndTheOtherWayRound(t *testing.T) {
	n, store := bucket(t, -1)
	for _, size := range []int{0, 1, 700_000, 3 << 20} {
		body := bytes.Repeat([]byte("abc"), size/3+1)[:size]
		name := objects.Name("stage", 0, 7, body)
		ref := stagetest.Value(objects.Put(t.Context(), n.NC, "LARGE", name, body))(t)
		if got := stagetest.Value(store.GetBytes(t.Context(), name))(t); !bytes.Equal(got, body) {
			t.Errorf("%d bytes: the library reads %d", size, len(got))
		}
		if got := stagetest.Value(ref.Get(t.Context(), n.NC, 4<<20))(t); !bytes.Equal(got, body) {
			t.Errorf("%d bytes: got %d", size, len(got))
		}
		before := messages(t, n)
		if again := stagetest.Value(objects.Put(t.Context(), n.NC, "LARGE", name, body))(t); again != ref || messages(t, n) != before {
			t.Errorf("%d bytes: put again, it is %v in place of %v, with %d messages more", size, again, ref, messages(t, n)-before)
		}
		stagetest.Must(t, objects.Remove(t.Context(), n.NC, "LARGE", name))
		if left := messages(t, n); left != 0 {
			t.Errorf("%d bytes: %d messages are left of a removed object", size, left)
		}
		info := stagetest.Value(store.PutBytes(t.Context(), "theirs", body))(t)
		got := stagetest.Value(objects.Get(t.Context(), n.NC, "LARGE", "theirs", 4<<20))(t)
		if !bytes.Equal(got, body) || info.Digest != objects.NewRef("", "", body).Digest {
			t.Errorf("%d bytes: of the library's object %d are read, and its digest is %s", size, len(got), info.Digest)
		}
		stagetest.Must(t, store.Delete(t.Context(), "theirs")) // it leaves a message that says so
		stagetest.Value(objects.Put(t.Context(), n.NC, "LARGE", "theirs", body))(t)
		stagetest.Must(t, objects.Remove(t.Context(), n.NC, "LARGE", "theirs"))
	}
}

// What lasts is told from what may pass: a row with the first gets an error, and one with
// the second waits.
func TestAnErrorThatLastsIsToldFromOneThatMayPass(t *testing.T) {
	n, store := bucket(t, -1)
	body := bytes.Repeat([]byte("abc"), 1<<20)
	ref := stagetest.Value(objects.Put(t.Context(), n.NC, "LARGE", "whole", body))(t)
	other, absent := ref, ref
	other.Digest, absent.Name = objects.NewRef("", "", []byte("x")).Digest, "absent"
	noBucket := ref
	noBucket.Bucket = "NONE"
	stagetest.Value(store.PutBytes(t.Context(), "gone", body))(t)
	stagetest.Must(t, store.Delete(t.Context(), "gone"))
	gone := objects.NewRef("LARGE", "gone", body)
	cut := objects.NewRef("LARGE", "cut", body)
	info := stagetest.Value(store.PutBytes(t.Context(), "cut", body))(t)
	stagetest.Must(t, streams.Purge(t.Context(), n.NC, "OBJ_LARGE", "$O.LARGE.C."+info.NUID))
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		what string
		ref  objects.Ref
		most int64
		ctx  context.Context //nolint:containedctx // of the case
		want error
	}{
		{"an object that is there", ref, 3 << 20, t.Context(), nil},
		{"one that never was", absent, 3 << 20, t.Context(), objects.ErrMissing},
		{"one that was deleted", gone, 3 << 20, t.Context(), objects.ErrMissing},
		{"another one of its name", other, 3 << 20, t.Context(), objects.ErrDamaged},
		{"one without its chunks", cut, 3 << 20, t.Context(), objects.ErrDamaged},
		{"one that is too large", ref, 1 << 20, t.Context(), objects.ErrLarge},
		{"no bucket", noBucket, 3 << 20, t.Context(), jetstream.ErrStreamNotFound},
		{"no answer", ref, 3 << 20, over, context.Canceled},
	} {
		_, err := c.ref.Get(c.ctx, n.NC, c.most)
		lasts := c.want != nil && objects.Lasts(c.want)
		if !errors.Is(err, c.want) || objects.Lasts(err) != lasts {
			t.Errorf("%s: got %v, which lasts: %v; want %v", c.what, err, objects.Lasts(err), c.want)
		}
	}
}

// What is stored about an object may be anybody's words. Where it names the chunks of
// others, nothing of these is read or removed.
func TestAnObjectThatNamesTheChunksOfOthersIsDamaged(t *testing.T) {
	n, _ := bucket(t, -1)
	body := bytes.Repeat([]byte("abc"), 1<<20)
	kept := stagetest.Value(objects.Put(t.Context(), n.NC, "LARGE", "kept", body))(t)
	forged := fmt.Appendf(nil, `{"name":"forged","bucket":"LARGE","nuid":">","size":%d,"chunks":6,"digest":%q}`, len(body), kept.Digest)
	stagetest.Value(n.JS.Publish(t.Context(), streams.BucketObject("LARGE", "forged"), forged))(t)
	for what, f := range map[string]func() error{
		"get":    func() error { _, err := objects.Get(t.Context(), n.NC, "LARGE", "forged", 8<<20); return err },
		"remove": func() error { return objects.Remove(t.Context(), n.NC, "LARGE", "forged") },
		"erase":  func() error { return objects.Erase(t.Context(), n.NC, "LARGE", "forged") },
	} {
		if err := f(); !errors.Is(err, objects.ErrDamaged) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := kept.Get(t.Context(), n.NC, 8<<20); err != nil {
		t.Errorf("the other object: %v", err)
	}
}

// A bucket that is full takes no part of an object, and one that was full takes the
// object later.
func TestABucketThatIsFullKeepsNoPartOfAnObject(t *testing.T) {
	n, _ := bucket(t, 2<<20)
	body := bytes.Repeat([]byte("abc"), 1<<20)
	if _, err := objects.Put(t.Context(), n.NC, "LARGE", "x", body); !errors.Is(err, streams.ErrRefused) || !streams.Full(err) {
		t.Errorf("put into a full bucket: %v", err)
	}
	if left := messages(t, n); left != 0 {
		t.Errorf("%d messages are left of an object that did not fit", left)
	}
	if _, err := objects.Get(t.Context(), n.NC, "LARGE", "x", 8<<20); !errors.Is(err, objects.ErrMissing) {
		t.Errorf("get it: %v", err)
	}
	stagetest.Value(objects.Put(t.Context(), n.NC, "LARGE", "x", body[:1<<20]))(t)
}

// Two that store the same object at once leave one, whole, and nothing of the other.
func TestTwoThatPutTheSameObjectLeaveOne(t *testing.T) {
	n, _ := bucket(t, -1)
	body := bytes.Repeat([]byte("abc"), 1<<20)
	var others []*nats.Conn
	for range 4 {
		others = append(others, n.Connect())
	}
	done := make(chan error)
	for _, nc := range others {
		go func() {
			_, err := objects.Put(context.Background(), nc, "LARGE", "same", body)
			done <- err
		}()
	}
	for range others {
		stagetest.Must(t, <-done)
	}
	if got := stagetest.Value(objects.Get(t.Context(), n.NC, "LARGE", "same", 8<<20))(t); !bytes.Equal(got, body) {
		t.Errorf("got %d bytes", len(got))
	}
	const chunks = 6
	if left := messages(t, n); left != chunks+1 {
		t.Errorf("the bucket holds %d messages, want %d chunks and a name", left, chunks)
	}
}

func TestARefIsReadBackFromHeaders(t *testing.T) {
	ref := objects.NewRef("LARGE", "stage/0/7/ab", []byte("x"))
	header := nats.Header{}
	ref.Set(header)
	if got, is := objects.RefOf(header); !is || got != ref {
		t.Errorf("got %v, %v", got, is)
	}
	for name, values := range map[string][]string{
		streams.HeaderObject:       {"", "LARGE", "LARGE/", "/x", "LA.RGE/x", "LARGE >/x"},
		streams.HeaderObjectDigest: {"", "MD5=x"},
		streams.HeaderObjectBytes:  {"", "-1", "x"},
	} {
		for _, value := range values {
			header := nats.Header{}
			ref.Set(header)
			header.Set(name, value)
			if got, is := objects.RefOf(header); is {
				t.Errorf("%s %q: got %v", name, value, got)
			}
		}
	}
	long := objects.NewRef(fmt.Sprintf("%064d", 1), objects.Name(fmt.Sprintf("%032d", 1), 1<<20, 1<<63, []byte("x")), bytes.Repeat([]byte("x"), 1<<20))
	long.Set(header)
	if size := streams.HeaderBytes(header); size > objects.HeaderBytesMost {
		t.Errorf("the headers of a long name have %d bytes", size)
	}
}
