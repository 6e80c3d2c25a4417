package llm

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// connectionRefused is ECONNREFUSED as Windows spells it; no other system has an error of that number.
const connectionRefused = syscall.Errno(10061)

// absent reports whether nothing listens at the server's address, and no call has succeeded yet: the server has not
// been started, or the address is wrong. Later a refused connection is an outage like any other.
func absent(o *Outcome) bool {
	if o.Status != 0 || o.Progress != 0 || o.Known.Proven {
		return false
	}
	return errors.Is(o.Err, syscall.ECONNREFUSED) || errors.Is(o.Err, connectionRefused)
}

// defaultPorts are the ports of URLs that name none.
var defaultPorts = map[string]string{"http": "80", "https": "443"}

// explainAbsent is the text of an attempt for which [absent] holds.
func explainAbsent(o *Outcome) error {
	if proxy, ok := proxyAddress(o.Err); ok {
		return fmt.Errorf("nothing listens at %s: is the proxy started? (%w)", proxy, o.Err)
	}
	return fmt.Errorf("nothing listens at %s: is the server started? (%w)", serverAddress(o), o.Err)
}

// proxyAddress returns the address of the proxy that could not be reached, if it is one.
func proxyAddress(err error) (addr string, ok bool) {
	outer, ok := errors.AsType[*net.OpError](err)
	if !ok || outer.Op != "proxyconnect" {
		return "", false
	}
	if dial, ok := errors.AsType[*net.OpError](outer.Err); ok && dial.Addr != nil {
		return dial.Addr.String(), true
	}
	return "the proxy's address", true
}

// serverAddress returns host and port as the base URL names them, else as they were dialled.
func serverAddress(o *Outcome) string {
	if u := o.URL; u != nil {
		return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), defaultPorts[u.Scheme]))
	}
	if dial, ok := errors.AsType[*net.OpError](o.Err); ok && dial.Addr != nil {
		return dial.Addr.String()
	}
	return "the server's address"
}
