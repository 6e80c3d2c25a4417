//go:build long

package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"
)

func TestAPercentileIsTheLeastThatSoManyDoNotExceed(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	for _, c := range []struct {
		list []time.Duration
		p    int
		want time.Duration
	}{
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 100, 100},
		{hundred, 0, 1},
		{[]time.Duration{7, 9}, 50, 7},
		{[]time.Duration{7, 9}, 99, 9},
		{[]time.Duration{7}, 1, 7},
		{nil, 50, 0},
	} {
		if got := percentile(c.list, c.p); got != c.want {
			t.Errorf("percentile %d of %d: got %d, want %d", c.p, len(c.list), got, c.want)
		}
	}
}

func TestARatioIsTakenWithinARound(t *testing.T) {
	speed := func(f figures) float64 { return f.PerSec }
	own := []figures{{PerSec: 90}, {PerSec: 10}, {PerSec: 40}} // the machine was busy in the second round, for both
	other := []figures{{PerSec: 100}, {PerSec: 10}, {PerSec: 50}}
	if got := ratios(own, other, speed); got != .9 {
		t.Errorf("got %v, want the median .9 of .9, 1 and .8", got)
	}
	if got := ratios(nil, nil, speed); !math.IsNaN(got) {
		t.Errorf("of no rounds: got %v, want NaN", got)
	}
}

func TestFiguresAreOfWhatLiesBetweenTwoSamples(t *testing.T) {
	at := time.Unix(1, 0)
	got := between(
		sample{at: at, rows: 100, cpu: time.Second, server: 2 * time.Second, llm: time.Second},
		sample{at: at.Add(2 * time.Second), rows: 1100, cpu: 2 * time.Second, server: 4 * time.Second, llm: 1500 * time.Millisecond},
	)
	if want := (figures{PerSec: 500, CPU: 1000, Server: 2000, LLM: 500}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// duplex is a connection whose client has sent everything.
type duplex struct {
	io.Reader
	io.Writer
}

func TestTheLLMAnswersEachRequestOfAConnection(t *testing.T) {
	const requests = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\ncontent-length: 5\r\n\r\nhelloPOST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nslow"
	yes, no := string(llmReply), string(llmRefusal)
	for _, c := range []struct {
		llm      llm
		requests string
		want     string
	}{
		{llm{}, requests, yes + yes},
		{llm{slow: time.Nanosecond}, requests, yes + yes}, // with slow calls it reads the bodies
		{llm{refuses: true}, strings.Replace(requests, "5\r\n\r\nhello", "7\r\n\r\nrefused", 1), no + yes},
		{llm{slow: time.Nanosecond}, strings.Replace(requests, "5\r\n\r\nhello", "7\r\n\r\nrefused", 1), yes + yes},
	} {
		var out bytes.Buffer
		if err := c.llm.serveConn(duplex{strings.NewReader(c.requests), &out}); !errors.Is(err, io.EOF) {
			t.Errorf("%+v: got %v, want the end of the connection", c.llm, err)
		}
		if out.String() != c.want {
			t.Errorf("%+v: got %q, want %q", c.llm, out.String(), c.want)
		}
	}
	if _, err := requestHead(bufio.NewReader(strings.NewReader("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"))); err == nil {
		t.Error("a request without a length was taken")
	}
}
