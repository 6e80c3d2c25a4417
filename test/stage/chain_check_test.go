package stage_test

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/test/chain"
	"github.com/nats-io/nats.go"
)

// planted is a result of stage b.
type planted struct {
	header nats.Header
	body   []byte
}

// plant makes the results of b, each of which succeeds, of rows 2, 4 and so on.
func plant(p chain.Pipeline, sources map[uint64]chain.Source) (all []planted) {
	for _, seq := range slices.Sorted(maps.Keys(sources)) {
		src := sources[seq]
		header := nats.Header{
			streams.HeaderSourceSeq: {strconv.FormatUint(seq, 10)}, streams.HeaderSourceStream: {"RESULTS"}, streams.HeaderStatus: {"success"},
			streams.HeaderOriginStream: {"ROWS"}, streams.HeaderOriginSeq: {strconv.FormatUint(src.Origin, 10)},
		}
		var parts []string
		for _, part := range p.Row(src.N).Outcomes[chain.B].Parts {
			if part.Reason != "" {
				parts = append(parts, fmt.Sprintf(`{"error":{"reason":%q,"error":"refused"}}`, part.Reason))
			} else {
				parts = append(parts, strconv.Quote(part.Text))
			}
		}
		body := fmt.Appendf(bytes.TrimSuffix(bytes.Clone(src.Body), []byte("}")), `,"parts":[%s]}`, bytes.Join(asBytes(parts), []byte(",")))
		all = append(all, planted{header, body})
	}
	return all
}

func asBytes(texts []string) (all [][]byte) {
	for _, t := range texts {
		all = append(all, []byte(t))
	}
	return all
}

func TestTheCheckFindsWhatMustNotBe(t *testing.T) {
	p := chain.Pipeline{Seed: 1, Keep: true}
	sources := make(map[uint64]chain.Source)
	for n := 1; len(sources) < 60; n++ {
		if p.Row(n).Outcomes[chain.B].Reason == "" {
			body := fmt.Appendf(bytes.TrimSuffix(p.Body(n), []byte("}")), `,"draft":%q}`, p.Row(n).Outcomes[chain.A].Text)
			sources[uint64(2*n)] = chain.Source{N: n, Origin: uint64(n), Body: body} //nolint:gosec // few
		}
	}
	header := func(name, value string) func([]planted) []planted {
		return func(all []planted) []planted {
			all[9].header.Set(name, value)
			return all
		}
	}
	for _, c := range []struct {
		name  string
		spoil func([]planted) []planted
		want  map[string]int
	}{
		{"nothing", func(all []planted) []planted { return all }, map[string]int{}},
		{"a lost result", func(all []planted) []planted { return slices.Delete(all, 9, 10) }, map[string]int{"lost": 1}},
		{"a doubled one", func(all []planted) []planted { return append(all, all[59]) }, map[string]int{"doubled": 1}},
		{"two swapped", func(all []planted) []planted {
			all[9], all[10] = all[10], all[9]
			return all
		}, map[string]int{"disorder": 1}},
		{"bodies swapped", func(all []planted) []planted {
			all[9].body, all[10].body = all[10].body, all[9].body
			return all
		}, map[string]int{"bytes": 2}},
		{"links swapped", func(all []planted) []planted {
			for _, name := range []string{streams.HeaderSourceSeq, streams.HeaderOriginSeq} {
				all[9].header[name], all[10].header[name] = all[10].header[name], all[9].header[name]
			}
			return all
		}, map[string]int{"bytes": 2, "disorder": 1}},
		{"a result of no row", header(streams.HeaderSourceSeq, "1"), map[string]int{"invented": 1, "lost": 1}},
		{"a result of another stream", header(streams.HeaderSourceStream, "ROWS"), map[string]int{"invented": 1, "lost": 1}},
		{"another origin", header(streams.HeaderOriginSeq, "1"), map[string]int{"origin": 1}},
		{"no origin", header(streams.HeaderOriginStream, ""), map[string]int{"origin": 1}},
		{"a failed row", header(streams.HeaderStatus, "error"), map[string]int{"bytes": 1}},
		{"an element's reply in another's place", func(all []planted) []planted {
			for i := range all {
				if parts := bytes.SplitAfterN(all[i].body, []byte(`"Answer `), 3); len(parts) == 3 {
					all[i].body = slices.Concat(parts[0], []byte("f"), parts[1], parts[2])
					break
				}
			}
			return all
		}, map[string]int{"bytes": 1}},
		{"an element too many", func(all []planted) []planted {
			all[9].body = slices.Concat(bytes.TrimSuffix(all[9].body, []byte("]}")), []byte(`,"x"]}`))
			return all
		}, map[string]int{"bytes": 1}},
		{"bytes not kept", func(all []planted) []planted {
			all[9].body = bytes.Replace(all[9].body, []byte(`"n": `), []byte(`"n":`), 1)
			return all
		}, map[string]int{"bytes": 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := make(map[string]int)
			check := chain.NewChecker(p, chain.B, sources, func(what, format string, args ...any) {
				found[what]++
				t.Logf("%s: "+format, append([]any{what}, args...)...)
			})
			for i, r := range c.spoil(plant(p, sources)) {
				check.Result(uint64(i+1), 0, r.header, r.body) //nolint:gosec // few
			}
			check.End()
			if !maps.Equal(found, c.want) {
				t.Errorf("found %v, want %v", found, c.want)
			}
		})
	}
}

func TestAPromptNamesItsCall(t *testing.T) {
	for _, p := range []chain.Pipeline{{Seed: 1}, {Seed: 2, Keep: true}, {Seed: 3, Flat: true}} {
		calls, refused, failed := 0, 0, 0
		for n := 1; n <= 600; n++ {
			row := p.Row(n)
			for ask, prompt := range row.Prompts {
				calls++
				if got, err := chain.Parse(prompt); err != nil || got != ask {
					t.Errorf("%q is of %+v, %v; want %+v", prompt, got, err, ask)
				}
				if p.Fails(ask) != 0 {
					failed++
				}
			}
			if row.Outcomes[chain.C].Reason != "" {
				refused++
			}
		}
		if refused < 10 || refused > 300 || failed < calls/100 || failed > calls/20 {
			t.Errorf("%+v: of 600 rows %d fail, of %d calls the first attempt of %d", p, refused, calls, failed)
		}
	}
	if _, err := chain.Parse("Row 7"); err == nil {
		t.Error("a prompt of no stage is accepted")
	}
}
