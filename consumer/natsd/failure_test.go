package natsd_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// TestARestartEndsAFailureOfWriting has a write to a stream fail, as on a full disk: the next of its files, of 32 KB each
// at least, is a directory. The stream stores nothing, also when there is room, until the server starts again.
// Connections, the address and all stored messages stay.
func TestARestartEndsAFailureOfWriting(t *testing.T) {
	dir := t.TempDir()
	srv := start(t, natsd.Config{Dir: dir})
	back := make(chan struct{}, 1)
	nc, err := srv.Connect(nats.ReconnectWait(10*time.Millisecond), nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} }))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "broken", Subjects: []string{"broken"}, Storage: jetstream.FileStorage, MaxBytes: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	large := make([]byte, 25_000)
	if _, err := js.Publish(t.Context(), "broken", large); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "jetstream", "$G", "streams", "broken", "msgs", "2.blk")
	if err := os.Mkdir(file, 0o700); err != nil {
		t.Fatal(err)
	}
	if why := srv.Failure(); why != "" {
		t.Fatalf("before any failure: %s", why)
	}
	if err := nc.Publish("broken", large); err != nil { // nobody answers
		t.Fatal(err)
	}
	<-srv.Failed()
	if why := srv.Failure(); !strings.Contains(why, "2.blk") {
		t.Errorf("the failure is %q, want the file's name in it", why)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := js.Publish(short, "broken", nil); err == nil {
		t.Error("the stream stores messages without a restart: it is not needed any more")
	}
	url := srv.URL()
	if err := srv.Restart(); err != nil {
		t.Fatal(err)
	}
	if now := srv.URL(); now != url || srv.Failure() != "" {
		t.Errorf("started again at %s after %s, the failure is %q", now, url, srv.Failure())
	}
	<-back
	if _, err := js.Publish(t.Context(), "broken", nil); err != nil {
		t.Errorf("after the restart: %v", err)
	}
	if info, err := stream.Info(t.Context()); err != nil || info.State.Msgs != 2 {
		t.Errorf("the stream has %+v, %v, want 2 messages", info, err)
	}
	if _, err := natsd.Lock(dir, 0); err == nil {
		t.Error("the directory is not locked after the restart")
	}
}

// The server has no limit of its own. By default it would derive one from the space that is free when it starts.
func TestTheDiskIsTheLimit(t *testing.T) {
	srv := start(t, natsd.Config{Dir: t.TempDir(), NoListen: true})
	nc, err := srv.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	const far = 1 << 60 // more than any disk
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "s", Storage: jetstream.FileStorage, MaxBytes: far}); err != nil {
		t.Error(err)
	}
	if free, ok := srv.Free(); ok && free <= 0 {
		t.Errorf("%d bytes are free on a disk that has just taken a store", free)
	}
}
