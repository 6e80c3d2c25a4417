package results

import (
	"bytes"
	"encoding/json"
	"io"
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go"
)

// meta describes a result beside its body, as its headers and its place show.
type meta struct {
	Stream        string    `json:"stream"`
	Sequence      uint64    `json:"sequence"` // in the stream
	Stored        time.Time `json:"stored_at"`
	Partition     int       `json:"partition"`
	Status        string    `json:"status"` // success or error
	SourceStream  string    `json:"source_stream"`
	SourceSeq     uint64    `json:"source_sequence"` // of the row, as in --row of tail
	SourceSubject string    `json:"source_subject"`
	StateID       string    `json:"state_id"`
	Owner         string    `json:"owner"`
	// Replaces is the row whose result this one replaces. Key is the key of the row, in
	// order by key.
	Replaces uint64  `json:"replaces,omitempty"`
	Key      *string `json:"order_key,omitempty"` // of the row; only in order by key
	// Low is the low-water mark, up to which every row has its result. A result in stream
	// order has none.
	Low *uint64 `json:"low_water_mark,omitempty"`
	// Object is the object that holds the body, as BUCKET/NAME.
	Object  string      `json:"object,omitempty"`
	Headers nats.Header `json:"headers,omitempty"` // the row's own
}

// writeWithMeta writes a result as one line {"meta":…,"result":…}. The body keeps its
// bytes.
func writeWithMeta(w io.Writer, stream string, partition int, r stored.Result, h nats.Header) error {
	about := meta{
		Stream: stream, Sequence: r.At, Stored: r.Stored.UTC(), Partition: partition,
		Status: h.Get(streams.HeaderStatus), SourceStream: h.Get(streams.HeaderSourceStream), SourceSeq: r.Seq,
		SourceSubject: r.Subject, StateID: h.Get(streams.HeaderStateID), Owner: h.Get(streams.HeaderOwner),
		Replaces: r.Replaces, Headers: make(nats.Header),
	}
	if keys := h.Values(streams.HeaderKey); len(keys) > 0 { // it may be empty
		about.Key = &keys[0]
	}
	if low, err := strconv.ParseUint(h.Get(streams.HeaderLow), 10, 64); err == nil {
		about.Low = &low
	}
	if r.Object != nil {
		about.Object = r.Object.String()
	}
	for key, values := range h {
		if streams.PassHeader(key) {
			about.Headers[key] = values
		}
	}
	var line bytes.Buffer
	line.WriteString(`{"meta":`)
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(about); err != nil {
		return err
	}
	line.Truncate(line.Len() - 1) // the end of the line
	line.WriteString(`,"result":`)
	if err := stored.WriteLine(&line, r.Body); err != nil {
		return err
	}
	line.Truncate(line.Len() - 1)
	line.WriteString("}\n")
	_, err := w.Write(line.Bytes())
	return err
}
