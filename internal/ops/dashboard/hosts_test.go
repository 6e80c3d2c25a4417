package dashboard

import (
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/config"
)

// TestOnlyKnownHostsAreAnswered sends requests to servers on several addresses under
// several names. A page whose site has its name resolve to the stage (DNS rebinding)
// sends that name. Vite's development server draws the same line: localhost, every IP
// address and a list, where true is any name (vitejs/vite, server.allowedHosts since
// 6.0.9, GHSA-vg6x-rcgg-rjx6).
func TestOnlyKnownHostsAreAnswered(t *testing.T) {
	const machine = "Buildbox" // name of the machine
	everywhere, loopback, one := net.IPv6unspecified, net.IPv4(127, 0, 0, 1), net.IPv4(192, 0, 2, 7)
	for _, tt := range []struct {
		name    string
		ip      net.IP
		cfg     config.HTTPConfig
		allowed []string
		refused []string
	}{
		{
			"all addresses", everywhere,
			config.HTTPConfig{Addr: ":9464"},
			[]string{
				"localhost", "localhost:9464", "LocalHost.", "127.0.0.1:80", "[::1]:9464", "::1", "[::ffff:127.0.0.1]", "192.0.2.1",
				"192.0.2.1:9464", "[2001:db8::1]:9464", "[2001:db8::1]", "buildbox", "BUILDBOX.:9464",
			},
			[]string{
				"evil.example", "evil.example:9464", "localhost.evil.example", "127.0.0.1.evil.example", "evil.localhost", "localhost..",
				"127.0.0.1:9464:1", "buildbox.evil.example", "", ".", ":9464", "127.1", "2130706433", "[::1", "[localhost:9464",
			},
		},
		{
			"a list", everywhere,
			config.HTTPConfig{Addr: "0.0.0.0:9464", Hosts: config.HostNames{"stage.example.com", "*.svc", "2001:db8::1"}},
			[]string{"stage.example.com", "Stage.Example.COM.:443", "a.svc", "b.a.svc:9464", "localhost", "10.0.0.1"},
			[]string{"example.com", "x.stage.example.com", "stage.example.com.evil.example", "svc", ".svc", "evilsvc", "buildbox"},
		},
		{"any", everywhere, config.HTTPConfig{Addr: ":9464", Hosts: config.HostNames{"*"}}, []string{"evil.example", "a"}, []string{""}},
		{
			"loopback", loopback,
			config.HTTPConfig{Addr: "127.0.0.1:9464"},
			[]string{"localhost:9464", "127.0.0.1", "127.0.0.2", "[::1]:9464"},
			[]string{"evil.example", "192.0.2.1:9464", "0.0.0.0:9464", ""},
		},
		{
			"loopback behind a proxy", loopback,
			config.HTTPConfig{Addr: "localhost:9464", Hosts: config.HostNames{"stage.example.com", "192.0.2.1"}},
			[]string{"stage.example.com", "192.0.2.1", "localhost"},
			[]string{"evil.example", "192.0.2.2"},
		},
		{
			"one address by its name", one,
			config.HTTPConfig{Addr: "Rack7.example.com.:9464"},
			[]string{"rack7.example.com:9464", "192.0.2.7:9464", "localhost"},
			[]string{"evil.example"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			check := newHostCheck(&net.TCPAddr{IP: tt.ip, Port: 9464}, tt.cfg, machine)
			if tt.ip.IsLoopback() { // the machine's name is not one of loopback
				tt.refused = append(tt.refused, machine)
			}
			handler := guarded(testHandlers(), check)
			for _, host := range slices.Concat(tt.allowed, tt.refused) {
				allowed := slices.Contains(tt.allowed, host)
				for _, path := range []string{"/", "/dashboard.js", "/api/status", "/api/events", "/api/nothing", "/nothing", "//metrics", "/metrics/"} {
					if w := askHost(t, handler, path, host); (w.Code == http.StatusMisdirectedRequest) == allowed {
						t.Errorf("%s of %q: got %d %.99s", path, host, w.Code, w.Body)
					}
				}
				for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
					open := allowed || !tt.ip.IsLoopback() // a scrape or a probe by whatever name
					w := askHost(t, handler, path, host)
					reason := path == "/readyz" && allowed // which may quote the provider, and so a row
					if (w.Code == http.StatusMisdirectedRequest) == open || strings.Contains(w.Body.String(), "no credit") != reason {
						t.Errorf("%s of %q: got %d %.99s", path, host, w.Code, w.Body)
					}
				}
			}
		})
	}
}

// TestEveryNameIsAllowedByAnAsteriskAlone: half a pattern must not open the dashboard to all.
func TestEveryNameIsAllowedByAnAsteriskAlone(t *testing.T) {
	for text, good := range map[string]bool{
		"*": true, " * ": true, "*,a": true, "*.a": true, "*.a.": true, "*.": false, "a,*.": false, "*..": false, "[*]": false, "**": false, "*a": false, ".": false,
	} {
		if err := new(config.HostNames).EnvDecode(text); (err == nil) != good {
			t.Errorf("STAGE_HTTP_HOSTS=%q: %v, want it taken: %t", text, err, good)
		}
	}
}

func TestRefusalNamesTheHostAndTheSetting(t *testing.T) {
	for loopback, want := range map[bool]string{
		true:  "this server answers requests for localhost only, and this one is for \"evil.example:80\"; STAGE_HTTP_HOSTS allows further names, STAGE_HTTP_ADDR opens it to other machines\n",
		false: "this server is not known as \"evil.example:80\"; add the name to STAGE_HTTP_HOSTS (http.hosts of the Helm chart), or use localhost or an IP address\n",
	} {
		w := askHost(t, guarded(testHandlers(), hostCheck{loopback: loopback}), "/", "evil.example:80")
		if w.Code != http.StatusMisdirectedRequest || w.Body.String() != want || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("loopback %t: got %d %v %s", loopback, w.Code, w.Header(), w.Body)
		}
	}
	if w := askHost(t, guarded(testHandlers(), hostCheck{}), "/", strings.Repeat("x", 10_000)); w.Body.Len() > 500 {
		t.Errorf("a long name: %d bytes", w.Body.Len())
	}
}

func askHost(t *testing.T, handler http.Handler, path, host string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	r.Host = host
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}
