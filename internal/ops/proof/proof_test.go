package proof_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/stagetest"
)

// vectors are messages of a log with their chain. The writer's tests in consumer read the
// same file.
type vectors struct {
	Messages []struct {
		About   string              `json:"about"`
		Kind    proof.Kind          `json:"kind"`
		Header  map[string][]string `json:"header"` // as it is stored
		Body    string              `json:"body"`
		Head    string              `json:"head"`
		Content string              `json:"content"`
		Record  proof.Record        `json:"record"`
		Chain   proof.Hash          `json:"chain"`
	} `json:"messages"`
	Calls []struct {
		Event string     `json:"event"`
		Hash  proof.Hash `json:"calls_hash"`
	} `json:"calls"`
	Event struct {
		Event string `json:"event"`
		Name  string `json:"name"`
	} `json:"event"`
}

func readVectors(t *testing.T) (v vectors) {
	t.Helper()
	stagetest.Must(t, json.Unmarshal(stagetest.Value(os.ReadFile("testdata/vectors.json"))(t), &v))
	return v
}

func TestVectors(t *testing.T) {
	v := readVectors(t)
	var chain proof.Hash
	for _, m := range v.Messages {
		if got := proof.Head(m.Kind, m.Header); got != m.Head {
			t.Errorf("%s: head %q, want %q", m.About, got, m.Head)
		}
		if got := proof.Content(m.Header, proof.HashOf([]byte(m.Body))); got != m.Content {
			t.Errorf("%s: content %q, want %q", m.About, got, m.Content)
		}
		m.Header[proof.HeaderChain] = []string{m.Chain.String()} // it is no part of itself
		record := proof.RecordOf(m.Kind, m.Header, []byte(m.Body))
		if record != m.Record {
			t.Errorf("%s: another record", m.About)
		}
		if chain = chain.Next(record); chain != m.Chain {
			t.Errorf("%s: chain %s, want %s", m.About, chain, m.Chain)
		}
	}
	var calls proof.Hash
	for _, c := range v.Calls {
		if calls = calls.Calls(proof.HashOf([]byte(c.Event))); calls != c.Hash {
			t.Errorf("%s: calls hash %s, want %s", c.Event, calls, c.Hash)
		}
	}
	if got := proof.EventName(proof.HashOf([]byte(v.Event.Event))); got != v.Event.Name {
		t.Errorf("event name %s, want %s", got, v.Event.Name)
	}
}

// An erased message leaves what the chain needs, whatever the message was.
func TestATombstoneTakesThePlaceOfItsMessage(t *testing.T) {
	var before proof.Hash
	for i, m := range readVectors(t).Messages {
		m.Header[proof.HeaderChain] = []string{m.Chain.String()}
		stone := stagetest.Value(proof.NewTombstone(m.Kind, uint64(i)+1, m.Header, []byte(m.Body)))(t)
		body := stagetest.Value(json.Marshal(stone))(t)
		for _, secret := range []string{"response", "rows.x", "café", "user%201"} {
			if strings.Contains(string(body), secret) {
				t.Errorf("%s: its tombstone has %q: %s", m.About, secret, body)
			}
		}
		read := stagetest.Value(proof.ParseTombstone(body))(t)
		if !read.Follows(before) || read.Kind() != m.Kind || read.Header("Stage-Source-Seq") != m.Header["Stage-Source-Seq"][0] {
			t.Errorf("%s: its tombstone does not stand for it: %s", m.About, body)
		}
		for change, f := range map[string]func(*proof.Tombstone){
			"head":    func(s *proof.Tombstone) { s.Head = strings.Replace(s.Head, "run.", "fun.", 1) },
			"content": func(s *proof.Tombstone) { s.Content[0]++ },
			"chain":   func(s *proof.Tombstone) { s.Chain[31]++ },
		} {
			forged := *read
			if f(&forged); forged.Follows(before) {
				t.Errorf("%s: a tombstone with another %s stands for it", m.About, change)
			}
		}
		before = m.Chain
	}
}

func TestATombstoneThatIsNoneIsRefused(t *testing.T) {
	m := readVectors(t).Messages[1]
	if _, err := proof.NewTombstone(m.Kind, 2, m.Header, []byte(m.Body)); err == nil || !strings.Contains(err.Error(), "Stage-Chain") {
		t.Errorf("of a message without a chain: %v", err)
	}
	for body, want := range map[string]string{
		`{`:                          "can't be read",
		`{"row":1,"head":"other\n"}`: "no message of a log",
		`{"row":1,"head":"llm-stage result\nStage-Owner: a\n"}`:                     "names no row",
		`{"row":1,"head":"llm-stage result\nStage-Source-Seq: 2\n"}`:                "has the head of row 2",
		`{"row":1,"content":"ab","head":"llm-stage result\nStage-Source-Seq: 1\n"}`: "no SHA-256",
	} {
		if _, err := proof.ParseTombstone([]byte(body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
}

func TestChainOf(t *testing.T) {
	digits := strings.Repeat("0a", 32)
	for _, tt := range []struct {
		values []string
		ok     bool
		fails  string
	}{
		{nil, false, ""},
		{[]string{digits}, true, ""},
		{[]string{strings.ToUpper(digits)}, true, "lower-case"},
		{[]string{digits[2:]}, true, "lower-case"},
		{[]string{""}, true, "lower-case"},
		{[]string{digits, digits}, true, "2 headers"},
	} {
		value, ok, err := proof.ChainOf(map[string][]string{proof.HeaderChain: tt.values})
		if ok != tt.ok || (err == nil) != (tt.fails == "") || err != nil && !strings.Contains(err.Error(), tt.fails) {
			t.Errorf("%q: %s %v %v", tt.values, value, ok, err)
		}
	}
}
