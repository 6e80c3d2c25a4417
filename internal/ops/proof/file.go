package proof

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// FileFormat is what a proof file says of itself.
const FileFormat = "llm-stage proof 1"

// File is what proves the result of one row, without the streams: the message with its
// audit, and the records of the messages behind it up to a root.
type File struct {
	Format    string `json:"format"`
	Stage     string `json:"stage"`
	Partition int    `json:"partition"`
	Row       uint64 `json:"row"`
	// Previous is the value of the chain before the message. It is zero if the message is
	// the first.
	Previous Hash    `json:"previous"`
	Message  Message `json:"message"`
	// RowEvent is null where the audit no longer has it, and Calls where it lacks one.
	RowEvent *Event  `json:"row_event"`
	Calls    []Calls `json:"calls"`
	// Steps are the records of the messages behind the result, in the order of the log. The
	// last record is the one of the root.
	Steps []Record `json:"steps"`
	// Root is where the steps lead. They prove its chain alone. Its place is part of no
	// hash, and its row is in the head of a message of which there is only the hash. So a
	// root that was kept elsewhere has to show that neither was altered.
	Root Root `json:"root"`
}

// Message is a result as it is stored. If the message names an object, Body has the bytes
// of the object.
type Message struct {
	Headers map[string][]string `json:"headers"`
	Body    []byte              `json:"body"`
}

// Event is an event of the audit as it was recorded. If the event is stored shorter, only
// the hash of the whole event is left.
type Event struct {
	Data     []byte `json:"data,omitempty"`
	Recorded *Hash  `json:"recorded,omitempty"`
}

func (e *Event) hash() (Hash, error) {
	switch {
	case e.Recorded == nil:
		return HashOf(e.Data), nil
	case len(e.Data) > 0:
		return Hash{}, errors.New("an event has both its bytes and the hash that takes their place")
	}
	return *e.Recorded, nil
}

// isFor reports whether a call may have been for an element. A call with only its hash
// left may have been for any.
func (e *Event) isFor(item int) bool {
	var call struct {
		Item  *int  `json:"item"`
		Items []int `json:"items"`
	}
	if e.Recorded != nil {
		return true
	}
	err := json.Unmarshal(e.Data, &call)
	return err == nil && (call.Item != nil && *call.Item == item || slices.Contains(call.Items, item))
}

// Calls are the calls for a row, or for one element of a row that fans out, in the order in
// which they were made.
type Calls struct {
	Item   *int    `json:"item,omitempty"`
	Events []Event `json:"events"`
}

// Checked says what a proof file proves.
type Checked struct {
	File   *File
	Proven []string // each a sentence
	// Lacks says what the file cannot prove, for example because events had expired.
	Lacks []string
	// Kept says that the root is among the roots that were given.
	Kept bool
}

// rowFacts are the members of a row event that a check compares.
type rowFacts struct {
	Event      string `json:"event"`
	StateID    string `json:"state_id"`
	Owner      string `json:"owner"`
	Sequence   uint64 `json:"sequence"`
	Status     string `json:"status"`
	Attempts   int    `json:"attempts"`
	Capacity   int    `json:"capacity_retries"`
	ResultHash string `json:"result_hash"`
	CallsHash  string `json:"calls_hash"`
}

// CheckFile checks a proof file: that all its parts belong together, and lead to its root.
// With roots, the file's root must be among them. Without roots (nil) the place and the row
// of the file's root are not checked. An error says what does not fit.
func CheckFile(text []byte, roots []Root) (*Checked, error) {
	f, err := readFile(text)
	if err != nil {
		return nil, err
	}
	c := &Checked{File: f}
	for _, check := range []func() error{
		c.message, c.rowEvent, c.steps, func() error { return c.root(roots) },
	} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func readFile(text []byte) (*File, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	f := new(File)
	if err := d.Decode(f); err != nil {
		return nil, fmt.Errorf("it is no proof of stage prove: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the proof")
	}
	if err := checkNames(json.NewDecoder(bytes.NewReader(text)), ""); err != nil {
		return nil, err
	}
	if f.Format != FileFormat {
		return nil, fmt.Errorf("its format is %q, not %q", f.Format, FileFormat)
	}
	return f, nil
}

// checkNames checks that each object of the JSON value that comes next has each name once,
// and as this package writes it. The decoder takes names in any case, and the last of
// several, so people could see another message in the file than the one that was checked.
// Names of headers are not checked, since anybody may choose them. of is the name of the
// member that has the value.
func checkNames(d *json.Decoder, of string) error {
	token, err := d.Token()
	if err != nil {
		return err
	}
	open, nested := token.(json.Delim)
	if !nested {
		return nil
	}
	names := make(map[string]bool)
	for d.More() {
		member := ""
		if open == '{' {
			if token, err = d.Token(); err != nil {
				return err
			}
			member, _ = token.(string)
			if names[member] || of != "headers" && strings.Trim(member, "abcdefghijklmnopqrstuvwxyz_") != "" {
				return fmt.Errorf("it has the member %q twice, or not in lower case", member)
			}
			names[member] = true
		}
		if err := checkNames(d, member); err != nil {
			return err
		}
	}
	_, err = d.Token() // the end
	return err
}

func (f *File) header(name string) string {
	if values := f.Message.Headers[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// message checks that the message is the row's result, and that its value of the chain
// follows from its own bytes and from the value before it.
func (c *Checked) message() error {
	f := c.File
	id := f.Stage + "/" + f.header("Stage-Source-Stream") + "/" + strconv.Itoa(f.Partition) + "/" + strconv.FormatUint(f.Row, 10)
	if f.header("Stage-Source-Seq") != strconv.FormatUint(f.Row, 10) || f.header("Stage-State-Id") != id {
		return fmt.Errorf("the message is of %s, and the proof of %s", f.header("Stage-State-Id"), id)
	}
	for name, values := range f.Message.Headers {
		if strings.HasPrefix(name, "Nats-") || strings.ContainsAny(name, ":\n") || slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, "\n") }) {
			return fmt.Errorf("%q is no header that counts", name)
		}
	}
	body := HashOf(f.Message.Body)
	if digest := f.header(headerObjectDigest); digest != "" && digest != "SHA-256="+base64.URLEncoding.EncodeToString(body[:]) {
		return errors.New("the body is not that of the object that the message names")
	}
	value, ok, err := ChainOf(f.Message.Headers)
	if err != nil || !ok {
		return fmt.Errorf("the message has no %s", HeaderChain)
	}
	if f.Previous.Next(RecordOf(Result, f.Message.Headers, f.Message.Body)) != value {
		return fmt.Errorf("the message does not follow from the value before it (previous) and its own bytes: one of them was changed")
	}
	c.Proven = append(c.Proven, fmt.Sprintf("the result of row %d, %s, with %d bytes and all its headers, was stored by %s", f.Row, f.header("Stage-Status"), len(f.Message.Body), f.header("Stage-Owner")))
	return nil
}

// rowEvent checks that the row event is the one that the message names, and the calls are
// those that it counts.
func (c *Checked) rowEvent() error {
	f := c.File
	if f.RowEvent == nil {
		if len(f.Calls) > 0 {
			return errors.New("there are calls without a row event")
		}
		c.Lacks = append(c.Lacks, "the row's event and its calls")
		return nil
	}
	hash, err := f.RowEvent.hash()
	if err != nil {
		return err
	}
	if EventName(hash) != f.header(HeaderEvent) {
		return fmt.Errorf("the row event is not the one that the message names (%s): one of them was changed", HeaderEvent)
	}
	if f.RowEvent.Recorded != nil {
		if len(f.Calls) > 0 {
			return errors.New("there are calls, and the row event that counts them is only a hash")
		}
		c.Lacks = append(c.Lacks, "the text of the row's event, which was cut, and its calls")
		return nil
	}
	var e rowFacts
	if err := json.Unmarshal(f.RowEvent.Data, &e); err != nil {
		return fmt.Errorf("the row event is no JSON: %w", err)
	}
	body := HashOf(f.Message.Body)
	if e.Event != "row" || e.Sequence != f.Row || e.StateID != f.header("Stage-State-Id") || e.Owner != f.header("Stage-Owner") || e.Status != f.header("Stage-Status") ||
		e.ResultHash != "" && e.ResultHash != body.String() {
		return errors.New("the row event is about another result")
	}
	c.Proven = append(c.Proven, "its event in the audit")
	return c.calls(&e)
}

func (c *Checked) calls(e *rowFacts) error {
	f := c.File
	n, bare := 0, 0
	var all Hash
	last := -1
	for _, of := range f.Calls {
		var hash Hash
		for i := range of.Events {
			event, err := of.Events[i].hash()
			if err != nil {
				return err
			}
			if of.Item != nil && !of.Events[i].isFor(*of.Item) {
				return fmt.Errorf("a call is not for element %d, as the proof says", *of.Item)
			}
			hash = hash.Calls(event)
			n++
			if of.Events[i].Recorded != nil {
				bare++
			}
		}
		switch {
		case of.Item != nil && *of.Item > last:
			last = *of.Item
			all = all.Calls(hash)
		case of.Item == nil && len(f.Calls) == 1:
			all = hash
		default:
			return errors.New("the calls are not in the order of the elements that they were for")
		}
	}
	switch {
	case e.CallsHash == "" && n == 0:
	case n == 0 && f.Calls == nil:
		c.Lacks = append(c.Lacks, "the calls for the row")
	case e.CallsHash == "":
		return errors.New("there are calls, and the row event names none")
	case all.String() != e.CallsHash || n != e.Attempts+e.Capacity:
		return fmt.Errorf("the %d calls are not the %d that the row event counts (calls_hash): one of them was changed, or is missing", n, e.Attempts+e.Capacity)
	default:
		c.Proven = append(c.Proven, fmt.Sprintf("the %d calls that it took, with request and reply as they were recorded", n))
		if bare > 0 {
			c.Lacks = append(c.Lacks, fmt.Sprintf("the text of %d of the calls, of which it has only the hash", bare))
		}
	}
	return nil
}

// steps checks that the messages behind lead to the root.
func (c *Checked) steps() error {
	f := c.File
	value, _, _ := ChainOf(f.Message.Headers) // message has read it
	for _, r := range f.Steps {
		value = value.Next(r)
	}
	switch {
	case value != f.Root.Chain:
		return fmt.Errorf("the %d messages behind it do not lead to the root: one of them, or the root, was changed", len(f.Steps))
	case f.Root.Partition != f.Partition:
		return fmt.Errorf("the root is of partition %d, and the result of partition %d", f.Root.Partition, f.Partition)
	case len(f.Steps) == 0 && f.Root.Row != f.Row:
		return fmt.Errorf("the root is the result itself, and names row %d, not row %d", f.Root.Row, f.Row)
	}
	c.Proven = append(c.Proven, fmt.Sprintf("%d messages behind it lead to the root", len(f.Steps)))
	return nil
}

func (c *Checked) root(roots []Root) error {
	if roots == nil {
		return nil
	}
	if !slices.Contains(roots, c.File.Root) {
		return errors.New("its root is none of those that were given: it was altered, or the proof leads to another one: " +
			"make it with stage prove --root FILE and the same file")
	}
	c.Kept = true
	return nil
}

// Lines say what the file proves and what it can't prove, for people.
func (c *Checked) Lines() (lines []string) {
	for _, text := range c.Proven {
		lines = append(lines, "proven: "+text)
	}
	for _, text := range c.Lacks {
		lines = append(lines, "not in the proof: "+text)
	}
	lines = append(lines, c.File.Root.String())
	if c.Kept {
		return append(lines, "proven: the root is one of those given")
	}
	return append(lines,
		"not proven: position and row of the root, which no hash in the proof covers: they may have been altered",
		"the root proves nothing by itself: compare it with one that was kept elsewhere, or give that with --root")
}
