package streams

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// The server spreads the rows of a stream over partitions by the stream's subject
// transform: of `rows.*` it makes `rows.{{partition(8,1)}}.{{wildcard(1)}}`, say, so that
// the key in the subject decides, and rows of one key keep their order. What follows does
// the same arithmetic, to find the subject on which a row must be published to reach its
// partition.

// partitionTransform returns the subjects and the transform of an input stream that
// spreads rows over partitions: for the input subject `rows.{partition}.>` rows are
// published on `rows.KEY`, or on `rows.3.KEY` by those who choose themselves. Partitions
// that do not exist are no subjects of the stream, so a row there is refused rather than
// left lying.
func partitionTransform(
	input string, partitions int,
) (subjects []string, transform *jetstream.SubjectTransformConfig) {
	spread := fmt.Sprintf("{{partition(%d,1)}}", partitions)
	var source, dest []string
	wildcards := 0
	for token := range strings.SplitSeq(input, ".") {
		switch token {
		case PartitionToken:
			dest = append(dest, spread)
		case "*", ">":
			wildcards++
			source = append(source, "*")
			dest = append(dest, fmt.Sprintf("{{wildcard(%d)}}", wildcards))
		default:
			source, dest = append(source, token), append(dest, token)
		}
	}
	if wildcards == 0 { // the key is nothing but the way to the partition
		source = slices.Insert(source, slices.Index(dest, spread), "*")
	}
	published := strings.Join(source, ".")
	subjects = []string{published}
	for p := range partitions {
		if filter := InputFilter(input, p); !Overlap(published, filter) {
			subjects = append(subjects, filter)
		}
	}
	return subjects, &jetstream.SubjectTransformConfig{
		Source: published, Destination: strings.Join(dest, "."),
	}
}

// transform is a stream's subject transform, token by token.
type transform struct {
	source []string
	dest   []destToken
}

// destToken is a token of a transform's destination.
type destToken struct {
	text       string
	wildcards  []int // counted from 1: the one, or all whose text chooses the partition
	partitions int   // 0 if the token is the wildcard itself
}

var errForeignTransform = errors.New("only literal tokens, {{wildcard(n)}} and {{partition(p,n)}} are understood")

func parseTransform(cfg jetstream.SubjectTransformConfig) (t transform, err error) {
	t.source = strings.Split(cfg.Source, ".")
	if slices.Contains(t.source, ">") || cfg.Source == "" {
		return t, errForeignTransform
	}
	for token := range strings.SplitSeq(cfg.Destination, ".") {
		d, err := parseDestToken(token)
		if err != nil {
			return t, fmt.Errorf("%q: %w", token, err)
		}
		t.dest = append(t.dest, d)
	}
	return t, nil
}

func parseDestToken(token string) (destToken, error) {
	if n, ok := strings.CutPrefix(token, "$"); ok {
		i, err := strconv.Atoi(n)
		if err != nil || i < 1 {
			return destToken{}, errForeignTransform
		}
		return destToken{wildcards: []int{i}}, nil
	}
	call, ok := strings.CutPrefix(token, "{{")
	if !ok {
		return destToken{text: token}, nil
	}
	call, ok = strings.CutSuffix(call, "}}")
	name, list, called := strings.Cut(call, "(")
	list, closed := strings.CutSuffix(strings.TrimSpace(list), ")")
	if !ok || !called || !closed {
		return destToken{}, errForeignTransform
	}
	var args []int
	for arg := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(arg))
		if err != nil || n < 1 {
			return destToken{}, errForeignTransform
		}
		args = append(args, n)
	}
	switch name = strings.ToLower(strings.TrimSpace(name)); {
	case name == "wildcard" && len(args) == 1:
		return destToken{wildcards: args}, nil
	case name == "partition" && len(args) > 1:
		return destToken{partitions: args[0], wildcards: args[1:]}, nil
	default:
		return destToken{}, errForeignTransform
	}
}

// partitions is the number of partitions that the transform makes, and 0 if it makes
// none.
func (t transform) partitions() int {
	for _, d := range t.dest {
		if d.partitions > 0 {
			return d.partitions
		}
	}
	return 0
}

// filter matches every subject that the transform makes.
func (t transform) filter() string {
	tokens := make([]string, len(t.dest))
	for i, d := range t.dest {
		if tokens[i] = d.text; d.wildcards != nil {
			tokens[i] = "*"
		}
	}
	return strings.Join(tokens, ".")
}

// forward is the subject under which a message is stored that is published on subject. A
// subject that the source does not match stays as it is.
func (t transform) forward(subject string) string {
	tokens := strings.Split(subject, ".")
	if len(tokens) != len(t.source) {
		return subject
	}
	var wild []string
	for i, s := range t.source {
		switch {
		case s == "*":
			wild = append(wild, tokens[i])
		case s != tokens[i]:
			return subject
		}
	}
	out := make([]string, len(t.dest))
	for i, d := range t.dest {
		switch {
		case slices.ContainsFunc(d.wildcards, func(w int) bool { return w > len(wild) }):
			return subject
		case d.wildcards == nil:
			out[i] = d.text
		case d.partitions == 0:
			out[i] = wild[d.wildcards[0]-1]
		default:
			h := fnv.New32a() // as in the server
			for _, w := range d.wildcards {
				_, _ = h.Write([]byte(wild[w-1])) // a hash never fails
			}
			out[i] = strconv.FormatUint(uint64(h.Sum32()%uint32(d.partitions)), 10)
		}
	}
	return strings.Join(out, ".")
}

// inverse is a subject on which a message must be published to be stored under stored; ok
// is false where there is none.
func (t transform) inverse(stored string) (subject string, ok bool) {
	tokens := strings.Split(stored, ".")
	if len(tokens) != len(t.dest) {
		return "", false
	}
	wild := make(map[int]string)
	for i, d := range t.dest {
		if d.wildcards != nil && d.partitions == 0 {
			wild[d.wildcards[0]] = tokens[i]
		}
	}
	out, n := slices.Clone(t.source), 0
	for i, s := range out {
		if s == "*" {
			n++
			if out[i], ok = wild[n]; !ok {
				return "", false
			}
		}
	}
	subject = strings.Join(out, ".")
	return subject, t.forward(subject) == stored
}

// InputAddress is where a row is published to get into one partition, and the subject
// under which it is stored then.
type InputAddress struct{ Publish, Stored string }

// AddressInput returns an address for a source's rows in one partition of an input
// stream: a subject of the source's own, made of id. Input is the input subject, with
// [PartitionToken] where there are partitions. The error says why no subject leads there.
func AddressInput(
	cfg jetstream.StreamConfig, input string, partition int, id string,
) (InputAddress, error) {
	filter := InputFilter(input, partition)
	own := func(key string) string {
		tokens := strings.Split(filter, ".")
		for i, t := range tokens {
			if t == "*" || t == ">" {
				tokens[i] = key
			}
		}
		return strings.Join(tokens, ".")
	}
	if own(id) == filter {
		return InputAddress{}, NewSettingError(FieldInputSubject,
			"%s %s has no place for a subject of each source's own: end it with .> or .*",
			FieldInputSubject, input)
	}
	if a, ok := publishTo(cfg, own(id)); ok {
		return a, nil
	}
	// A source's subject is hashed to one partition; others like it lead to the others.
	// So many tries miss one of them once in e^100 times.
	tries := 0
	if cfg.SubjectTransform != nil {
		if t, err := parseTransform(*cfg.SubjectTransform); err == nil {
			tries = 100 * t.partitions()
		}
	}
	for i := range tries {
		if a, ok := publishTo(cfg, own(id+"-"+strconv.Itoa(i+1))); ok {
			return a, nil
		}
	}
	return InputAddress{}, noSubject(cfg, own(id))
}

// publishTo returns the address under which messages are stored as stored; ok is false
// where the stream has none.
func publishTo(cfg jetstream.StreamConfig, stored string) (a InputAddress, ok bool) {
	a = InputAddress{Publish: stored, Stored: stored}
	if cfg.SubjectTransform != nil {
		t, err := parseTransform(*cfg.SubjectTransform)
		if err != nil {
			return a, false
		}
		if published, ok := t.inverse(stored); ok {
			a.Publish = published
		} else if t.forward(stored) != stored {
			return a, false
		}
	}
	return a, slices.ContainsFunc(cfg.Subjects, func(s string) bool { return covers(s, a.Publish) })
}

// noSubject returns the error of a stream without a subject under which messages are
// stored as stored.
func noSubject(cfg jetstream.StreamConfig, stored string) error {
	text := fmt.Sprintf("no subject of stream %s leads to %s: it captures %s", cfg.Name, stored,
		strings.Join(cfg.Subjects, ", "))
	if t := cfg.SubjectTransform; t != nil {
		text += fmt.Sprintf(" and stores %s as %s", t.Source, t.Destination)
		if _, err := parseTransform(*t); err != nil {
			text += " (" + err.Error() + ")"
		}
	}
	return errors.New(text)
}

// InputSubjectOf returns the subject on which a stored row was published, so that it may
// be published again.
func InputSubjectOf(cfg jetstream.StreamConfig, stored string) (string, error) {
	a, ok := publishTo(cfg, stored)
	if !ok {
		return "", noSubject(cfg, stored)
	}
	return a.Publish, nil
}

// checkPartitions looks at the transform of an existing input stream.
func (s Config) checkPartitions(cfg jetstream.StreamConfig) (wrong findings) {
	if s.Partitions < 2 || cfg.SubjectTransform == nil {
		return nil
	}
	t, err := parseTransform(*cfg.SubjectTransform)
	if err != nil {
		return nil // the user's own transform, taken to be intended
	}
	if n := t.partitions(); n > 0 && n != s.Partitions {
		wrong.addSetting(FieldPartitions,
			"spreads rows over %d partitions (%s), so %s=%d would leave some without rows or without a stage: make them equal",
			n, cfg.SubjectTransform.Destination, FieldPartitions, s.Partitions)
	}
	if !Overlap(t.filter(), s.filter()) {
		wrong.addSetting(FieldInputSubject,
			"stores rows as %s, none of which is on %s: change %s or the stream's transform",
			cfg.SubjectTransform.Destination, s.InputSubject, FieldInputSubject)
	}
	return wrong
}
