package stagetest

import (
	"maps"
	"slices"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/nats-io/nats.go"
)

// Chain gives the job what a stage of today stores: row events with the hash of their
// calls, unless they have one, and a salt, and results and claims with a chain. What a
// test changes afterwards breaks it.
func (j *Job) Chain() {
	for i := range j.Steps {
		if r := j.Steps[i].Row; r != nil {
			r.Salt = "K7QW2MZ4R3T5NVXH6YBDCJ2LPA"
			if hash := j.callsOf(r); r.CallsHash == "" && hash != (proof.Hash{}) {
				r.CallsHash = hash.String()
			}
		}
	}
	chains := make(map[int]proof.Hash)
	for i := range j.Steps {
		s := &j.Steps[i]
		switch {
		case s.Claim != nil:
			chains[s.Part] = s.chain(proof.Claim, chains[s.Part], &s.Claim.Header)
		case s.Result != nil:
			of := j.Index(func(o Step) bool {
				return o.Row != nil && o.Row.Owner == s.Result.Owner && o.Row.Sequence == s.Result.Seq && o.Part == s.Part
			})
			s.Result.Header = maps.Clone(s.Result.Header)
			if s.Result.Header == nil {
				s.Result.Header = make(nats.Header)
			}
			if of >= 0 {
				s.Result.Header.Set(proof.HeaderEvent, proof.EventName(proof.HashOf(j.Steps[of].stored().Data)))
			}
			chains[s.Part] = s.chain(proof.Result, chains[s.Part], &s.Result.Header)
		}
	}
}

// chain gives a message its value, which it returns.
func (s *Step) chain(kind proof.Kind, before proof.Hash, header *nats.Header) proof.Hash {
	m := s.stored()
	value := before.Next(proof.RecordOf(kind, m.Header, m.Data))
	if *header == nil {
		*header = make(nats.Header)
	}
	header.Set(proof.HeaderChain, value.String())
	return value
}

// callsOf returns the hash of the calls that a row event counts: all of its owner's.
func (j *Job) callsOf(r *auditlog.Row) (hash proof.Hash) {
	if r.Source == auditlog.SourceDedupe {
		return hash
	}
	for _, s := range j.Steps {
		if s.Call == nil {
			continue
		}
		if slices.ContainsFunc(slices.Collect(s.Call.EachRow()), func(c *auditlog.Call) bool { return c.Owner == r.Owner && c.Sequence == r.Sequence }) {
			hash = hash.Calls(proof.HashOf(s.stored().Data))
		}
	}
	return hash
}

// stored is the step's message.
func (s *Step) stored() *nats.Msg {
	m, err := s.message()
	if err != nil {
		panic(err) // a claim that is no JSON
	}
	return m
}
