package app

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
)

// secretBytesMax bounds a secret's file: larger than any key, smaller than a file that was named by mistake.
const secretBytesMax = 64 << 10

// Secret is a password or key, given as a value or as the path of a file that holds it. However it is printed, logged
// or marshalled, it says only whether it is set. The zero Secret is not set. Safe for concurrent use.
type Secret struct {
	value string
	path  string
}

// SecretFile returns the secret that the file at path holds. The file is read by [Secret.Value].
func SecretFile(path string) Secret { return Secret{path: path} }

// EnvDecode takes the secret itself, without the newline at its end that a file has left there.
func (s *Secret) EnvDecode(text string) error {
	*s = Secret{value: strings.TrimRight(text, "\r\n")}
	return nil
}

// IsSet says whether there is a secret, without reading its file.
func (s Secret) IsSet() bool { return s.value != "" || s.path != "" }

// Value returns the secret, "" when it is not set. A secret in a file is read anew at each call, without the newline
// at its end, so that a rotated key is found: keep the value for the calls, ask again on SIGHUP and before a probe.
// The error names the file.
func (s Secret) Value() (string, error) {
	if s.path == "" {
		return s.value, nil
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
		return "", fmt.Errorf("%s: larger than %s, not a secret", s.path, Size(secretBytesMax))
	}
	text = bytes.TrimRight(text, "\r\n")
	if len(text) == 0 {
		return "", errors.New(s.path + ": the file is empty")
	}
	return string(text), nil
}

// String says whether the secret is set.
func (s Secret) String() string {
	if s.IsSet() {
		return "(set)"
	}
	return "(not set)"
}

// GoString says what String says, so that %#v does not print the fields.
func (s Secret) GoString() string { return s.String() }

// LogValue says what String says.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText says what String says, to encoding/json and others.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
