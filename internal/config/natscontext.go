package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

// NATSContext is a context of the nats CLI: a named file with the settings of a
// connection.
type NATSContext struct {
	Name     string
	Path     string
	Selected bool     // by nats context select alone: no flag or variable names it
	Ignored  []string // settings in it that the stage has no variable for

	values map[string]string // by variable
}

// contextBytesMax bounds the file of a context.
const contextBytesMax = 1 << 20

// contextFields are the settings of a context for which the stage has variables. Other
// settings are about the connection, too, and are reported as ignored, except for
// contextNotes.
var contextFields = []struct {
	name, variable string
	path           bool // may begin with ~ or file://
}{
	{"url", "STAGE_NATS_URL", false},
	{"user", "STAGE_NATS_USER", false},
	{"password", "STAGE_NATS_PASSWORD", false},
	{"creds", "STAGE_NATS_CREDS", true},
	{"nkey", "STAGE_NATS_NKEY", true},
	{"token", "STAGE_NATS_TOKEN", false},
	{"ca", "STAGE_NATS_TLS_CA", true},
	{"cert", "STAGE_NATS_TLS_CERT", true},
	{"key", "STAGE_NATS_TLS_KEY", true},
	{"inbox_prefix", "STAGE_NATS_INBOX_PREFIX", false},
	{"tls_first", "STAGE_NATS_TLS_FIRST", false},
	{"jetstream_domain", "STAGE_NATS_JS_DOMAIN", false},
	{"jetstream_api_prefix", "STAGE_NATS_JS_PREFIX", false},
}

// contextNotes are settings of a context that are for people.
var contextNotes = []string{"name", "description", "color_scheme"}

// NATSContext returns the context of the nats CLI that the connection is made by, or nil
// if it is made without one.
func (c *Config) NATSContext() *NATSContext { return c.from.context }

// NATSFrom returns what named the server: STAGE_NATS_URL, NATS_URL or a context.
func (c *Config) NATSFrom() string {
	if c.from.server == "" {
		return "STAGE_NATS_URL"
	}
	return c.from.server
}

// APIPrefix returns the prefix of the subjects of the JetStream API. An empty one stands
// for the server's own API.
func (n *NATSConfig) APIPrefix() string {
	if n.JSDomain != "" {
		return streams.DomainPrefix(n.JSDomain)
	}
	return n.JSPrefix
}

// UseStore makes the configuration name the embedded server on dir, for a command that
// was given a store by name.
func (c *Config) UseStore(dir string) {
	c.Data.Dir, c.NATS, c.from.context, c.from.server = dir, NATSConfig{}, nil, ""
}

// layer returns the values of the context as a source. A nil context has none.
func (n *NATSContext) layer() layer {
	if n == nil {
		return layer{}
	}
	name := "context " + n.Name
	return layer{
		from: origin(name), values: n.values, cli: true,
		label: func(string) string { return name },
	}
}

// contextDir returns the directory of the nats CLI's settings, or "" if the environment
// names no home.
func (s Source) contextDir() string {
	if dir := s.Environ["XDG_CONFIG_HOME"]; dir != "" {
		return filepath.Join(dir, "nats")
	}
	if home := s.home(); home != "" {
		return filepath.Join(home, ".config", "nats")
	}
	return ""
}

// home returns the user's directory, or "" if the environment names none.
func (s Source) home() string {
	if home := s.Environ["HOME"]; home != "" {
		return home
	}
	return s.Environ["USERPROFILE"]
}

// selectedContext reads the context that the nats CLI has selected. It returns nil if
// none is.
func (s Source) selectedContext(found *problems) *NATSContext {
	dir := s.contextDir()
	if dir == "" {
		return nil
	}
	path := filepath.Join(dir, "context.txt")
	text, err := os.ReadFile(path)
	name := strings.TrimSpace(string(text))
	if err != nil || name == "" { // as the nats CLI takes a file that it can't read
		return nil
	}
	n := s.readContext(path, name, found)
	if n != nil {
		n.Selected = true
	}
	return n
}

// readContext reads the context of that name, or the file at that path if it ends in
// .json. by is what named it, for problems. The result is nil if it has a problem.
func (s Source) readContext(by, name string, found *problems) *NATSContext {
	n := &NATSContext{Name: name}
	err := s.findContext(n)
	if err == nil {
		err = s.loadContext(n)
	}
	if err != nil {
		remedy := ""
		if by != "--context" && by != "NATS_CONTEXT" {
			remedy = "; to use no context, name a server (--server) or a store (--data-dir)"
		}
		found.add(by, "context %q: %v%s", name, err, remedy)
		return nil
	}
	return n
}

// findContext sets the path of the context's file. A name with a slash or .. is refused:
// the name may come from a variable, and must not lead out of the directory of contexts.
func (s Source) findContext(n *NATSContext) error {
	if strings.HasSuffix(n.Name, ".json") {
		if info, err := os.Stat(n.Name); err == nil && info.Mode().IsRegular() {
			n.Path, n.Name = n.Name, strings.TrimSuffix(filepath.Base(n.Name), ".json")
			return nil
		}
	}
	dir := s.contextDir()
	switch {
	case dir == "":
		return errors.New("there is no home directory to find it in: " +
			"set HOME or XDG_CONFIG_HOME, or give the path of its file")
	case strings.Contains(n.Name, "..") || strings.ContainsAny(n.Name, `/\`):
		return errors.New("is not a name: give one that nats context ls lists, " +
			"or the path of a .json file")
	}
	n.Path = filepath.Join(dir, "context", n.Name+".json")
	if _, err := os.Stat(n.Path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	known := knownContexts(filepath.Join(dir, "context"))
	if near := Nearest(n.Name, known); near != "" {
		return fmt.Errorf("does not exist, did you mean %s?", near)
	}
	if len(known) > 0 {
		return fmt.Errorf("does not exist: choose %s", orList(known))
	}
	return fmt.Errorf("does not exist: there are none in %s", filepath.Join(dir, "context"))
}

// contextsListed bounds the names that a problem lists.
const contextsListed = 20

// knownContexts returns the names of the contexts in a directory, sorted, and at most
// contextsListed of them.
func knownContexts(dir string) (names []string) {
	files, _ := os.ReadDir(dir)
	for _, f := range files {
		if name, ok := strings.CutSuffix(f.Name(), ".json"); ok && !f.IsDir() &&
			len(names) < contextsListed {
			names = append(names, name)
		}
	}
	return names
}

// loadContext reads the settings of the context, and notes those that the stage ignores,
// so that a command can warn of them.
func (s Source) loadContext(n *NATSContext) error {
	f, err := os.Open(n.Path)
	if err != nil {
		return plainPathError(err)
	}
	defer f.Close() //nolint:errcheck // nothing was written
	text, err := io.ReadAll(io.LimitReader(f, contextBytesMax))
	if err != nil {
		return plainPathError(err)
	}
	var fields map[string]json.RawMessage
	// The error may quote the file.
	if err := json.Unmarshal(text, &fields); err != nil || fields == nil {
		return fmt.Errorf("%s: not a JSON object, as nats context writes it", n.Path)
	}

	n.values = make(map[string]string)
	for _, field := range contextFields {
		value, err := s.contextValue(fields[field.name], field.path)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", n.Path, field.name, err)
		}
		n.values[field.variable] = value
		delete(fields, field.name)
	}
	empty := []string{`""`, "null", "false", "[]"}
	for name, value := range fields {
		unset := slices.Contains(empty, string(bytes.TrimSpace(value)))
		if !unset && !slices.Contains(contextNotes, name) {
			n.Ignored = append(n.Ignored, name)
		}
	}

	login := n.chooseLogin()
	slices.Sort(n.Ignored)
	if (n.values["STAGE_NATS_URL"] == "" || !login) && slices.Contains(n.Ignored, "nsc") {
		return fmt.Errorf("%s: nsc is not supported: give url and creds in its place", n.Path)
	}
	if n.values["STAGE_NATS_URL"] == "" {
		n.values["STAGE_NATS_URL"] = nats.DefaultURL
	}
	return nil
}

// chooseLogin leaves one login of several: the nats CLI takes a user before credentials,
// and those before an NKey. It reports whether there is any.
func (n *NATSContext) chooseLogin() (taken bool) {
	if n.values["STAGE_NATS_USER"] == "" {
		n.values["STAGE_NATS_PASSWORD"] = ""
	}
	for _, field := range contextFields {
		switch field.name {
		case "user", "creds", "nkey", "token":
			if n.values[field.variable] == "" {
				continue
			}
			if taken {
				n.values[field.variable] = ""
				n.Ignored = append(n.Ignored, field.name)
			}
			taken = true
		}
	}
	return taken
}

// contextValue returns the text of a setting. A path may begin with ~ and have variables
// such as $HOME, as in the nats CLI. A reference to a secret store such as op:// is an
// error: taken as a text, it would be sent to the server as the password.
func (s Source) contextValue(raw json.RawMessage, path bool) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	var on bool
	if json.Unmarshal(raw, &on) == nil {
		return fmt.Sprint(on), nil
	}
	var text string
	if json.Unmarshal(raw, &text) != nil {
		return "", errors.New("not a text")
	}
	for _, scheme := range []string{"op://", "nsc://", "env://", "data:"} {
		if strings.HasPrefix(text, scheme) {
			return "", fmt.Errorf("%s is not supported: name a file, "+
				"or set the variable of the stage", scheme)
		}
	}
	if !path {
		return text, nil
	}
	text = strings.TrimPrefix(text, "file://")
	if rest, ok := strings.CutPrefix(text, "~"); ok &&
		(rest == "" || rest[0] == '/' || rest[0] == filepath.Separator) {
		text = s.home() + rest
	}
	return os.Expand(text, func(name string) string { return s.Environ[name] }), nil
}
