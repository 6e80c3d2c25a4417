package media_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/llm-stage/stage/internal/media"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm"
	"github.com/nats-io/nats.go/jetstream"
)

func TestMain(m *testing.M) { stagetest.Main(m) }

const png = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x08\x00\x00\x00\x08"

func image(source string) []llm.Message {
	return []llm.Message{{Role: llm.RoleUser, Parts: []llm.Part{{Text: "look"}, {Media: &llm.Media{Kind: llm.KindImage, Source: source}}}}}
}

// check describes a source, and compares what is read from it; want is the content, or what the error of the row says.
func check(t *testing.T, r *media.Reader, source, want string) {
	t.Helper()
	messages := image(source)
	err := r.Describe(t.Context(), messages)
	m := messages[0].Parts[1].Media
	if err != nil {
		if e, ok := errors.AsType[*llm.Error](err); !ok || e.Reason != llm.ReasonInvalidRow || want == "" || !strings.Contains(err.Error(), "message 1, part 2: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", source, err, want)
		}
		return
	}
	if m.Content == nil {
		if want != "" {
			t.Errorf("%s: not read, want %q", source, want)
		}
		return
	}
	content := stagetest.Value(io.ReadAll(stagetest.Value(m.Open(t.Context()))(t)))(t)
	if string(content) != want || m.Bytes != int64(len(want)) || m.SHA256 != llm.Hash(content) || m.Type != llm.TypePNG {
		t.Errorf("%s: %q, %+v; want %q", source, content, m.Content, want)
	}
}

func TestFilesBelowTheDirectoryAlone(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	write := func(path, content string) {
		stagetest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		stagetest.Must(t, os.WriteFile(path, []byte(content), 0o644))
	}
	write(filepath.Join(outside, "secret.png"), png)
	write(filepath.Join(dir, "a.png"), png)
	write(filepath.Join(dir, "in", "b.jpg"), png+"more")
	write(filepath.Join(dir, "text.png"), "hello")
	write(filepath.Join(dir, "empty.png"), "")
	write(filepath.Join(dir, "large.png"), png+strings.Repeat("x", 1000))
	stagetest.Must(t, os.Symlink(filepath.Join(outside, "secret.png"), filepath.Join(dir, "link.png")))
	stagetest.Must(t, os.Symlink(outside, filepath.Join(dir, "linked")))
	stagetest.Must(t, os.Symlink("a.png", filepath.Join(dir, "inside.png")))
	stagetest.Must(t, syscall.Mkfifo(filepath.Join(dir, "pipe.png"), 0o644))
	files := stagetest.Value(media.OpenFiles(dir))(t)
	defer func() { _ = files.Close() }()
	r := &media.Reader{MaxBytes: 1000, Files: files}
	for source, want := range map[string]string{
		"a.png": png, "in/b.jpg": png + "more", "in/../a.png": png, "inside.png": png,
		"none.png":                               "there is no such file below the directory of the input",
		"../" + filepath.Base(outside):           "path escapes from parent",
		filepath.Join(outside, "secret.png"):     "path escapes from parent",
		"link.png":                               "path escapes from parent",
		"linked/secret.png":                      "path escapes from parent",
		"in":                                     "is no regular file",
		"pipe.png":                               "is no regular file",
		"text.png":                               `the file "text.png": the first bytes are of no known type`,
		"empty.png":                              "the content is empty",
		"large.png":                              "the media are too large: at most 1000 bytes are allowed in a row",
		"file:///etc/passwd":                     `begins with "file:", which is not supported`,
		"https://":                               "is no address",
		"https://example.com/a":                  "",
		"data:image/png;base64,aGVsbG8gd29ybGQ=": "no known type",
	} {
		check(t, r, source, want)
	}
	check(t, &media.Reader{MaxBytes: 1000}, "a.png", "only rows that stage process reads from a file may have those")
}

func TestObjects(t *testing.T) {
	n := stagetest.StartNATS(t)
	store := stagetest.Value(n.JS.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "photos"}))(t)
	other := stagetest.Value(n.JS.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "other"}))(t)
	put := func(s jetstream.ObjectStore, name, content string, chunk uint32) *jetstream.ObjectInfo {
		meta := jetstream.ObjectMeta{Name: name}
		if chunk > 0 {
			meta.Opts = &jetstream.ObjectMetaOptions{ChunkSize: chunk}
		}
		return stagetest.Value(s.Put(t.Context(), meta, strings.NewReader(content)))(t)
	}
	long := png + strings.Repeat("0123456789", 50)
	put(store, "a.png", png, 0)
	put(store, "2026/b 1%20.png", long, 7)
	put(store, "text", "hello", 0)
	put(store, "empty", "", 0)
	put(store, "large", png+strings.Repeat("x", 2000), 0)
	put(store, "gone", png, 0)
	stagetest.Must(t, store.Delete(t.Context(), "gone"))
	stagetest.Value(store.AddLink(t.Context(), "link", put(other, "there.png", png+"!", 0)))(t)
	stagetest.Value(store.AddBucketLink(t.Context(), "bucket", other))(t)
	r := &media.Reader{MaxBytes: 1000, Objects: media.NewObjects(n.NC)}
	for source, want := range map[string]string{
		"nats://photos/a.png": png, "nats://photos/2026/b 1%20.png": long, "nats://photos/link": png + "!",
		"nats://photos/none":   "the object nats://photos/none is missing",
		"nats://photos/gone":   "was deleted",
		"nats://photos/text":   "the object nats://photos/text: the first bytes are of no known type",
		"nats://photos/empty":  "has no content",
		"nats://photos/large":  "the media are too large",
		"nats://photos/bucket": "is a link to a whole bucket",
		"nats://nowhere/a":     "there is no such bucket",
		"nats://photos":        "names no object: write nats://BUCKET/NAME",
		"nats://a.b/c":         "names no object",
		"nats:///c":            "names no object",
	} {
		check(t, r, source, want)
	}

	// An object that gets another content is not what was described.
	messages := image("nats://photos/2026/b 1%20.png")
	stagetest.Must(t, r.Describe(t.Context(), messages))
	content := messages[0].Parts[1].Media.Content
	reader := stagetest.Value(content.Open(t.Context()))(t)
	put(store, "2026/b 1%20.png", png, 0)
	_, err := io.ReadAll(reader)
	if e, ok := errors.AsType[*llm.Error](err); !ok || e.Reason != llm.ReasonInvalidRow || !strings.Contains(err.Error(), "changed or was deleted after the row was read") {
		t.Errorf("changed: %v", err)
	}

	// A bucket that is gone is not remembered.
	stagetest.Must(t, n.JS.DeleteObjectStore(t.Context(), "photos"))
	if err := r.Describe(t.Context(), image("nats://photos/a.png")); err == nil {
		t.Error("no error though the bucket is gone")
	}
	check(t, r, "nats://photos/a.png", "there is no such bucket")
}

// That nobody answers is not the row's fault.
func TestAServerThatDoesNotAnswerIsAway(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		n := stagetest.StartNATS(t)
		stagetest.NewBucket(t, n.JS, "photos").Put("a.png", png)
		r := &media.Reader{MaxBytes: 1000, Objects: media.NewObjects(n.NC)}
		check(t, r, "nats://photos/a.png", png)
		n.Server.Stop()
		ctx, cancel := context.WithCancel(t.Context())
		err := r.Describe(ctx, image("nats://photos/a.png"))
		if away, ok := errors.AsType[*llm.AwayError](err); !ok || away.Source != "nats://photos/a.png" {
			t.Errorf("no server: %v", err)
		}
		cancel()
		if err := r.Describe(ctx, image("nats://photos/a.png")); !errors.Is(err, context.Canceled) {
			t.Errorf("stopped: %v", err)
		}
	})
}

func TestTheBoundIsOfAllMediaOfARow(t *testing.T) {
	dir := t.TempDir()
	stagetest.Must(t, os.WriteFile(filepath.Join(dir, "a.png"), []byte(png), 0o644))
	files := stagetest.Value(media.OpenFiles(dir))(t)
	defer func() { _ = files.Close() }()
	messages := append(image("a.png"), image("a.png")...)
	if err := (&media.Reader{MaxBytes: int64(2 * len(png)), Files: files}).Describe(t.Context(), messages); err != nil {
		t.Error(err)
	}
	messages = append(image("a.png"), image("a.png")...)
	err := (&media.Reader{MaxBytes: int64(2*len(png) - 1), Files: files}).Describe(t.Context(), messages)
	if err == nil || !strings.Contains(err.Error(), "message 2, part 2: ") {
		t.Errorf("%v", err)
	}
}
