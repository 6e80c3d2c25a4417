package verify

import (
	"bytes"
	"cmp"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
	"github.com/nats-io/nats.go"
)

// bodies says what the check of a partition reads bodies for. With the zero value only
// headers are read.
type bodies struct {
	read bool
	// linked says that each result is compared with the row that it names.
	linked bool
	// upstream is the stage whose results the rows are.
	upstream Upstream
	// arrays are the members of rows that runs of the stage have fanned out over.
	arrays []string
	// fields are the members that runs of the stage have put replies into.
	fields []string
	// every says that the settings of some run are unknown: any array of a row may have
	// been fanned out over.
	every bool
}

// bodiesOf decides what bodies are read for.
func bodiesOf(cfg *config.Config, o Options, runs *runVerifier) bodies {
	b := bodies{linked: o.Linked, upstream: o.Upstream}
	if cfg.FansOut() {
		b.arrays = append(b.arrays, cfg.Foreach.Field)
	}
	b.fields = []string{cfg.Prompt.ResponseField}
	for _, r := range runs.runs {
		if name := r.settings["STAGE_RESPONSE_FIELD"]; name != "" && !slices.Contains(b.fields, name) {
			b.fields = append(b.fields, name)
		}
		if name := r.settings["STAGE_FOREACH"]; name != "" && !slices.Contains(b.arrays, name) {
			b.arrays = append(b.arrays, name)
		}
	}
	slices.Sort(b.arrays)
	b.read = b.linked || len(b.arrays) > 0
	return b
}

// Upstream is the stage whose results are the rows of the stage under check. Its results
// are the messages in the logs of its partitions. The zero value means that the stage is
// the first of its chain, or that the one before is not known.
type Upstream struct {
	Name, ResultSubject string
	Partitions          int
}

// source holds what a row has in common with its result. It keeps hashes and no part of
// the body, since rows wait here for their results: at 10 kB a row, a window of 50,000
// rows would take 500 MB.
type source struct {
	// hash covers the row's variables. It is empty if the body is no row.
	hash   string
	items  []elements // of the members of [bodies.arrays] that are arrays, or of every array
	values uint64     // of all members but the row's error, see valuesOf
	// kept is values without the members that a success replaces, for each of
	// [bodies.fields]. It is nil if the row has no member that a success replaces.
	kept []left
	// previews are what an error without the row's members may quote of the row, see
	// previewsOf.
	previews [2]uint64
	body     uint64
	subject  uint64
	failed   bool // it is an error of a stage

	upstream                string // the stage whose result it is, or empty
	originStream, originSeq string // that its result must name
	replaces                string // the row that it is a copy of, see [streams.HeaderReplaces]
	inLog                   bool   // it is in the log of the stage before, not beside it
}

// left has what a success leaves of the values of its row, for each set of parts that it
// may keep beside the answer. Only parts whose names the row has make a difference, so a
// row without any such name has one entry.
type left map[partSet]uint64

// besides returns what a success leaves that keeps these parts.
func (l left) besides(parts partSet) uint64 {
	var have partSet
	for names := range l {
		have |= names
	}
	return l[parts&have]
}

// partSet is a set of parts of a reply. Bit i stands for partMembers[i]: 0b101 has the
// reasoning and the tool calls.
type partSet uint8

// elements describes an array of a row, or the replies to its elements.
type elements struct {
	n    int
	hash string // of the hashes of the fields that a template sees in each
}

// made is what a result shows of the row that it is made from.
type made struct {
	hash   string    // of the row's variables, in a success, or empty
	items  *elements // of a success of a row that fans out
	values uint64    // of the row's members, but for errors
	field  string    // that the reply of a success is in
	parts  partSet   // the parts of the reply that are kept beside it
	cut    bool      // it has none of the row's members
	// preview is what an error without the row's members quotes of the row. It is nil if
	// there was no room for that either.
	preview *uint64
	body    uint64
	sha     string // SHA-256 of the body, in hexadecimal
	broken  bool   // it is neither a success nor an error
}

func digest(body []byte) uint64 { return maphash.Bytes(keySeed, body) }

// sourceOf reads a row of the input.
func (b *bodies) sourceOf(in *stored.InputRow) *source {
	if !b.read || in.Unreadable {
		return nil
	}
	s := &source{body: digest(in.Body), subject: digest([]byte(streams.Text(in.Subject))), previews: previewsOf(in)}
	s.upstream = upstreamOf(in.Header)
	if s.upstream != "" {
		s.originStream, s.originSeq = strings.Clone(in.Header.Get(streams.HeaderOriginStream)), in.Header.Get(streams.HeaderOriginSeq)
		if !isSequence(s.originSeq) || s.originStream == "" {
			s.originStream, s.originSeq = strings.Clone(in.Header.Get(streams.HeaderSourceStream)), in.Header.Get(streams.HeaderSourceSeq)
		}
		s.originSeq = strings.Clone(s.originSeq)
		s.failed = in.Header.Get(streams.HeaderStatus) == auditlog.RowError
		s.inLog = b.inLog(in)
		s.replaces = strings.Clone(in.Header.Get(streams.HeaderReplaces))
	}
	r, err := row.Parse(in.Body)
	if err != nil {
		return s
	}
	s.hash = r.VariablesHash()
	members, _ := jsonbytes.ReadObject(nil, in.Body) // it is one
	for _, name := range b.arraysOf(in.Body, members) {
		if items, err := r.Items(name, math.MaxInt); err == nil {
			hashes := make([]string, items.Len())
			for i := range hashes {
				hashes[i] = items.VariablesHash(i)
			}
			s.items = append(s.items, elementsOf(hashes))
		}
	}
	s.values = valuesOf(in.Body, members)
	// A success of a row from another stage keeps all members, some under other names.
	if s.upstream == "" {
		s.kept = b.keptOf(in.Body, members)
	}
	return s
}

// keptOf returns [source.kept] of a row of no stage. Such a row may have members with the
// names that a success uses, which the success then replaces. With the field "answer", the
// row {"q":"…","answer":"old"} leaves {"q":"…"}, so the values of "q" alone must be found
// again in the result.
//
// Which parts the success keeps beside the answer is not known yet, so there is one value
// for each set of parts whose names the row has.
func (b *bodies) keptOf(body []byte, members []jsonbytes.Member) (kept []left) {
	replaced := false
	for _, field := range b.fields {
		without := func(parts partSet) uint64 {
			rest := slices.DeleteFunc(slices.Clone(members), func(m jsonbytes.Member) bool {
				suffix, of := strings.CutPrefix(nameOf(body, &m), field)
				return of && (slices.Contains(answerMembers, suffix) || parts&partOf(suffix) != 0)
			})
			replaced = replaced || len(rest) < len(members)
			return valuesOf(body, rest)
		}
		var have partSet
		for i := range members {
			if suffix, of := strings.CutPrefix(nameOf(body, &members[i]), field); of {
				have |= partOf(suffix)
			}
		}
		l := left{0: without(0)}
		for parts := have; parts != 0; parts = (parts - 1) & have {
			l[parts] = without(parts)
		}
		kept = append(kept, l)
	}
	if !replaced {
		return nil
	}
	return kept
}

// inLog reports whether a row is in the log of the partition of the stage before that its
// state id names.
func (b *bodies) inLog(in *stored.InputRow) bool {
	p, err := strconv.Atoi(partitionOf(in.Header))
	return err == nil && p < b.upstream.Partitions && in.Subject == streams.ResultSubject(b.upstream.ResultSubject, b.upstream.Name, p)
}

// previewsOf returns what an error may quote of a row: the beginning of its body or,
// where a loader has put its problem before that, of what follows.
func previewsOf(in *stored.InputRow) [2]uint64 {
	begin := in.Body
	if problem := in.Header.Get(streams.HeaderRowProblem); problem != "" {
		begin = bytes.TrimRight(bytes.TrimPrefix(begin, []byte(problem+": ")), "\r\n")
	}
	return [2]uint64{quoted(in.Body), quoted(begin)}
}

// quoted returns a hash of what an error quotes of a text: the whole characters in its
// first 500 bytes.
func quoted(text []byte) uint64 {
	end := min(len(text), 500)
	for end > 0 && end < len(text) && !utf8.RuneStart(text[end]) {
		end--
	}
	return digest(bytes.ToValidUTF8(text[:end], nil))
}

// arraysOf returns the names of the members of a row that may have been fanned out over:
// all its arrays, if the settings of some run are unknown.
func (b *bodies) arraysOf(body []byte, members []jsonbytes.Member) (names []string) {
	if !b.every {
		return b.arrays
	}
	for i := range members {
		if body[members[i].Value] == '[' {
			names = append(names, nameOf(body, &members[i]))
		}
	}
	return names
}

func elementsOf(hashes []string) elements {
	return elements{n: len(hashes), hash: llm.Hash([]byte(strings.Join(hashes, " ")))}
}

// valuesOf returns a hash of the values of members. It leaves out errors, and the names of
// members, which a stage may change.
func valuesOf(body []byte, members []jsonbytes.Member) uint64 {
	var h maphash.Hash
	h.SetSeed(keySeed)
	for i := range members {
		if m := &members[i]; !strings.HasSuffix(nameOf(body, m), "_error") {
			_, _ = h.Write(body[m.Value:m.End]) // it never fails
			_ = h.WriteByte('\n')
		}
	}
	return h.Sum64()
}

func nameOf(body []byte, m *jsonbytes.Member) string {
	return jsonbytes.Text(body[m.Start:m.KeyEnd])
}

// upstreamOf returns the stage whose result a row is, as its state id says in accord with
// its other headers, or empty. Like keyOf it shares no code with the stage: a bug in that
// code would otherwise hide from the check.
func upstreamOf(h nats.Header) string {
	parts := strings.Split(h.Get(streams.HeaderStateID), "/")
	if len(parts) != 4 || parts[0] == "" || parts[1] == "" || parts[1] != h.Get(streams.HeaderSourceStream) ||
		parts[3] != h.Get(streams.HeaderSourceSeq) || !isSequence(parts[3]) {
		return ""
	}
	if n, err := strconv.Atoi(parts[2]); err != nil || n < 0 {
		return ""
	}
	if !config.ValidStageName(parts[0]) {
		return ""
	}
	return strings.Clone(parts[0])
}

// partitionOf returns the partition that the state id of a result names.
func partitionOf(h nats.Header) string {
	_, rest, _ := strings.Cut(h.Get(streams.HeaderStateID), "/")
	_, rest, _ = strings.Cut(rest, "/")
	partition, _, _ := strings.Cut(rest, "/")
	return partition
}

func isSequence(text string) bool {
	n, err := strconv.ParseUint(text, 10, 64)
	return err == nil && n > 0 && strconv.FormatUint(n, 10) == text
}

// answerMembers are the members that a success ends with, by what follows the name of the
// first of them. variablesMember is the one with the hash of the variables.
var answerMembers = []string{
	"", "_usage", "_template_hash", "_variables_hash", "_template_source", "_lookup_hash", "_lookup_source", "_model",
}

const variablesMember = 3

// partMembers may follow them: the parts of the reply that are kept.
var partMembers = []string{"_reasoning", "_logprobs", "_tool_calls", "_citations", "_finish_reason", "_id", "_raw"}

// partOf returns the part that a member is for, by what follows the name of the answer.
func partOf(suffix string) partSet {
	if i := slices.Index(partMembers, suffix); i >= 0 {
		return 1 << i
	}
	return 0
}

// answerOf returns the members that a success has added to its row: the members that every
// success has, and the parts. The former are nil if the result is no success.
func answerOf(body []byte, members []jsonbytes.Member) (answer, parts []jsonbytes.Member) {
	for n := range 1 + len(partMembers) {
		start := len(members) - n - len(answerMembers)
		if start < 0 {
			break
		}
		answer, parts = members[start:start+len(answerMembers)], members[start+len(answerMembers):]
		field := nameOf(body, &answer[0])
		right := true
		for i := range answer {
			right = right && nameOf(body, &answer[i]) == field+answerMembers[i]
		}
		for i := range parts {
			suffix, of := strings.CutPrefix(nameOf(body, &parts[i]), field)
			right = right && of && slices.Contains(partMembers, suffix)
		}
		if right {
			return answer, parts
		}
	}
	return nil, nil
}

// madeOf reads the body of a result.
func (b *bodies) madeOf(r *stored.ResultRow) *made {
	if !b.read {
		return nil
	}
	m := &made{body: digest(r.Body), sha: llm.Hash(r.Body)}
	members, err := jsonbytes.ReadObject(nil, r.Body)
	if err != nil {
		m.broken = r.Status == auditlog.RowSuccess
		m.cut = true
		return m
	}
	if r.Status == auditlog.RowError {
		m.cut = len(members) <= 1
		m.values = valuesOf(r.Body, members)
		if len(members) == 1 {
			m.preview = previewOf(r.Body[members[0].Value:members[0].End])
		}
		return m
	}
	tail, parts := answerOf(r.Body, members)
	if m.broken = tail == nil; m.broken {
		return m
	}
	m.field, m.values = nameOf(r.Body, &tail[0]), valuesOf(r.Body, members[:len(members)-len(tail)-len(parts)])
	for i := range parts {
		m.parts |= partOf(strings.TrimPrefix(nameOf(r.Body, &parts[i]), m.field))
	}
	switch vars := r.Body[tail[variablesMember].Value:tail[variablesMember].End]; vars[0] {
	case '"':
		m.hash = jsonbytes.Text(vars)
	case '[':
		var hashes []string
		for text := range jsonbytes.Elements(vars) {
			hash := ""
			if text[0] == '"' {
				hash = jsonbytes.Text(text)
			}
			hashes = append(hashes, hash)
		}
		m.items = new(elementsOf(hashes))
		replies := 0
		if reply := r.Body[tail[0].Value:tail[0].End]; reply[0] == '[' {
			for range jsonbytes.Elements(reply) {
				replies++
			}
		}
		if replies != m.items.n {
			m.items.n = -1 // of a result that contradicts itself
		}
	}
	return m
}

// previewOf returns what an error quotes of its row, or nil.
func previewOf(failure []byte) *uint64 {
	preview := jsonbytes.Find(failure, "body_preview")
	if len(preview) == 0 || preview[0] != '"' {
		return nil
	}
	return new(digest([]byte(jsonbytes.Text(preview))))
}

// differs returns what shows that a result is not made from the row, or empty.
func (b *bodies) differs(s *source, r *stored.ResultRow, m *made) string {
	switch {
	case digest([]byte(streams.Text(r.Subject))) != s.subject:
		return fmt.Sprintf("names %q as its subject", r.Subject)
	case r.Status == auditlog.RowError && s.failed && s.body == m.body: // passed on
	case r.Status == auditlog.RowError && m.cut && m.preview != nil && !slices.Contains(s.previews[:], *m.preview):
		return "quotes another row"
	case r.Status == auditlog.RowError && m.cut:
	case r.Status == auditlog.RowError && s.values != m.values:
		return "has other members"
	case r.Status == auditlog.RowError:
	case m.broken:
		return "lacks the fields of a success"
	case m.items != nil && !slices.Contains(s.items, *m.items):
		return "has the hashes of other elements"
	case m.items == nil && m.hash != s.hash:
		return fmt.Sprintf("has the variables' hash %q, the row's is %q", m.hash, s.hash)
	case !b.keeps(s, m):
		return "has other members"
	}
	return ""
}

// keeps reports whether a success has the members of its row that it does not replace. If
// no known run has used the result's field, it is unknown which members those are, and
// keeps reports true.
func (b *bodies) keeps(s *source, m *made) bool {
	i := slices.Index(b.fields, m.field)
	switch {
	case s.upstream == "" && i < 0:
		return true
	case s.kept != nil:
		return s.kept[i].besides(m.parts) == m.values
	}
	return s.values == m.values
}

// linkVerifier compares the results of one partition with the rows that they name, by the
// bodies of both.
type linkVerifier struct {
	*findings
	bodies
	objects *objectVerifier
	// object reads the object that a result names in place of a body.
	object func(*objects.Ref) ([]byte, error)
	// original returns a row of the input, of any partition, or nil if the row is gone.
	// The func itself is nil if there is no input.
	original func(seq uint64) (*stored.InputRow, error)
}

// check compares a result with the row that it names. A result that is erased has nothing
// left to compare.
func (l *linkVerifier) check(h *verifiedRow) error {
	if h.erased {
		return nil
	}
	l.checkItems(h)
	return l.checkLink(h)
}

// checkItems compares how many replies the result of a row that fans out has with the
// elements of the row.
func (l *linkVerifier) checkItems(h *verifiedRow) {
	if h.made == nil || h.made.items == nil {
		if h.source != nil && len(h.source.items) == 1 {
			h.items = h.source.items[0].n
		}
		return
	}
	have := h.made.items.n
	if have < 0 {
		l.violate(violationItem, h.Seq,
			"the result of row %d, at %d of the results stream, has not as many replies as "+
				"hashes of elements",
			h.Seq, h.At)
		return
	}
	h.items = have
	if s := h.source; s != nil && len(s.items) > 0 && !slices.ContainsFunc(s.items, func(e elements) bool { return e.n == have }) {
		h.items = s.items[0].n
		l.violate(violationItem, h.Seq,
			"the result of row %d, at %d of the results stream, has replies to %d elements; "+
				"its row has %d",
			h.Seq, h.At, have, h.items)
	}
}

// checkLink compares the head with the row that it names.
func (l *linkVerifier) checkLink(h *verifiedRow) error {
	if !l.linked {
		return nil
	}
	s := h.source
	if s == nil || h.made == nil {
		return nil // it is counted by the audit, or not at all; or its body is missing
	}
	l.stats.Linked++
	if what := l.differs(s, h.ResultRow, h.made); what != "" {
		l.violate(violationLink, h.Seq,
			"the result at %d of the results stream is not made from row %d, which it names: "+
				"it %s",
			h.At, h.Seq, what)
	}
	stream, seq := h.Header.Get(streams.HeaderOriginStream), h.Header.Get(streams.HeaderOriginSeq)
	if stream != s.originStream || seq != s.originSeq {
		l.violate(violationOrigin, h.Seq, "the result of row %d, at %d of the results stream, names %s as the first row of its chain; it is %s", h.Seq, h.At,
			originText(stream, seq), originText(s.originStream, s.originSeq))
	}
	if l.upstream.Name == "" {
		return nil
	}
	if s.upstream != l.upstream.Name {
		l.stats.foreign++
		return nil
	}
	if s.inLog {
		return nil
	}
	return l.checkCopy(h)
}

// checkEvent compares the row event of a result with the row and the result.
func (l *linkVerifier) checkEvent(h *verifiedRow, event *rowFacts) {
	l.checkVariables(h, event)
	l.checkPassed(h, event)
}

// checkPassed compares the result of a row that was passed on with the row itself: the
// bodies must be equal byte by byte.
func (l *linkVerifier) checkPassed(h *verifiedRow, event *rowFacts) {
	if l.linked && event.source == auditlog.SourceUpstream && h.source != nil && h.made != nil && h.source.body != h.made.body {
		l.violate(violationLink, h.Seq,
			"row %d is an error that was passed on, and its result, at %d of the results "+
				"stream, has another body",
			h.Seq, h.At)
	}
}

// checkCopy compares a row that was published again with the one that it is a copy of, a
// result of the stage before.
func (l *linkVerifier) checkCopy(h *verifiedRow) error {
	place, err := strconv.ParseUint(h.source.replaces, 10, 64)
	if err != nil || l.original == nil {
		l.stats.foreign++
		return nil //nolint:nilerr // it names no row: nobody knows what it is a copy of
	}
	in, err := l.original(place)
	if err != nil || in == nil {
		l.stats.foreign++
		return err
	}
	s, first := h.source, l.sourceOf(in)
	switch {
	case first.upstream != l.upstream.Name || !first.inLog:
		l.stats.foreign++
	case first.body != s.body || first.failed != s.failed:
		l.violate(violationLink, h.Seq,
			"row %d was published again for row %d, and has another body", h.Seq, place)
	case first.originStream != s.originStream || first.originSeq != s.originSeq:
		l.violate(violationOrigin, h.Seq, "row %d was published again for row %d, and names %s as the first row of its chain; it is %s", h.Seq, place,
			originText(s.originStream, s.originSeq), originText(first.originStream, first.originSeq))
	}
	return nil
}

// checkVariables compares the row event of a result with the row, or with the result if
// the row is gone.
func (l *linkVerifier) checkVariables(h *verifiedRow, event *rowFacts) {
	if !l.linked || event.vars == "" {
		return
	}
	var want string
	of := "row"
	switch {
	case h.source != nil:
		want = h.source.hash
	case h.made != nil && h.made.hash != "":
		want, of = h.made.hash, "result"
	default:
		return
	}
	if event.vars != want {
		l.violate(violationLink, h.Seq,
			"the row event of row %d has the variables' hash %s, its %s %s", h.Seq, event.vars, of,
			cmp.Or(want, "none"))
	}
}

func originText(stream, seq string) string {
	if stream == "" && seq == "" {
		return "none"
	}
	return cmp.Or(seq, "none") + " of stream " + cmp.Or(stream, "none")
}
