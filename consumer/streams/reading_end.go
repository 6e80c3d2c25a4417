package streams

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// readingPrefix is what the names of the consumers of readings begin with.
	readingPrefix = "stage-reading-"
	// consumerDelete is the request of the JetStream API that removes a consumer.
	consumerDelete = "CONSUMER.DELETE."
	// A consumer that exceeds a limit is asked for again, until the waits exceed
	// readingRetryMost: the server may still be about to remove the one of the reading
	// before it.
	readingRetryFirst = 50 * time.Millisecond
	readingRetryMost  = 800 * time.Millisecond
)

// createReading makes the consumer of a reading. A limit on consumers may leave room for
// one reading only, and the server handles requests side by side: it may look at the
// limit before it has removed the consumer of a reading that ended a moment ago, here or
// in the command before this one.
func createReading(
	ctx context.Context, js jetstream.JetStream, stream string, cfg jetstream.ConsumerConfig,
) (consumer jetstream.Consumer, err error) {
	for wait := range Retry(ctx, readingRetryFirst, 2*readingRetryMost) {
		consumer, err = js.CreateConsumer(ctx, stream, cfg)
		refused, answered := errors.AsType[*jetstream.APIError](err)
		if err != nil && !answered { // the request may have arrived
			deleteReading(js.Conn(), stream, cfg.Name)
		}
		if !answered || refused.ErrorCode != codeMaxConsumers || wait > readingRetryMost {
			break
		}
	}
	return consumer, err
}

// deleteReading asks the server to remove the consumer of a reading, and does not wait
// for the answer: without it the server removes the consumer after its InactiveThreshold,
// and nobody depends on that but the limit of consumers, which [createReading] looks
// after. The request needs no context, so that it is also sent at the end of a command
// that was interrupted. Closing the connection flushes it.
//
// After a user was denied something, no request is sent: the server would deny that, too,
// and log it, and this denial would replace the connection's last error, which is the
// only place that says why the command failed.
func deleteReading(nc *nats.Conn, stream, name string) {
	if errors.Is(nc.LastError(), nats.ErrPermissionViolation) {
		return
	}
	_ = nc.Publish(APIPrefix(nc)+consumerDelete+stream+"."+name, nil)
}

// IsReadingEnd reports whether an error of a connection says only that its user may not
// delete the consumer of a [Reading] which has ended. Nothing depends on that permission,
// so nobody needs to hear of it.
func IsReadingEnd(err error) bool {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return false
	}
	_, request, has := strings.Cut(deniedSubject(err.Error()), consumerDelete)
	return has && strings.Contains(request, "."+readingPrefix)
}
