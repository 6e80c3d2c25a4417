package config

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// HostNames is a list of host names without ports. *.example.com is all names below example.com, a lone * every name.
type HostNames []string

// hostName is one name of the list, after normalizeHost.
var hostName = regexp.MustCompile(`^(\*|(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?)$`)

// EnvDecode reads names that are separated by commas.
func (h *HostNames) EnvDecode(text string) error {
	var names HostNames
	for _, part := range splitList(text) {
		name := NormalizeHost(part)
		_, addrErr := netip.ParseAddr(name)
		_, _, portErr := net.SplitHostPort(part)
		switch {
		case part == "":
			continue
		case addrErr != nil && !hostName.MatchString(name) || portErr == nil, name == "*" && part != name: // "*."
			return fmt.Errorf("%q is not a host name: write names without scheme and port, as stage.example.com or *.example.com", part)
		}
		names = append(names, name)
	}
	*h = names
	return nil
}

// String writes the names as EnvDecode reads them.
func (h HostNames) String() string { return strings.Join(h, ",") }

// Has reports whether the list names the host, which must be as [NormalizeHost] returns it.
func (h HostNames) Has(host string) bool {
	return slices.ContainsFunc(h, func(name string) bool {
		if below, ok := strings.CutPrefix(name, "*"); ok {
			return len(host) > len(below) && strings.HasSuffix(host, below)
		}
		return name == host
	})
}

// NormalizeHost returns a Host header, or a name, in lower case without port, brackets and final dot; an address in its
// shortest form.
func NormalizeHost(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if len(host) > 1 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().String()
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
