package streams

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Codes of the server's errors that have a sentence, see its errors.json.
const (
	codeClusterNoPeers    = 10005
	codeNoQuorum          = 10008
	codeNoConsumer        = 10014
	codeNoResources       = 10023
	codeMaxConsumers      = 10026
	codeMaxStreams        = 10027
	codeMemory            = 10028
	codeNoMessage         = 10037
	codeNotEnabledAccount = 10039
	codeStorage           = 10047
	codeNoStream          = 10059
	codeNotEnabled        = 10076
	codeNameInUse         = 10058
)

// sentences are what refusals of the server mean for the person who runs a command, and
// what to do about them.
var sentences = map[jetstream.ErrorCode]string{
	codeClusterNoPeers:    "the cluster has no servers for it: lower the number of replicas, or bring up more servers",
	codeNoQuorum:          "the cluster has no leader at the moment: check that most of its servers run, and try again",
	codeNoConsumer:        "the consumer does not exist: run stage setup, or start the stage",
	codeNoResources:       "the server has no room for it: free storage or memory there, or raise its limits",
	codeMaxConsumers:      "the account's limit of consumers is reached: delete those that nobody uses, or raise the limit",
	codeMaxStreams:        "the account's limit of streams is reached: delete those that nobody uses, or raise the limit",
	codeMemory:            "the server or the account has no memory left for streams: free some, or raise max_memory",
	codeNoMessage:         "the stream has no such message",
	codeNotEnabledAccount: "JetStream is not enabled for the account of this NATS user: enable it, or log in to another account",
	codeStorage:           "the server or the account has no storage left for streams: free disk space there, raise its limit (max_file), or lower what a stream reserves (stage setup --journal-max-bytes)",
	codeNameInUse:         "a stream of that name exists with another configuration: choose another name",
	codeNoStream:          "the stream does not exist: is it the right server, and has a stage or stage setup run there",
	codeSubjectTaken:      "its subjects overlap with those of another stream: change the subject, or use that stream",
	codeNotEnabled:        "JetStream is not enabled on the server: start it with JetStream (nats-server -js), or use another",
}

// noPeers is the sentence for a stream that no servers of the cluster can take, for the
// reason that the server gives.
func noPeers(description string) string {
	switch {
	case strings.Contains(description, "insufficient storage"):
		return "the servers of the cluster have too little storage for it: raise their max_file_store, free disk space there, or lower what a stream reserves (stage setup --journal-max-bytes)"
	case strings.Contains(description, "insufficient memory"):
		return "the servers of the cluster have too little memory for it: raise their max_memory_store, or keep the stream in files"
	}
	return fmt.Sprintf("%s; the server says %q", sentences[codeClusterNoPeers], description)
}

// noJetStream is the sentence for a request of JetStream that nobody answers.
const noJetStream = "JetStream does not answer: the server runs without it, or the account has none: start it with JetStream (nats-server -js), or use another server or account; where it is in a domain that the server is not in, name that (STAGE_NATS_JS_DOMAIN)"

// noJetStreamAt is noJetStream where a setting says where JetStream is, by the prefix of
// its API.
func noJetStreamAt(prefix string) string {
	domain, found := strings.CutSuffix(strings.TrimPrefix(prefix, "$JS."), ".API.")
	if found && prefix == DomainPrefix(domain) {
		return fmt.Sprintf("JetStream does not answer in the domain %q: check that this is the domain in the configuration of the server with the streams (STAGE_NATS_JS_DOMAIN), that that server runs, and that its leaf node connection to this one is up, in this account", domain)
	}
	return fmt.Sprintf("JetStream does not answer below %q: check STAGE_NATS_JS_PREFIX, and that the account imports the API of JetStream there", prefix)
}

// Located returns an error of a request to JetStream with the domain or prefix that the
// connection looks for it in, for [Explain]: a wrong one is the likely reason that nobody
// answers. Other errors are returned unchanged.
func Located(nc *nats.Conn, err error) error {
	if !errors.Is(err, nats.ErrNoResponders) || !elsewhere(nc) {
		return err
	}
	return &locatedError{prefix: APIPrefix(nc), err: err}
}

type locatedError struct {
	prefix string
	err    error
}

// Error is the text of the error itself.
func (e *locatedError) Error() string { return e.err.Error() }

// Unwrap returns the error itself.
func (e *locatedError) Unwrap() error { return e.err }

// sentence returns the error of the server or of its client in words; ok false: it has
// none.
func sentence(err error) (text string, ok bool) {
	switch e := any(err).(type) {
	case *jetstream.APIError:
		if e.ErrorCode == codeClusterNoPeers {
			// The server's words have the reason, for example "no suitable peers for
			// placement, insufficient storage".
			return noPeers(e.Description), true
		}
		if text, ok = sentences[e.ErrorCode]; ok {
			return text, true
		}
		return fmt.Sprintf("the server says %q (code %d)", e.Description, e.ErrorCode), true
	case *refusedError:
		if text, ok = sentences[jetstream.ErrorCode(e.code)]; ok { //nolint:gosec // five digits
			return ErrRefused.Error() + ": " + text, true
		}
	}
	if err == nats.ErrNoResponders { //nolint:errorlint // this very error: an error that wraps it has more to say
		return noJetStream, true
	}
	return "", false
}

// Violation returns what the server has forbidden the user of the connection, as the last
// error of the connection, and what to do about it. The server reports a violation apart
// from the request, which stays without an answer. So a violation counts only if it is
// about one of the subjects, which may have wildcards, or about the inbox that the answer
// goes to; otherwise Violation returns nil. For example, a connection that was denied a
// subscription to $SRV.STATS keeps that as its last error, and a request that a dead node
// left without an answer has another cause. That a reading was not allowed to delete its
// consumer is never a cause, see [IsReadingEnd]: nobody waits for that. The error is a
// [nats.ErrPermissionViolation]. [APISubjects] among the subjects stands for the API
// wherever the connection reaches it.
func Violation(nc *nats.Conn, subjects ...string) error {
	if slices.Contains(subjects, APISubjects) {
		subjects = append(slices.Clone(subjects), APIPrefix(nc)+">")
	}
	last := nc.LastError()
	if !errors.Is(last, nats.ErrPermissionViolation) || IsReadingEnd(last) ||
		!concerns(last.Error(), nc.Opts.InboxPrefix, subjects) {
		return nil
	}
	text := strings.TrimPrefix(last.Error(), nats.ErrPermissionViolation.Error()+": ") // the server's own words
	why := fmt.Errorf("the server denied it: %s: grant the NATS user that permission, or log in as another user",
		text)
	if strings.Contains(text, "for Subscription to") { // answers come on subjects of the client's own choice
		why = NewSettingError(FieldInboxPrefix,
			"the server denied it: %s: grant the NATS user that permission, or set %s to a prefix that the user may subscribe to",
			text, FieldInboxPrefix)
	}
	return &violationError{why, last}
}

// InboxDenied reports whether the last error of a connection is that the server has
// denied it a subscription to an inbox of its own. Such a subscription is gone, and the
// client library makes it again only when it connects again.
func InboxDenied(nc *nats.Conn) bool {
	last := nc.LastError()
	return errors.Is(last, nats.ErrPermissionViolation) &&
		concerns(last.Error(), nc.Opts.InboxPrefix, nil)
}

// concerns reports whether the server's words about a violation are about a publication
// on one of the subjects, or about a subscription to an inbox of the client.
func concerns(text, inboxPrefix string, subjects []string) bool {
	denied := deniedSubject(text)
	if strings.Contains(text, "for Subscription to") {
		return strings.HasPrefix(denied, strings.TrimSuffix(cmp.Or(inboxPrefix, "_INBOX"), ".")+".")
	}
	return slices.ContainsFunc(subjects, func(s string) bool { return covers(s, denied) })
}

// deniedSubject returns the subject that the server's words about a violation name.
func deniedSubject(text string) string {
	_, quoted, _ := strings.Cut(text, `"`)
	denied, _, _ := strings.Cut(quoted, `"`)
	return denied
}

// violationError is a [nats.ErrPermissionViolation] with what to do about it.
type violationError struct{ why, last error }

func (e *violationError) Error() string { return e.why.Error() }

func (e *violationError) Unwrap() []error { return []error{e.why, e.last} }
