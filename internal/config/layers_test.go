package config

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// contexts writes contexts of the nats CLI and returns the directory for XDG_CONFIG_HOME.
func contexts(t *testing.T, selected string, byName map[string]string) string {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "nats", "context")
	must(t, os.MkdirAll(dir, 0o700))
	byPath := map[string]string{filepath.Join(root, "nats", "context.txt"): selected}
	for name, text := range byName {
		byPath[filepath.Join(dir, name+".json")] = text
	}
	for path, text := range byPath {
		must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return root
}

func TestEachSourceHidesThoseBelowIt(t *testing.T) {
	file := func(path string, values map[string]string) EnvFile { return EnvFile{Path: path, Values: values} }
	flags := map[string]string{"STAGE_NAME": "flag"}
	environ := map[string]string{"STAGE_NAME": "environ", "STAGE_TEMPLATE_FILE": ""}
	files := []EnvFile{file("a.env", map[string]string{"STAGE_NAME": "a", "STAGE_TEMPLATE": "x"}), file("b.env", map[string]string{"STAGE_NAME": "b"})}
	defaults := map[string]string{"STAGE_NAME": "own"}
	for _, tt := range []struct {
		source Source
		name   string
		from   origin
	}{
		{Source{Flags: flags, Environ: environ, EnvFiles: files, Defaults: defaults}, "flag", fromFlag},
		{Source{Environ: environ, EnvFiles: files, Defaults: defaults}, "environ", fromEnviron},
		{Source{EnvFiles: files, Defaults: defaults}, "b", "b.env"},
		{Source{EnvFiles: files[:1], Defaults: defaults}, "a", "a.env"},
		{Source{Environ: map[string]string{"STAGE_NAME": ""}, EnvFiles: files[:1]}, "a", "a.env"},
		{Source{Defaults: defaults}, "own", fromDefault},
		{Source{Flags: map[string]string{"STAGE_NAME": ""}, Environ: environ, EnvFiles: files, Defaults: defaults}, "own", fromFlag},
		{Source{}, "stage", fromDefault},
	} {
		c, err := tt.source.Load(t.Context(), NeedNothing)
		if err != nil || c.Name != tt.name || c.from.origins["STAGE_NAME"] != tt.from {
			t.Errorf("%+v: %v, want %q from %q", tt.source, err, tt.name, tt.from)
		}
	}
	// The other way to set the same thing hides it too, and a file may set what other programs read.
	dir := t.TempDir()
	prompt := filepath.Join(dir, "prompt")
	must(t, os.WriteFile(prompt, []byte("y"), 0o600))
	c, err := Source{Environ: map[string]string{"STAGE_TEMPLATE_FILE": prompt}, EnvFiles: files}.Load(t.Context(), NeedPrompt)
	if err != nil || c.Prompt.Template != "" || c.Prompt.TemplateFile != prompt {
		t.Errorf("got %+v, %v", c, err)
	}
	bad := file("bad.env", map[string]string{"STAGE_POOL_SIZ": "1", "STAGE_WINDOW": "0", "OTHER": "x", "STAGE_LLM_API_KEY": "sk-secret of bad.env"})
	bad.lines = map[string]int{"STAGE_POOL_SIZ": 2, "STAGE_WINDOW": 7, "STAGE_LLM_API_KEY": 9}
	_, err = Source{EnvFiles: []EnvFile{bad}}.Load(t.Context(), NeedNothing)
	for _, want := range []string{
		"STAGE_POOL_SIZ (bad.env line 2): unknown variable, did you mean STAGE_POOL_SIZE?", "STAGE_WINDOW (bad.env line 7): 0 is too small: give 1 or more",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestConnectionComesFromWhereTheNATSCLIHasIt(t *testing.T) {
	home := contexts(t, "prod\n", map[string]string{
		"prod": `{"url":"nats://prod","user":"u","password":"p-of-prod","inbox_prefix":"_INBOX_u","tls_first":true}`,
		"bare": `{"description":"no server","nkey":""}`,
	})
	const login = "user=u password"
	for _, tt := range []struct {
		name    string
		flags   map[string]string
		environ map[string]string
		file    map[string]string
		context string
		url     string
		login   string
		from    string
	}{
		{"selected", nil, nil, nil, "", "nats://prod", login, "context prod"},
		{"named", nil, nil, nil, "bare", "nats://127.0.0.1:4222", "", "context bare"},
		{"by variable", nil, map[string]string{"NATS_CONTEXT": "bare"}, nil, "", "nats://127.0.0.1:4222", "", "context bare"},
		{"by a file's variable", nil, nil, map[string]string{"NATS_CONTEXT": "bare"}, "", "nats://127.0.0.1:4222", "", "context bare"},
		{"named, with a server", map[string]string{"STAGE_NATS_URL": "other"}, nil, nil, "prod", "nats://other", login, "STAGE_NATS_URL"},
		{"named, above the environment", nil, map[string]string{"STAGE_NATS_URL": "other", "STAGE_NATS_TOKEN": "t"}, nil, "prod", "nats://prod", login, "context prod"},
		{"environment", nil, map[string]string{"STAGE_NATS_URL": "other"}, nil, "", "nats://other", "", "STAGE_NATS_URL"},
		{"environment, and a context by variable", nil, map[string]string{"STAGE_NATS_URL": "other", "NATS_CONTEXT": "prod"}, nil, "", "nats://other", login, "STAGE_NATS_URL"},
		{"a login is not mixed", nil, map[string]string{"STAGE_NATS_TOKEN": "t", "NATS_CONTEXT": "prod"}, nil, "", "nats://prod", "token", "context prod"},
		{"file", nil, nil, map[string]string{"STAGE_NATS_URL": "other"}, "", "nats://other", "", "STAGE_NATS_URL"},
		{"the CLI's variable", nil, map[string]string{"NATS_URL": "cli", "NATS_TOKEN": "t"}, nil, "", "nats://cli", "token", "NATS_URL"},
		{"its user without a password is a token", nil, map[string]string{"NATS_URL": "cli", "NATS_USER": "t"}, nil, "", "nats://cli", "token", "NATS_URL"},
		{"a file above it", nil, map[string]string{"NATS_URL": "cli"}, map[string]string{"STAGE_NATS_URL": "other"}, "", "nats://other", "", "STAGE_NATS_URL"},
		{"its login is not mixed", nil, map[string]string{"NATS_URL": "cli", "NATS_TOKEN": "t", "STAGE_NATS_USER": "u", "STAGE_NATS_PASSWORD": "p"}, nil, "", "nats://cli", login, "NATS_URL"},
		{"store by flag", map[string]string{"STAGE_DATA_DIR": "d"}, map[string]string{"NATS_URL": "cli", "STAGE_NATS_URL": "other", "STAGE_NATS_TOKEN": "t"}, nil, "", "", "", "STAGE_NATS_URL"},
		{"store by variable", nil, map[string]string{"STAGE_DATA_DIR": "d"}, nil, "", "", "", "STAGE_NATS_URL"},
		{"store by variable beside a server", nil, map[string]string{"STAGE_DATA_DIR": "d", "STAGE_NATS_URL": "other"}, nil, "", "nats://other", "", "STAGE_NATS_URL"},
		{"a login of the CLI without a server", nil, map[string]string{"STAGE_DATA_DIR": "d", "NATS_TOKEN": "t"}, nil, "", "", "", "STAGE_NATS_URL"},
		{"embedded by an empty flag", map[string]string{"STAGE_NATS_URL": ""}, map[string]string{"NATS_URL": "cli", "STAGE_NATS_TOKEN": "t"}, nil, "", "", "", "STAGE_NATS_URL"},
	} {
		environ := map[string]string{"XDG_CONFIG_HOME": home}
		maps.Copy(environ, tt.environ)
		s := Source{Flags: tt.flags, Environ: environ, External: true, Context: tt.context}
		if tt.file != nil {
			s.EnvFiles = []EnvFile{{Path: "x.env", Values: tt.file}}
		}
		c, err := s.Load(t.Context(), NeedNothing)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		var login []string
		if c.NATS.User != "" {
			login = append(login, "user="+c.NATS.User)
		}
		if c.NATS.Password.IsSet() {
			login = append(login, "password")
		}
		if c.NATS.Token.IsSet() {
			login = append(login, "token")
		}
		if got := strings.Join(login, " "); c.NATS.URL.String() != tt.url || got != tt.login || c.NATSFrom() != tt.from {
			t.Errorf("%s: got %s by %q from %s, want %s by %q from %s", tt.name, c.NATS.URL, got, c.NATSFrom(), tt.url, tt.login, tt.from)
		}
		s.External = false // process
		if c, err := s.Load(t.Context(), NeedNothing); err == nil && (c.NATSContext() != nil || c.NATS.User == "u" && tt.environ["STAGE_NATS_USER"] == "") {
			t.Errorf("%s: a command that connects to nothing reads a context", tt.name)
		}
	}
}

func TestJetStreamIsWhereTheStrongestSourceSays(t *testing.T) {
	home := contexts(t, "", map[string]string{
		"domain": `{"url":"nats://a","jetstream_domain":"hub"}`, "prefix": `{"url":"nats://a","jetstream_api_prefix":"JS.hub.API"}`,
		"dot": `{"url":"nats://a","jetstream_api_prefix":"JS.hub.API."}`, "own": `{"url":"nats://a","jetstream_domain":"","jetstream_api_prefix":"$JS.API"}`,
		"none": `{"url":"nats://a"}`, "both": `{"url":"nats://a","jetstream_domain":"hub","jetstream_api_prefix":"JS.hub.API"}`,
	})
	for _, tt := range []struct {
		context, byFlag string
		environ, flags  map[string]string
		prefix, wrong   string
	}{
		{byFlag: "none"},
		{byFlag: "domain", prefix: "$JS.hub.API."},
		{byFlag: "prefix", prefix: "JS.hub.API"},
		{byFlag: "dot", prefix: "JS.hub.API."},
		{byFlag: "own", prefix: "$JS.API"},
		{context: "domain", prefix: "$JS.hub.API."},
		{byFlag: "both", wrong: "STAGE_NATS_JS_PREFIX (context both): set together with STAGE_NATS_JS_DOMAIN"},
		// A context by flag is above the environment, one by variable below it; no two sources are combined.
		{byFlag: "none", environ: map[string]string{"STAGE_NATS_JS_DOMAIN": "edge"}},
		{context: "prefix", environ: map[string]string{"STAGE_NATS_JS_DOMAIN": "edge"}, prefix: "$JS.edge.API."},
		{context: "domain", environ: map[string]string{"STAGE_NATS_JS_PREFIX": "JS.edge.API"}, prefix: "JS.edge.API"},
		{byFlag: "domain", flags: map[string]string{"STAGE_NATS_JS_DOMAIN": ""}},
		{byFlag: "domain", flags: map[string]string{"STAGE_NATS_JS_DOMAIN": "edge"}, prefix: "$JS.edge.API."},
		{byFlag: "prefix", flags: map[string]string{"STAGE_NATS_JS_DOMAIN": "edge"}, prefix: "$JS.edge.API."},
		{flags: map[string]string{"STAGE_DATA_DIR": "d"}, environ: map[string]string{"STAGE_NATS_URL": "a", "STAGE_NATS_JS_DOMAIN": "edge"}},
	} {
		environ := map[string]string{"XDG_CONFIG_HOME": home, "NATS_CONTEXT": tt.context}
		maps.Copy(environ, tt.environ)
		c, err := Source{Environ: environ, Flags: tt.flags, External: true, Context: tt.byFlag}.Load(t.Context(), NeedNothing)
		if tt.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("%+v: got %v", tt, err)
			}
			continue
		}
		if err != nil || c.NATS.APIPrefix() != tt.prefix {
			t.Errorf("%+v: got %v", tt, err)
		}
	}
}

func TestAContextIsReadAsTheNATSCLIReadsIt(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"u.creds", "ca.pem"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
	}
	home := contexts(t, "", map[string]string{
		"all": `{"name":"n","description":"d","color_scheme":"red","url":"nats://a,nats://b","token":"t","user":"","password":"left","creds":"~/u.creds",` +
			`"nkey":"/k","cert":"","key":"","ca":"file://$DIR/ca.pem","socks_proxy":"socks://x","jetstream_domain":"hub","jetstream_api_prefix":"","jetstream_event_prefix":"e","user_jwt":"","nsc":"","windows_ca_certs_match":null,"inbox_prefix":"_I.x","tls_first":false}`,
		"array": `[]`, "null": `null`, "number": `{"url":7}`, "op": `{"password":"op://vault/x","user":"u"}`, "nsc": `{"nsc":"nsc://a/b/c"}`, "login": `{"url":"nats://a","nsc":"nsc://a/b/c"}`,
		"user": `{"user":"u"}`, "big": `{"url":"` + strings.Repeat("x", contextBytesMax) + `"}`, "url": `{"url":"http://sk-secret"}`,
	})
	environ := map[string]string{"XDG_CONFIG_HOME": home, "HOME": dir, "DIR": dir}
	c, err := Source{Environ: environ, External: true, Context: "all"}.Load(t.Context(), NeedNothing)
	if err != nil {
		t.Fatal(err)
	}
	n := &c.NATS
	if n.URL.String() != "nats://a,nats://b" || n.Creds != filepath.Join(dir, "u.creds") || n.TLSCA != filepath.Join(dir, "ca.pem") ||
		n.NKey != "" || n.Token.IsSet() || n.Password.IsSet() || n.InboxPrefix != "_I.x" || n.TLSFirst || n.JSDomain != "hub" || n.JSPrefix != "" {
		t.Errorf("got %+v", n)
	}
	if want := []string{"jetstream_event_prefix", "nkey", "socks_proxy", "token"}; !slices.Equal(c.NATSContext().Ignored, want) {
		t.Errorf("ignored: got %q, want %q", c.NATSContext().Ignored, want)
	}
	for name, want := range map[string]string{
		"array": "array.json: not a JSON object", "null": "null.json: not a JSON object", "number": "number.json: url: not a text",
		"op": "op.json: password: op:// is not supported: name a file", "nsc": "nsc.json: nsc is not supported: give url and creds",
		"login": "login.json: nsc is not supported: give url and creds",
		"user":  "STAGE_NATS_USER (context user): a user without a password", "big": "big.json: not a JSON object", "al": "did you mean all?",
		"..": "is not a name", "a/b": "is not a name", "url": `STAGE_NATS_URL (context url): scheme "http" is not one of`, "no.json": "does not exist",
	} {
		_, err := Source{Environ: environ, External: true, Context: name}.Load(t.Context(), NeedNothing)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "sk-secret") {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
	}
	if _, err := (Source{External: true, Context: "all"}).Load(t.Context(), NeedNothing); err == nil || !strings.Contains(err.Error(), "there is no home directory") {
		t.Errorf("without a home: %v", err)
	}
	c.UseStore("d")
	if c.Data.Dir != "d" || len(c.NATS.URL) > 0 || c.NATSContext() != nil {
		t.Errorf("a store by name: got %+v", c.NATS)
	}
}
