package llm

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/jsonbytes"
)

// MediaKind is what a part of a message is, beside text.
type MediaKind string

// The kinds, as prompts call them.
const (
	KindImage MediaKind = "image"
	KindFile  MediaKind = "file" // a document
	KindAudio MediaKind = "audio"
)

// Media is a picture, a document or a sound in a message.
//
// What is sent is either an address, which the provider fetches itself, or the content. The
// content is not in memory while the request waits. It is known by its digest, and opened
// when the request is sent.
type Media struct {
	Kind MediaKind
	// Name is the name of a file. It is empty where there is none.
	Name string
	// Detail is how closely the model should look at an image: "low", "high", "auto" or
	// "original". Only OpenAI's formats have a place for it. It is empty where nothing was
	// said.
	Detail string
	// Source is where the content is, as the prompt says it: an https:, gs: or data: URL, or
	// an address that the program around the client understands. An https: or gs: URL is
	// sent as it is, and never fetched.
	Source string
	// Content is the content, and nil for an https: or gs: URL. [DataURL] makes it of a
	// data: URL.
	*Content
}

// CheckDetail reports that a text is no [Media.Detail].
func CheckDetail(text string) error {
	switch text {
	case "", "low", "high", "auto", "original":
		return nil
	}
	return fmt.Errorf("the detail %.40q is unknown: there are low, high, auto and original", text)
}

// Content is what is known of the content of media before it is sent. It is read only.
type Content struct {
	// SHA256 is the digest, in lower-case hexadecimal.
	SHA256 string
	// Bytes is the size.
	Bytes int64
	// Shape is what the first bytes say, see [Sniff].
	Shape
	// Open opens the content, from the beginning. It may be called more than once, and
	// from several goroutines. An [*Error] says why the row can't have the content any more,
	// and an [*AwayError] that nobody knows for now.
	Open func(ctx context.Context) (io.ReadCloser, error)
}

// AwayError reports that media can't be read now, through no fault of the row: the store
// that holds them can't be reached.
type AwayError struct {
	// Source is the address of the media.
	Source string
	// Err is what was tried, and how it ended.
	Err error
}

// Error implements error.
func (e *AwayError) Error() string { return excerpt.Of(e.Source) + ": " + e.Err.Error() }

// Unwrap returns Err.
func (e *AwayError) Unwrap() error { return e.Err }

// URL returns the address that the provider fetches, or "" where the content is sent.
func (m *Media) URL() string {
	if m.Content == nil && (strings.HasPrefix(m.Source, "https://") ||
		strings.HasPrefix(m.Source, bucketScheme)) {
		return m.Source
	}
	return ""
}

// bucketScheme begins the address of an object in Google's Cloud Storage.
const bucketScheme = "gs://"

// inBucket reports whether the provider fetches the media from Google's Cloud Storage.
func (m *Media) inBucket() bool {
	return m.Content == nil && strings.HasPrefix(m.Source, bucketScheme)
}

// String describes the media in the place of their content, as in
// "[image: image/png, 4096 bytes, sha256 9f86…]".
func (m *Media) String() string {
	if m.Content == nil {
		return fmt.Sprintf("[%s: %s]", m.Kind, excerpt.Of(m.Source))
	}
	return fmt.Sprintf("[%s: %s, %d bytes, sha256 %s]", m.Kind, m.Type, m.Bytes, m.SHA256)
}

const dataScheme = "data:"

// IsDataURL reports whether a source is a data: URL.
func IsDataURL(source string) bool {
	return len(source) >= len(dataScheme) && strings.EqualFold(source[:len(dataScheme)], dataScheme)
}

// DataURL returns the content of a data: URL, such as "data:image/png;base64,iVBORw0…". The
// type that the URL names does not count. At most limit bytes are allowed after decoding.
func DataURL(source string, limit int64) (*Content, error) {
	head, text, found := strings.Cut(source, ",")
	if !IsDataURL(source) || !found {
		return nil, errors.New(`the data: URL has no comma; write it as "data:image/png;base64,…"`)
	}
	if !strings.HasSuffix(strings.ToLower(head), ";base64") {
		return nil, errors.New(`the data: URL is not in base64; write it as ` +
			`"data:image/png;base64,…"`)
	}
	if strings.ContainsAny(text, " \t\r\n") {
		text = strings.Join(strings.Fields(text), "")
	}
	if size := int64(base64.RawStdEncoding.DecodedLen(len(text))); size > limit+2 {
		// Padding counts for up to 2.
		return nil, ErrTooMuchMedia
	}
	decoded := func() io.ReadCloser {
		return io.NopCloser(base64.NewDecoder(base64.StdEncoding, &paddedReader{text: text}))
	}
	c, err := ReadContent(decoded(), limit)
	if err != nil {
		if _, corrupt := errors.AsType[base64.CorruptInputError](err); corrupt ||
			errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("the data: URL is not valid base64")
		}
		return nil, err
	}
	c.Open = func(context.Context) (io.ReadCloser, error) { return decoded(), nil }
	return c, nil
}

// paddedReader reads base64 in either alphabet, with padding at its end whether it has any
// or not.
type paddedReader struct {
	text string
	at   int
}

// Read implements [io.Reader].
func (r *paddedReader) Read(p []byte) (int, error) {
	end := (len(r.text) + 3) / 4 * 4
	if r.at == end {
		return 0, io.EOF
	}
	n := 0
	if r.at < len(r.text) {
		n = copy(p, r.text[r.at:])
	}
	for i := range p[:n] {
		switch p[i] {
		case '-':
			p[i] = '+'
		case '_':
			p[i] = '/'
		}
	}
	for n < len(p) && r.at+n < end {
		p[n] = '='
		n++
	}
	r.at += n
	return n, nil
}

// ReadContent reads content to its end, closes it, and returns what is known of it, without
// a way to open it again. At most limit bytes are allowed. The bytes are not kept.
func ReadContent(r io.ReadCloser, limit int64) (*Content, error) {
	defer func() { _ = r.Close() }()
	digest := sha256.New()
	head := &headWriter{}
	n, err := io.Copy(io.MultiWriter(digest, head), io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, ErrTooMuchMedia
	}
	shape, err := Sniff(head.bytes, n)
	if err != nil {
		return nil, err
	}
	return &Content{SHA256: hex.EncodeToString(digest.Sum(nil)), Bytes: n, Shape: shape}, nil
}

// ErrTooMuchMedia reports media that are larger than they may be.
var ErrTooMuchMedia = errors.New("the media are too large")

// HeadBytes is how much of the beginning of content [Sniff] looks at.
const HeadBytes = 64 << 10

// headWriter keeps the first bytes that are written.
type headWriter struct{ bytes []byte }

// Write implements [io.Writer].
func (w *headWriter) Write(p []byte) (int, error) {
	w.bytes = append(w.bytes, p[:min(len(p), HeadBytes-len(w.bytes))]...)
	return len(p), nil
}

// placement is where the body of a prepared request has media: the placeholder that stands
// there, and what is sent in its place.
type placement struct {
	at      int // offset in the body
	content *Content
	prefix  string // before the base64, within the JSON string
}

// placements notes where [Wire.AppendRequest] puts media. A nil one notes nothing.
type placements struct{ list []placement }

// appendContent appends the placeholder of content at the place of a JSON string. Requests
// are hashed, kept and shown in this form. When one is sent, the string with the content in
// base64 stands there instead.
func (p *placements) appendContent(dst []byte, c *Content, prefix string) []byte {
	if p != nil {
		p.list = append(p.list, placement{at: len(dst), content: c, prefix: prefix})
	}
	return appendPlaceholder(dst, c)
}

// appendDataURL is appendContent in the form of a data: URL.
func (p *placements) appendDataURL(dst []byte, c *Content) []byte {
	return p.appendContent(dst, c, dataScheme+c.Type+";base64,")
}

// rebase moves the places to a body that an extra body was merged into. The member with the
// messages, which has all media, is the same there: no extra body may set it. What is
// before it may have another length. No text is searched for placeholders, so a row that
// contains one changes nothing.
func (p *placements) rebase(own, merged []byte) {
	if p == nil {
		return
	}
	by := conversationAt(merged) - conversationAt(own)
	for i := range p.list {
		p.list[i].at += by
	}
}

// conversationAt returns where the value of the member with the messages begins. Its name
// is one of three in any wire format.
func conversationAt(body []byte) int {
	for key, value := range jsonbytes.Members(body) {
		switch string(key) {
		case "messages", "input", "contents":
			return cap(body) - cap(value) // value is a slice of body
		}
	}
	return 0
}

// isDescribed reports whether all content of messages is known.
func isDescribed(messages []Message) bool {
	for m := range MediaOf(messages) {
		if m.Content == nil && m.URL() == "" {
			return false
		}
	}
	return true
}

// hasMedia reports whether there are media in messages.
func hasMedia(messages []Message) bool {
	for range MediaOf(messages) {
		return true
	}
	return false
}

func appendPlaceholder(dst []byte, c *Content) []byte {
	dst = append(append(dst, `{"sha256":"`...), c.SHA256...)
	dst = strconv.AppendInt(append(dst, `","bytes":`...), c.Bytes, 10)
	return append(append(append(dst, `,"type":"`...), c.Type...), `"}`...)
}

// placeholderBytes is the size of the placeholder.
func (p *placement) placeholderBytes() int { return len(appendPlaceholder(nil, p.content)) }

// wireBytes is the size of the string that is sent in its place.
func (p *placement) wireBytes() int64 {
	return 2 + int64(len(p.prefix)) + int64(base64.StdEncoding.EncodedLen(int(p.content.Bytes)))
}

// MediaBytes returns how many bytes of memory [Prepared.Load] takes for the media, in
// base64. It is 0 for a request without any.
func (p *Prepared) MediaBytes() (n int64) {
	for i := range p.media {
		n += p.media[i].wireBytes()
	}
	return n
}

// WireBytes returns the size of the body as it is sent.
func (p *Prepared) WireBytes() int64 {
	n := int64(len(p.Body)) + p.MediaBytes()
	for i := range p.media {
		n -= int64(p.media[i].placeholderBytes())
	}
	return n
}

// Load reads the media of a request into memory. It returns the request with these, ready
// to be sent, or p itself if there are none. The error is an [*AwayError], an [*Error] of
// class Permanent with [ReasonInvalidRow] where the content is missing or not what it was
// when the request was prepared, or the cause of the end of ctx.
func (p *Prepared) Load(ctx context.Context) (*Prepared, error) {
	if len(p.media) == 0 || p.wire != nil {
		return p, nil
	}
	loaded := *p
	dst := make([]byte, 0, p.WireBytes())
	from := 0
	for i := range p.media {
		m := &p.media[i]
		dst = append(append(append(dst, p.Body[from:m.at]...), '"'), m.prefix...)
		var err error
		if dst, err = m.content.appendBase64(ctx, dst); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return nil, cause
			}
			return nil, err
		}
		dst = append(dst, '"')
		from = m.at + m.placeholderBytes()
	}
	loaded.wire = append(dst, p.Body[from:]...)
	return &loaded, nil
}

// Sent returns the body as it is sent: Body, or what [Prepared.Load] has made of it.
func (p *Prepared) Sent() []byte {
	if p.wire != nil {
		return p.wire
	}
	return p.Body
}

// appendBase64 appends the content in base64, and checks that it is the same as before.
func (c *Content) appendBase64(ctx context.Context, dst []byte) ([]byte, error) {
	r, err := c.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	digest := sha256.New()
	text := bytes.NewBuffer(dst)
	encoder := base64.NewEncoder(base64.StdEncoding, text)
	n, err := io.Copy(io.MultiWriter(digest, encoder), io.LimitReader(r, c.Bytes+1))
	err = cmp.Or(err, encoder.Close())
	if err != nil {
		return nil, err
	}
	if got := hex.EncodeToString(digest.Sum(nil)); n != c.Bytes || got != c.SHA256 {
		return nil, InvalidMedia(fmt.Errorf("the content of the %s changed after the row was "+
			"read: it had SHA-256 %s", c.Type, c.SHA256))
	}
	return text.Bytes(), nil
}

// InvalidMedia returns the error of a row whose media can't be used.
func InvalidMedia(err error) *Error {
	return &Error{Class: Permanent, Reason: ReasonInvalidRow, Err: err}
}
