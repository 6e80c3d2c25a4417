package redact

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
)

// secretBytesMax bounds a secret's file: larger than any key, smaller than a file that
// was named by mistake.
const secretBytesMax = 64 << 10

// Secret is a password or key, given as a value or as the path of a file that holds it.
// However it is printed, logged or marshalled, also as a field of something else, it
// shows only whether it is set. The zero Secret is not set. It is safe for concurrent use.
type Secret struct {
	// value is a pointer: in an unexported field of another struct, package fmt calls no
	// method and prints what it finds, which is the address.
	value *string
	path  string
}

// NewSecret returns the secret itself as a Secret. It is not set if value is empty.
func NewSecret(value string) Secret {
	if value == "" {
		return Secret{}
	}
	return Secret{value: &value}
}

// SecretFile returns the secret that the file at path holds. The file is read by
// [Secret.Value].
func SecretFile(path string) Secret { return Secret{path: path} }

// EnvDecode takes the secret itself, without the newline at its end that a file has left
// there.
func (s *Secret) EnvDecode(text string) error {
	*s = NewSecret(strings.TrimRight(text, "\r\n"))
	return nil
}

// IsSet reports whether there is a secret, without reading its file.
func (s Secret) IsSet() bool { return s.value != nil || s.path != "" }

// InFile reports whether the secret is read from a file, which may change.
func (s Secret) InFile() bool { return s.path != "" }

// Value returns the secret, or "" if it is not set. A secret in a file is read again by
// each call of Value, without the newline at its end, so that a rotated key is found. A
// caller keeps the value for its requests, and reads it again on SIGHUP and before a
// probe. The error names the file.
func (s Secret) Value() (string, error) {
	if s.value != nil {
		return *s.value, nil
	}
	if s.path == "" {
		return "", nil
	}
	f, err := os.Open(s.path)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // read only
	text, err := io.ReadAll(io.LimitReader(f, secretBytesMax+1))
	if err != nil {
		return "", err
	}
	if len(text) > secretBytesMax {
		return "", fmt.Errorf("%s: larger than %d bytes, not a secret", s.path, secretBytesMax)
	}
	text = bytes.TrimRight(text, "\r\n")
	if len(text) == 0 {
		return "", errors.New(s.path + ": the file is empty")
	}
	return string(text), nil
}

// String reports whether the secret is set.
func (s Secret) String() string {
	if s.IsSet() {
		return "(set)"
	}
	return "(not set)"
}

// Format implements [fmt.Formatter]: it writes what String returns, for every verb.
func (s Secret) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, s.String()) // f keeps the error
}

// LogValue returns what String returns.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText returns what String returns, to encoding/json and others.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
