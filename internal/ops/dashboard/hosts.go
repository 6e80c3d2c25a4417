package dashboard

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"

	"github.com/llm-stage/stage/internal/config"
)

// hostCheck decides by its Host header whether a request is answered.
//
// The dashboard has no login: anyone who reaches the port may read it. A browser inside
// the network reaches it, and runs the scripts of any site. They cannot read what another
// origin serves, unless the site makes its own name resolve to the stage's address after
// its page was loaded (DNS rebinding): then the stage is the page's own origin. Such a
// request still has the site's name in its Host header, so only known names are answered.
// An IP address is safe, since it is not resolved.
type hostCheck struct {
	// loopback says that the server listens on loopback. Then the addresses of other
	// machines are refused, and every path is checked.
	loopback bool
	names    config.HostNames // allowed besides localhost and addresses
}

// newHostCheck returns the check of a server that listens on addr, with the names that
// the settings allow. own is the name of this machine, or empty.
func newHostCheck(addr net.Addr, http config.HTTPConfig, own string) hostCheck {
	c := hostCheck{loopback: isLoopback(addr), names: append(config.HostNames{"localhost"}, http.Hosts...)}
	if len(http.Hosts) == 0 && !c.loopback {
		c.names = append(c.names, config.NormalizeHost(own))
	}
	if host, _, err := net.SplitHostPort(http.Addr); err == nil {
		c.names = append(c.names, config.NormalizeHost(host))
	}
	return c
}

// allows reports whether a request with this Host header is answered.
func (c hostCheck) allows(header string) bool {
	host := config.NormalizeHost(header)
	if ip, err := netip.ParseAddr(host); err == nil && (ip.IsLoopback() || !c.loopback) {
		return true
	}
	return host != "" && c.names.Has(host)
}

// guard answers 421 to requests that the check refuses. If other machines may connect,
// health and metrics are open: probes and scrapes use any name that finds the pod, and
// the responses contain nothing of a row, see serveReady.
func (c hostCheck) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		open := !c.loopback && slices.Contains([]string{"/healthz", "/readyz", "/metrics"}, r.URL.Path)
		switch {
		case open || c.allows(r.Host):
			next.ServeHTTP(w, r)
		case c.loopback:
			writePlain(w, http.StatusMisdirectedRequest, fmt.Sprintf("this server answers requests for localhost only, and this one is for %.260q; "+
				"STAGE_HTTP_HOSTS allows further names, STAGE_HTTP_ADDR opens it to other machines", r.Host))
		default:
			writePlain(w, http.StatusMisdirectedRequest, fmt.Sprintf("this server is not known as %.260q; add the name to STAGE_HTTP_HOSTS "+
				"(http.hosts of the Helm chart), or use localhost or an IP address", r.Host))
		}
	})
}

// isLoopback reports whether a listener accepts connections of this machine only.
func isLoopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
