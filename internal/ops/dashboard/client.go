package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"syscall"
	"time"

	"github.com/llm-stage/stage/internal/ops/status"
)

// Bounds of a question to the server of another process.
const (
	askTimeout    = 5 * time.Second
	statusMaxSize = 16 << 20
)

// ErrAnyPort says that an address to listen on is any free port, where nobody can be asked.
var ErrAnyPort = errors.New("any free port: give the address of the dashboard, which the stage prints when it starts")

// errNoStage says that something other than a stage listens at an address.
var errNoStage = errors.New("what listens there is no stage")

// NobodyError says that nothing listens at an address.
type NobodyError struct{ Addr string }

// Error says what to do.
func (e *NobodyError) Error() string {
	return fmt.Sprintf("no stage listens on %s (STAGE_HTTP_ADDR): start one with stage run, or give with --http-addr "+
		"the address of its dashboard, which it prints when it starts", e.Addr)
}

// Ask returns what /api/status says of the process that listens on addr, the value of
// STAGE_HTTP_ADDR: the report of each of its stages, and the JSON that it came as, which
// may have members that this program does not know. It waits five seconds at most. The
// error names the address and what to do; it is [ErrAnyPort] if there is no address to
// ask.
func Ask(ctx context.Context, addr string) ([]status.Report, []byte, error) {
	return ask(ctx, addr, nil)
}

// ask is [Ask] over connections that dial makes. Without a dial they are TCP.
func ask(ctx context.Context, addr string, dial func(ctx context.Context, network, addr string) (net.Conn, error)) ([]status.Report, []byte, error) {
	addr, err := dialAddr(addr)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout,
		fmt.Errorf("no reply within %v: it has not started yet, and its log says what it waits for, or it is stuck", askTimeout))
	defer cancel()
	body, err := get(ctx, newClient(dial), "http://"+addr+"/api/status")
	var several struct{ Stages []status.Report }
	if err == nil && (json.Unmarshal(body, &several) != nil || len(several.Stages) == 0) {
		several.Stages = make([]status.Report, 1)
		if json.Unmarshal(body, &several.Stages[0]) != nil {
			err = errNoStage
		}
	}
	if err == nil && slices.ContainsFunc(several.Stages, func(r status.Report) bool { return r.Stage == "" || r.State == "" }) {
		err = errNoStage
	}
	switch {
	case err == nil:
		return several.Stages, body, nil
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, nil, &NobodyError{addr}
	case errors.Is(err, errNoStage):
		return nil, nil, fmt.Errorf("%s (STAGE_HTTP_ADDR): %w: give with --http-addr the address of a stage's dashboard, which it prints when it starts", addr, err)
	default:
		return nil, nil, fmt.Errorf("ask the stage on %s (STAGE_HTTP_ADDR): %w", addr, err)
	}
}

// AskWhole returns what /api/stage says of the process that listens on addr: the whole of
// each of its stages, as JSON. It returns nil for a process of an earlier version, which
// does not have that address.
func AskWhole(ctx context.Context, addr string) []json.RawMessage {
	addr, err := dialAddr(addr)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	body, err := get(ctx, newClient(nil), "http://"+addr+"/api/stage")
	if err != nil || !json.Valid(body) {
		return nil
	}
	var several struct{ Stages []json.RawMessage }
	if json.Unmarshal(body, &several) == nil && several.Stages != nil {
		return several.Stages
	}
	return []json.RawMessage{bytes.TrimSpace(body)}
}

// newClient returns a client over connections that dial makes. Without a dial they are TCP.
func newClient(dial func(ctx context.Context, network, addr string) (net.Conn, error)) *http.Client {
	return &http.Client{
		// There is no proxy: it would be asked for an address of this machine.
		Transport:     &http.Transport{DialContext: dial, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// dialAddr returns the address at which this machine reaches what listens on addr.
func dialAddr(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", err
	}
	if port == "0" {
		return "", fmt.Errorf("STAGE_HTTP_ADDR: %s is %w", addr, ErrAnyPort)
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "localhost" // it is tried over IPv4 and IPv6, and the host check allows it
	}
	return net.JoinHostPort(host, port), nil
}

// get returns the body of a response of status 200.
func get(ctx context.Context, client *http.Client, address string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, askError(ctx, err)
	}
	defer response.Body.Close() //nolint:errcheck // it was read
	body, err := io.ReadAll(io.LimitReader(response.Body, statusMaxSize+1))
	switch {
	case err != nil:
		return nil, askError(ctx, err)
	case len(body) > statusMaxSize:
		return nil, errNoStage
	case response.StatusCode == http.StatusMisdirectedRequest: // by the host check of a stage
		return nil, errors.New("it does not answer to this name: use localhost or an IP address, or add the name to its STAGE_HTTP_HOSTS")
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%w: it answers with status %d", errNoStage, response.StatusCode)
	}
	return body, nil
}

// askError returns the cause of an error of a request, without its URL.
func askError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}
