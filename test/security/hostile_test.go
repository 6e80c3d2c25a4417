package security_test

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
)

// messagesOfARun is how many messages a run has; every second one is ordinary.
const messagesOfARun = 72

var (
	hostileSeed = flag.Uint64("hostile.seed", 0, "first seed of the runs")
	hostileRuns = flag.Int("hostile.runs", 1, "how many seeds are run, in each order")
)

// TestNoMessageStopsAStage draws nasty messages from seeds and runs a whole stage in each order: each row has its result,
// verify proves it, and every command that reads the streams ends without an error. A short run has three of the orders.
//
//	go test ./test/security -run '^TestNoMessageStopsAStage$' -v -args -hostile.seed 1 -hostile.runs 100
func TestNoMessageStopsAStage(t *testing.T) {
	var sum tally
	for i := range *hostileRuns {
		seed := *hostileSeed + uint64(i) //nolint:gosec // not negative
		for i := 0; i < len(ways); i += stagetest.Stride(4) {
			w := ways[i]
			t.Run(fmt.Sprintf("seed %d, %s", seed, w.name), func(t *testing.T) {
				stagetest.Virtual(t, func(t *testing.T) {
					rng := rand.New(rand.NewPCG(seed, uint64(i))) //nolint:gosec // few
					sum.add(runHostile(t, w, draw(rng, messagesOfARun), rng))
				})
			})
		}
	}
	t.Log(sum)
}

// draw makes n messages.
func draw(rng *rand.Rand, n int) (messages []*message) {
	for i := range n {
		if i%2 == 0 {
			messages = append(messages, ordinary(rng, i))
		} else {
			messages = append(messages, nasty(rng, i/2))
		}
	}
	return messages
}

// FuzzMessage runs a whole stage with one message of any bytes among ordinary rows and one drawn from the seed. A short
// run has each known message in one of the orders, others in all three.
func FuzzMessage(f *testing.F) {
	for i, m := range known {
		for w := i % stagetest.Stride(3); w < 3; w += stagetest.Stride(3) {
			f.Add(uint8(w), uint64(i), []byte(m.subject), []byte(m.header), []byte(m.body)) //nolint:gosec // few
		}
	}
	book := openBook(f)
	f.Fuzz(func(t *testing.T, w uint8, seed uint64, subject, header, body []byte) {
		m := &message{kind: "fuzz", subject: subjectOf(subject), header: string(header), body: string(body)}
		if len(m.header)+len(m.body) > payloadMax {
			t.Skip("the server takes no message of that size")
		}
		stagetest.Virtual(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // any seed
			messages := []*message{ordinary(rng, slowRow), ordinary(rng, 0), m, ordinary(rng, 1), nasty(rng, rng.IntN(len(kinds))), ordinary(rng, 2), m, ordinary(rng, 3)}
			book.add(t, runHostile(t, ways[int(w)%len(ways)], messages, rng))
		})
	})
}

// known are messages that have stopped a stage, or a command that reads its streams.
var known = []message{
	{"a name that the client library does not send", "rows.x", "NATS/1.0\r\nuser@tenant: v\r\n\r\n", `{"n":7}`},
	{"an empty row that looks like a status", "rows.x", "NATS/1.0\r\nStatus: new\r\n\r\n", ""},
	{"a row that looks like a status", "rows.x", "NATS/1.0\r\nStatus: new\r\n\r\n", `{"n":7}`},
	{"an inline status", "rows.x", "NATS/1.0 404 No Messages\r\n\r\n", ""},
	{"a header block of one byte, by which a server panics that leaves out the body", "rows.x", "x", `{"n":7}`},
	{"a header block without an end", "rows.x", "NATS/1.0\r\nX-Id: 1\r\n", `{"m":7}`},
	{"a subject that is not UTF-8", "rows.\xff.\xfe", "", `{"n":7}`},
	{"a subject that is not UTF-8, of a row that fails", "rows.\xff", "", `{"m":7}`},
	{"a row that fails and has the size of the largest message", "rows.x", "", `{"m":"` + strings.Repeat("m", payloadMax-8) + `"}`},
	{"a pin of a stranger", "rows.x", "NATS/1.0\r\nNats-Pin-Id: x\r\n\r\n", ""},
}

// subjectOf makes a subject that the input matches of any bytes.
func subjectOf(b []byte) string {
	b = bytes.Clone(bytes.TrimPrefix(b[:min(len(b), 3000)], []byte("rows.")))
	for i, c := range b {
		switch c {
		case ' ', '\t', '\r', '\n': // they would end the subject on the wire
			b[i] = '_'
		case 0x7f: // nats-server stores such a subject and keeps it out of its index, so no filter finds the message
			b[i] = '_'
		}
	}
	tokens := strings.Split(string(b), ".")
	for i, token := range tokens {
		if token == "" { // no stream captures the subject, and nobody answers
			tokens[i] = "_"
		}
	}
	return "rows." + strings.Join(tokens, ".")
}
