package llm

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"syscall"
)

// hostShortage is something that this machine may lack for a connection.
type hostShortage struct {
	errno  syscall.Errno
	remedy string // what to change
}

var hostShortages = [...]hostShortage{
	{syscall.EMFILE, "this process has no file descriptor left: raise ulimit -n, LimitNOFILE or the container's limit, or lower the pool size"},
	{syscall.ENFILE, "this machine has no file descriptor left: raise fs.file-max"},
	{syscall.EADDRNOTAVAIL, "this machine has no ephemeral port left: widen net.ipv4.ip_local_port_range or lower the pool size; with an IPv6 address, check that IPv6 is enabled"},
	{syscall.ENOBUFS, "this machine has no memory left for network buffers: free some or lower the pool size"},
	{syscall.ENOMEM, "this machine has no memory left: free some or lower the pool size"},
	{syscall.ENETUNREACH, "this machine has no route to the server: check its network"},
	{syscall.EHOSTUNREACH, "this machine has no route to the server: check its network"},
}

// shortage returns what this machine lacked, where that kept the request from being sent, and nil otherwise.
func shortage(o *Outcome) *hostShortage {
	if o.Status != 0 || o.Progress&(Sent|Replied) != 0 {
		return nil
	}
	dns, _ := errors.AsType[*net.DNSError](o.Err)
	for i := range hostShortages {
		s := &hostShortages[i]
		if errors.Is(o.Err, s.errno) {
			return s
		}
		// Go's resolver keeps the text alone of what it met.
		if dns != nil && strings.HasSuffix(dns.Err, s.errno.Error()) {
			return s
		}
	}
	return nil
}

// alikeWordBytes is more than a provider's code or type has: what is longer is none. With a status in front two of them
// keep [Error.Alike] within its bound.
const alikeWordBytes = 44

// alike returns [Error.Alike] of an attempt with judgement j. r is what was read of the reply, nil without one.
func alike(o *Outcome, j *judgement, r *Reply, body []byte) string {
	if !j.general {
		return ""
	}
	if j.reason == ReasonAPICallFailed {
		return alikeStatus(o)
	}
	if j.reason == ReasonTruncated && isWord(r.FinishReason) {
		return string(j.reason) + " " + r.FinishReason // tools that the settings offer end every answer alike
	}
	if page, _ := readHTML(body); page && j.reason == ReasonInvalidJSONResponse {
		return "html"
	}
	return string(j.reason)
}

// alikeStatus names an error status by the provider's words. The member of the request that OpenAI names beside them is
// left out: one wrong setting may show up in several.
func alikeStatus(o *Outcome) string {
	name := strconv.Itoa(o.Status)
	if e, ok := errors.AsType[*proxyError](o.Err); ok {
		name = "proxy " + strconv.Itoa(e.status)
	}
	if o.Fault == nil {
		return name
	}
	if o.Status/100 == 2 {
		name = strconv.Itoa(o.Fault.Status)
	}
	for _, word := range [...]string{o.Fault.Type, o.Fault.Code} {
		if isWord(word) {
			name += " " + word
		}
	}
	return name
}

// isWord reports whether text is a code, and not a message that may quote the row.
func isWord(text string) bool {
	for _, c := range []byte(text) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return text != "" && len(text) <= alikeWordBytes
}
