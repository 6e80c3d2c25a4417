package recorder_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/recorder"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// The cost of an event of 1.5 KiB at the client, its answers included. The server does
// next to nothing (but some of the allocations), so what is left is the Recorder and the
// NATS client.
func BenchmarkRecorder(b *testing.B) {
	for _, takes := range []string{"allow_batched", "nothing"} {
		b.Run("takes="+takes, func(b *testing.B) {
			nc := stagetest.Value(nats.Connect("nats://" + yesServer(b, takes)))(b)
			defer nc.Close()
			rec := recorder.New(nc, recorder.Config{Stream: "AUDIT", Subject: "audit", Name: "stage", Logger: slog.New(slog.DiscardHandler)})
			var running sync.WaitGroup
			running.Go(func() { _ = rec.Run(b.Context()) })
			rec.RecordRun(&auditlog.Run{})
			if err := rec.Flush(b.Context()); err != nil { // it runs
				b.Fatal(err)
			}
			b.ReportAllocs()
			body := bytes.Repeat([]byte("x"), 500)
			body[0], body[len(body)-1] = '"', '"'
			e := &auditlog.Call{StateID: "stage/ROWS/0/123456", Owner: "0123456789abcdef", CallID: "0123456789ab", Request: body, Response: body, Status: auditlog.CallSuccess}
			for b.Loop() {
				e.CallIndex++
				rec.RecordCall(e, nil)
			}
			stagetest.Must(b, rec.Flush(b.Context()))
		})
	}
}

// yesServer speaks as much of the NATS protocol as a Recorder needs, and says of
// everything that it is stored.
func yesServer(b *testing.B, takes string) (addr string) {
	b.Helper()
	l := stagetest.Value(net.Listen("tcp", "127.0.0.1:0"))(b) //nolint:noctx // closed with the benchmark
	b.Cleanup(func() { _ = l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		y := &yes{in: bufio.NewReaderSize(conn, 1<<16), out: bufio.NewWriterSize(conn, 1<<16), takes: takes}
		for err == nil {
			err = y.line()
		}
	}()
	return l.Addr().String()
}

type yes struct {
	in     *bufio.Reader
	out    *bufio.Writer
	takes  string
	said   bool
	prefix []string // of what is subscribed to, by sid from 1 on
}

func (y *yes) line() error {
	if !y.said {
		y.said = true
		_, _ = fmt.Fprintf(y.out, "INFO {\"server_id\":\"yes\",\"version\":\"2.15.2\",\"proto\":1,\"headers\":true,\"max_payload\":8388608}\r\n")
		return y.out.Flush()
	}
	if y.in.Buffered() == 0 {
		if err := y.out.Flush(); err != nil {
			return err
		}
	}
	line, err := y.in.ReadSlice('\n')
	if err != nil {
		return err
	}
	verb, rest, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
	args := strings.Fields(rest)
	switch verb {
	case "PING":
		_, err = y.out.WriteString("PONG\r\n")
	case "SUB":
		y.prefix = append(y.prefix, strings.TrimRight(args[0], "*>"))
	case "PUB", "HPUB":
		size, _ := strconv.Atoi(args[len(args)-1])
		if _, err = io.CopyN(io.Discard, y.in, int64(size)+2); err == nil {
			y.answer(args[1])
		}
	}
	return err
}

func (y *yes) answer(reply string) {
	body := `{"stream":"AUDIT","seq":1}`
	switch part := strings.Split(reply, "."); {
	case !strings.HasSuffix(reply, ".$FI"):
		if len(y.prefix) > 1 && strings.HasPrefix(reply, y.prefix[1]) {
			body = fmt.Sprintf(`{"config":{%q:true}}`, y.takes)
		}
	case part[len(part)-2] == "2":
		body = fmt.Sprintf(`{"stream":"AUDIT","seq":1,"batch":%q,"count":%s}`, part[len(part)-6], part[len(part)-3])
	case part[len(part)-2] == "0":
		body = `{"type":"ack","seq":0,"msgs":500}`
	default:
		return
	}
	for i, prefix := range y.prefix {
		if strings.HasPrefix(reply, prefix) {
			_, _ = fmt.Fprintf(y.out, "MSG %s %d %d\r\n%s\r\n", reply, i+1, len(body), body)
		}
	}
}
