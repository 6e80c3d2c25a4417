package streams

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Codes of the server become sentences wherever they stand in an error, and the error
// stays what it is.
func TestErrorsOfTheServerAreSentences(t *testing.T) {
	none := func(f Field) string { return string(f) }
	for _, tt := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("read S: %w", jetstream.ErrStreamNotFound), "read S: the stream does not exist: "},
		{fmt.Errorf("look: %w", jetstream.ErrConsumerNotFound), "look: the consumer does not exist: "},
		{errors.Join(fmt.Errorf("a: %w", nats.ErrNoResponders), fmt.Errorf("b: %w", jetstream.ErrJetStreamNotEnabled)), "a: JetStream does not answer: "},
		{jetstream.ErrJetStreamNotEnabledForAccount, "JetStream is not enabled for the account"},
		{&jetstream.APIError{Code: 500, ErrorCode: codeStorage, Description: "insufficient storage"}, "the server or the account has no storage left"},
		{&jetstream.APIError{Code: 400, ErrorCode: codeClusterNoPeers, Description: "no suitable peers for placement, insufficient storage"}, "the servers of the cluster have too little storage for it"},
		{&jetstream.APIError{Code: 400, ErrorCode: codeClusterNoPeers, Description: "no suitable peers for placement, tags not matched ['x']"}, `the cluster has no servers for it: lower the number of replicas, or bring up more servers; the server says "no suitable peers for placement, tags`},
		{&jetstream.APIError{Code: 400, ErrorCode: codeMaxStreams, Description: "maximum number of streams reached"}, "the account's limit of streams is reached"},
		{&jetstream.APIError{Code: 400, ErrorCode: 10999, Description: "odd"}, `the server says "odd" (code 10999)`},
		{fmt.Errorf("append: %w", &refusedError{code: codeStorage, why: "insufficient"}), "append: refused by the server: the server or the account has no storage left"},
		{&deniedError{why: errors.New("may not"), err: fmt.Errorf("look: %w", context.DeadlineExceeded)}, "look: may not"},
	} {
		got := Explain(tt.err, none)
		if !strings.HasPrefix(got, tt.want) || strings.Contains(got, "err_code") {
			t.Errorf("%q is explained as %q, want %q…", tt.err, got, tt.want)
		}
	}
}

// Where a setting says where JetStream is, a missing answer names that setting and what it says.
func TestAMissingAnswerNamesTheDomain(t *testing.T) {
	for prefix, want := range map[string]string{
		"":                    "a: " + noJetStream,
		DomainPrefix("other"): `a: JetStream does not answer in the domain "other": check `,
		"JS.hub.API":          `a: JetStream does not answer below "JS.hub.API.": check STAGE_NATS_JS_PREFIX`,
	} {
		nc := new(nats.Conn)
		SetAPIPrefix(nc, prefix)
		got := Explain(Located(nc, fmt.Errorf("a: %w", nats.ErrNoResponders)), func(Field) string { return "" })
		if !strings.HasPrefix(got, want) {
			t.Errorf("%q: %s", prefix, got)
		}
	}
}
