package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ErrServer is returned for a NATS server that can't serve a stage.
var ErrServer = errors.New("the NATS server can't serve a stage")

// Streams says which streams a stage works on, and how those that are missing are created.
type Streams struct {
	// Name of the stage.
	Name string
	// InputStream holds rows on InputSubject, which may contain [PartitionToken].
	InputStream, InputSubject string
	// ResultStream captures `<ResultSubject>.>`, AuditStream `<AuditSubject>.>`.
	ResultStream, ResultSubject string
	AuditStream, AuditSubject   string
	// DeadLetterSubject must be captured by some stream; empty: none.
	DeadLetterSubject string
	// Partitions is at least 1.
	Partitions int
	// Create allows the creation of what is missing. What exists is checked, never changed.
	Create bool
	// Replicas, Memory and the limits are those of streams created here.
	Replicas                      int
	Memory                        bool
	AuditMaxAge                   time.Duration
	AuditMaxBytes, ResultMaxBytes int64
	// Journal says whether JournalStream is needed.
	Journal         bool
	JournalStream   string
	JournalMaxBytes int64
}

// EnsureStreams creates the streams that are missing and checks those that exist. Its error lists every fault and says
// what to change.
func EnsureStreams(ctx context.Context, nc *nats.Conn, s Streams) error {
	if err := checkServer(nc.ConnectedServerVersion()); err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 6*requestTimeout)
	defer cancel()
	faults := []error{
		s.ensure(ctx, js, s.inputConfig(), "STAGE_INPUT_STREAM", checkInputStream),
		s.ensure(ctx, js, s.resultConfig(), "STAGE_RESULT_STREAM", checkResultStream),
		s.ensure(ctx, js, s.auditConfig(), "STAGE_AUDIT_STREAM", checkAuditStream),
		captured(ctx, js, s.ResultStream, ResultSubject(s.ResultSubject, s.Name, 0), "STAGE_RESULT_SUBJECT"),
		captured(ctx, js, s.ResultStream, claimSubject(s.ResultSubject, s.Name, 0), "STAGE_RESULT_SUBJECT"),
		captured(ctx, js, s.AuditStream, s.AuditSubject+"."+s.Name+".0.row", "STAGE_AUDIT_SUBJECT"),
	}
	if s.DeadLetterSubject != "" {
		faults = append(faults, captured(ctx, js, "", s.DeadLetterSubject, "STAGE_DEAD_LETTER_SUBJECT"))
	}
	// A subject can't be captured by a stream that is missing; one fault is enough.
	faults = slices.CompactFunc(faults, func(a, b error) bool { return a != nil && b != nil && a.Error() == b.Error() })
	return errors.Join(faults...)
}

func (s Streams) storage() jetstream.StorageType {
	if s.Memory {
		return jetstream.MemoryStorage
	}
	return jetstream.FileStorage
}

func (s Streams) inputConfig() jetstream.StreamConfig {
	subject := strings.ReplaceAll(s.InputSubject, PartitionToken, "*")
	return jetstream.StreamConfig{
		Name: s.InputStream, Subjects: []string{subject}, Description: "rows for llm-stage",
		Storage: s.storage(), Replicas: s.Replicas, Discard: jetstream.DiscardNew, AllowDirect: true, AllowAtomicPublish: true,
	}
}

func (s Streams) resultConfig() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: s.ResultStream, Subjects: []string{s.ResultSubject + ".>"}, Description: "ordered results of llm-stage",
		Storage: s.storage(), Replicas: s.Replicas, MaxBytes: unlimited(s.ResultMaxBytes),
		// The resume point is in here: nothing may be dropped or deleted unnoticed.
		Discard: jetstream.DiscardNew, DenyDelete: true, AllowAtomicPublish: true, AllowDirect: true,
	}
}

func (s Streams) auditConfig() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: s.AuditStream, Subjects: []string{s.AuditSubject + ".>"}, Description: "audit events of llm-stage",
		Storage: s.storage(), Replicas: s.Replicas, MaxBytes: unlimited(s.AuditMaxBytes), MaxAge: s.AuditMaxAge,
		Discard: jetstream.DiscardOld, DenyDelete: true, AllowDirect: true, AllowAtomicPublish: true,
	}
}

func unlimited(bytes int64) int64 {
	if bytes == 0 {
		return -1
	}
	return bytes
}

// ensure finds or creates one stream and checks it.
func (s Streams) ensure(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig, variable string, check func(jetstream.StreamConfig) []string) error {
	stream, err := js.Stream(ctx, want.Name)
	switch {
	case err == nil:
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("%s: look at stream %s: %w", variable, want.Name, denied(err))
	case !s.Create:
		return fmt.Errorf("%s: stream %s does not exist: create it, or set STAGE_CREATE_STREAMS=true", variable, want.Name)
	default:
		// Another replica may create it at the same moment; the same configuration twice is no error.
		if stream, err = js.CreateStream(ctx, want); err != nil {
			return fmt.Errorf("%s: create stream %s on subject %s: %w", variable, want.Name, strings.Join(want.Subjects, ", "), denied(err))
		}
	}
	if wrong := check(stream.CachedInfo().Config); len(wrong) > 0 {
		return fmt.Errorf("%s: stream %s: %s", variable, want.Name, strings.Join(wrong, "; "))
	}
	return nil
}

// denied names the likely reason of a request that nobody answered: the server does not tell a client that it may not ask.
func denied(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) {
		return fmt.Errorf("%w (no answer: does the NATS user have the permission, and is JetStream enabled for its account)", err)
	}
	return err
}

// captured checks that the right stream takes a subject; stream empty: any.
func captured(ctx context.Context, js jetstream.JetStream, stream, subject, variable string) error {
	name, err := js.StreamNameBySubject(ctx, subject)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("%s: no stream captures the subject %s: add it to a stream's subjects", variable, subject)
	case err != nil:
		return fmt.Errorf("%s: look for the stream of subject %s: %w", variable, subject, denied(err))
	case stream != "" && name != stream:
		return fmt.Errorf("%s: subject %s belongs to stream %s, not to %s: name that stream or change the subject", variable, subject, name, stream)
	}
	return nil
}

func checkInputStream(cfg jetstream.StreamConfig) []string {
	if cfg.Sealed && cfg.Retention != jetstream.LimitsPolicy {
		return []string{"is sealed, so its rows can't be acked: use limits retention"}
	}
	return nil
}

// checkResultStream refuses whatever could drop the end of the log, or a result, without anybody noticing.
func checkResultStream(cfg jetstream.StreamConfig) (wrong []string) {
	if cfg.Retention != jetstream.LimitsPolicy {
		wrong = append(wrong, fmt.Sprintf("has %s retention, which deletes the resume point with the last read: set retention to limits", cfg.Retention))
	}
	if cfg.MaxAge > 0 {
		wrong = append(wrong, fmt.Sprintf("has max age %v, after which a quiet stage forgets where it was: set it to 0", cfg.MaxAge))
	}
	if cfg.Discard == jetstream.DiscardOld && (cfg.MaxBytes > 0 || cfg.MaxMsgs > 0) {
		wrong = append(wrong, "drops old results when it is full: set discard to new, then a full stream makes the stage wait")
	}
	if cfg.MaxMsgsPerSubject > 0 {
		wrong = append(wrong, fmt.Sprintf("keeps only %d messages a subject: set max messages per subject to -1", cfg.MaxMsgsPerSubject))
	}
	if cfg.NoAck {
		wrong = append(wrong, "does not acknowledge messages: set no_ack to false")
	}
	if cfg.Sealed || cfg.Mirror != nil {
		wrong = append(wrong, "takes no messages (sealed or a mirror): name another stream")
	}
	return wrong
}

func checkAuditStream(cfg jetstream.StreamConfig) (wrong []string) {
	if cfg.NoAck {
		wrong = append(wrong, "does not acknowledge messages, so nobody knows whether an event is stored: set no_ack to false")
	}
	if cfg.Sealed || cfg.Mirror != nil {
		wrong = append(wrong, "takes no messages (sealed or a mirror): name another stream")
	}
	return wrong
}

// checkServer compares a server's version with what the protocol needs.
func checkServer(version string) error {
	major, minor, ok := parseVersion(version)
	if !ok {
		return nil // a server that hides its version gets the benefit of the doubt
	}
	if major < 2 || major == 2 && minor < 11 {
		return fmt.Errorf("%w: version %s has no pinned consumers: use 2.11 or newer", ErrServer, version)
	}
	return nil
}

// canReset tells whether a server can set a consumer back in place.
func canReset(version string) bool {
	major, minor, ok := parseVersion(version)
	return !ok || major > 2 || major == 2 && minor >= 14
}

func parseVersion(version string) (major, minor int, ok bool) {
	n, err := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return major, minor, err == nil && n == 2
}
