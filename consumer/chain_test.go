package consumer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"testing"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// The chain is written as verify reads it: both are bound to the same vectors.
func TestTheChainHasTheVectorsThatVerifyChecks(t *testing.T) {
	var vectors struct {
		Messages []struct {
			About  string      `json:"about"`
			Kind   string      `json:"kind"`
			Header nats.Header `json:"header"`
			Sent   nats.Header `json:"sent"` // nil: as Header
			Body   string      `json:"body"`
			Object string      `json:"object"` // the hash of the body where it is an object
			Chain  string      `json:"chain"`
		} `json:"messages"`
		Event struct {
			Event string `json:"event"`
			Name  string `json:"name"`
		} `json:"event"`
	}
	stagetest.Must(t, json.Unmarshal(stagetest.Value(os.ReadFile("../internal/ops/proof/testdata/vectors.json"))(t), &vectors))
	var c chainer
	var chain chainValue
	for _, m := range vectors.Messages {
		sent := maps.Clone(m.Header)
		if m.Sent != nil {
			sent = m.Sent
		}
		sent[streams.HeaderChain] = []string{""}
		body := sha256.Sum256([]byte(m.Body))
		if m.Object != "" {
			copy(body[:], stagetest.Value(hex.DecodeString(m.Object))(t))
		}
		chain = c.next(chain, "llm-stage "+m.Kind+"\n", sent, body)
		if chain.String() != m.Chain {
			t.Errorf("%s: chain %s, want %s", m.About, chain.String(), m.Chain)
		}
		if read := readChain(nats.Header{streams.HeaderChain: {m.Chain}}); read != chain {
			t.Errorf("%s: it is read as %s", m.About, read.String())
		}
	}
	if got := eventName(sha256.Sum256([]byte(vectors.Event.Event))); got != vectors.Event.Name {
		t.Errorf("the row event is named %s, want %s", got, vectors.Event.Name)
	}
}

// The names of one message's headers are no names of the next.
func TestTheChainIsOfTheHeadersOfEachMessage(t *testing.T) {
	var c chainer
	for _, h := range []nats.Header{{"A": {"1"}, "B": {"2"}}, {"A": {"1"}, "C": {"2"}}, {"C": {"3"}}, {"A": nil, "C": {"3"}}, {"A": {"4"}, "C": {"3"}}} {
		if got, want := c.next(chainValue{}, chainedResult, h, [32]byte{}), new(chainer).next(chainValue{}, chainedResult, h, [32]byte{}); got != want {
			t.Errorf("%v: chain %s, want %s", h, got.String(), want.String())
		}
	}
}

// The chain costs a result one string.
func TestTheChainOfAResultCostsOneAllocation(t *testing.T) {
	row := aheadRow(70_000, 12)
	m := orderedConsumer(t, nil, streams.OrderKey).messages.resultMsg(row, "owner")
	var c chainer
	var chain chainValue
	if n := testing.AllocsPerRun(100, func() {
		chain = c.next(chain, chainedResult, m.Header, row.inTerm.bodyHash)
		m.Header[streams.HeaderChain][0] = chain.String()
	}); n > 1 {
		t.Errorf("%v allocations, want 1", n)
	}
}

func BenchmarkChain(b *testing.B) {
	row := aheadRow(70_000, 12)
	m := orderedConsumer(b, nil, streams.OrderKey).messages.resultMsg(row, "owner")
	var c chainer
	var chain chainValue
	b.ReportAllocs()
	for b.Loop() {
		chain = c.next(chain, chainedResult, m.Header, row.inTerm.bodyHash)
		m.Header[streams.HeaderChain][0] = chain.String()
	}
}
