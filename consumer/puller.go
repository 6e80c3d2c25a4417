package consumer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

const (
	// pullBatchMax bounds the rows of one pull request. The next one waits for its end,
	// and a round trip may take milliseconds: beside so many rows that is nothing. A
	// consumer that limits requests to fewer gets those, down to
	// [streams.PullRowsMin].
	pullBatchMax = 1024
	// pullWorthRows is the room that is waited for while the window has plenty of rows, see
	// [window.plenty].
	pullWorthRows = 64
	// pullRetry is the wait after a request that the server could not serve (no leader,
	// for instance).
	pullRetry = 100 * time.Millisecond
)

// errConsumerGone means that the durable consumer was deleted; the next term creates it
// again or says why it can't.
var errConsumerGone = errors.New("the durable consumer was deleted")

// puller asks for rows with one pull request at a time. Its subscription is its own: rows
// that the server still sends to an earlier request, made before a reset, go nowhere and
// are found missing by their number.
//
// Requests renew the pin, so one goes out at least every renew interval, also while there
// is no room for a row. The goroutine of the term owns it.
type puller struct {
	nc      *nats.Conn
	subject string // of pull requests
	inbox   string
	sub     *nats.Subscription
	msgs    chan *nats.Msg
	pin     string
	pinLost bool // the pin that this client had is no longer known to the server
	renew   time.Duration
	most    int // rows that one request may ask for

	left     int       // rows that the request in flight may still bring
	ends     time.Time // when the server forgets it
	over     time.Time // when it is over at the latest
	asked    time.Time // last request of any kind
	notUntil time.Time // earliest next request
	refused  string    // why the server refused the last request; empty means that it did not
	full     bool      // the next row is larger than the room that the last request had
	unnamed  bool      // the last row did not name its pin
}

type pullRequest struct {
	Expires  time.Duration `json:"expires,omitempty"`
	Batch    int           `json:"batch"`
	MaxBytes int64         `json:"max_bytes,omitempty"`
	Group    string        `json:"group"`
	ID       string        `json:"id,omitempty"`
}

// newPuller returns a puller that listens for the answers of a durable consumer.
func newPuller(c *Consumer, durable *streams.Durable, pin string, renew time.Duration) (p *puller, err error) {
	p = &puller{
		nc:      c.nc,
		subject: streams.APIPrefix(c.nc) + "CONSUMER.MSG.NEXT." + c.cfg.InputStream + "." + durable.Name,
		inbox:   c.nc.NewInbox(),
		// Room for what two requests may bring: the one in flight and one that was given
		// up as lost.
		msgs:  make(chan *nats.Msg, 2*pullBatchMax+64),
		pin:   pin,
		renew: renew,
		most:  pullBatchMax,
	}
	if limit := durable.Handle.CachedInfo().Config.MaxRequestBatch; limit > 0 {
		p.most = min(limit, pullBatchMax)
	}
	if p.sub, err = c.nc.ChanSubscribe(p.inbox, p.msgs); err != nil {
		return nil, fmt.Errorf("subscribe to rows: %w", err)
	}
	return p, nil
}

// close ends the subscription. Rows that it has brought by then are not read any more.
func (p *puller) close() {
	_ = p.sub.Unsubscribe()
	p.msgs = nil
}

// step sends the request that is due at now, given the room for rows and bytes, and
// returns when it wants to be called again. overflow allows one row of any size.
func (p *puller) step(now time.Time, rows int, bytes int64, overflow bool) (time.Time, error) {
	if p.left > 0 && now.After(p.over) {
		p.left = 0 // its end got lost
	}
	if now.Before(p.notUntil) {
		return p.notUntil, nil
	}
	req := pullRequest{Expires: p.renew, Batch: min(rows, p.most), MaxBytes: bytes, Group: streams.PinGroup, ID: p.pin}
	switch {
	case p.left > 0:
		return p.over.Add(time.Millisecond), nil
	case overflow:
		req.Batch, req.MaxBytes = 1, 0
	case rows > 0 && bytes > 0:
	case now.Sub(p.asked) < p.renew:
		return p.asked.Add(p.renew), nil
	default:
		// No room: a request that no row fits into still renews the pin.
		req.Batch, req.MaxBytes, req.Expires = 1, 1, p.renew/2
	}
	body, err := json.Marshal(req)
	if err != nil {
		return time.Time{}, err
	}
	if err := p.nc.PublishRequest(p.subject, p.inbox, body); err != nil {
		return time.Time{}, fmt.Errorf("pull rows: %w", err)
	}
	// The server does not say that a request is over when its last row used up MaxBytes
	// to the byte, and what it says may get lost. To wait for it much longer than the
	// request lasts would cost the pin.
	p.asked, p.left, p.ends, p.over = now, req.Batch, now.Add(req.Expires), now.Add(req.Expires+p.renew)
	return p.over.Add(time.Millisecond), nil
}

// received distinguishes a row from a status message about the request in flight; status
// messages return row false.
func (p *puller) received(m *nats.Msg, now time.Time) (row bool, err error) {
	if streams.Delivered(m) {
		p.left, p.refused, p.full = max(0, p.left-1), "", false
		pin := streams.Added(m.Header, streams.HeaderPinID)
		if p.unnamed = pin == ""; !p.unnamed && pin != p.pin {
			p.pin, p.pinLost = pin, false
		}
		return true, nil
	}
	status, description := streams.StatusOf(m)
	switch status {
	case "100": // idle heartbeat
	case "404", "408": // no rows, or the request is over
		p.left, p.refused, p.full = 0, "", false
	case "423": // another client holds the pin, or nobody does
		p.left, p.pinLost, p.pin = 0, p.pin != "", ""
		p.notUntil = now.Add(pullRetry)
	case "409":
		why := strings.ToLower(description)
		if strings.Contains(why, "batch completed") {
			// Comes behind the last row where room for bytes is left: the next request
			// may be in flight by now.
			return false, nil
		}
		p.left, p.refused = 0, description
		switch {
		case strings.Contains(why, "consumer deleted"):
			return false, errConsumerGone
		case strings.Contains(why, "maxbytes"):
			// The next row is larger than the room; asking again at once would be
			// answered the same.
			p.notUntil, p.refused, p.full = now.Add(p.renew/2), "", true
		default: // leadership change, server shutdown, too many requests
			p.notUntil = now.Add(pullRetry)
		}
	default: // 503: consumer or stream has no leader or is gone
		p.left = 0
		p.notUntil = now.Add(pullRetry)
	}
	return false, nil
}
