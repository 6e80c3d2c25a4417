package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// moveMost bounds the time that the copying of old replies may take.
const moveMost = 10 * time.Minute

// oldReplies are the replies of one partition that an older version has kept, all on one
// subject, such as journal.stage.0. A new owner copies them to the subjects of their rows
// before it takes any row, which takes 0.5 ms an entry. One release later this file can go.
//
// The permissions that the setup of an earlier version printed don't cover those
// subjects. Then the partition waits and says so, since the alternative would be to pay
// again for all the replies.
type oldReplies struct {
	*keptStream
	subject string // of all of them
	count   uint64
}

// oldReplies counts the replies that an older version has kept. It is called before the
// claim: a replica that is fenced claims again at once, and a claim that is not soon
// followed by a request for rows gets no pin.
func (k *keptStream) oldReplies(ctx context.Context) (old oldReplies) {
	old = oldReplies{keptStream: k, subject: strings.TrimSuffix(k.prefix(), ".")}
	if !k.cfg.Journal {
		return old
	}
	stream, err := streams.Look(ctx, k.js, k.cfg.JournalStream)
	if err != nil {
		return old
	}
	if info, err := stream.Info(ctx, jetstream.WithSubjectFilter(old.subject)); err == nil {
		old.count = info.State.Subjects[old.subject]
	}
	return old
}

// mayMove returns an error where replies of an older version can't be copied for want of
// a permission. It tries with an empty message about row 0, which no stream has. It is
// called before the claim, since the partition tries again until it may: a claim with each
// attempt would fill the results.
func (o *oldReplies) mayMove(ctx context.Context) error {
	if o.count == 0 {
		return nil
	}
	trial := o.keptStream.subject(keptRef{0, wholeRow})
	_, err := streams.Append(ctx, o.nc, []*nats.Msg{{Subject: trial}})
	if err == nil {
		return streams.Purge(ctx, o.nc, o.cfg.JournalStream, trial)
	}
	if denied := streams.Denied(o.nc, err, trial); errors.Is(denied, nats.ErrPermissionViolation) {
		return fmt.Errorf("%d replies that an older version has kept belong on subjects of their rows: allow the NATS user to publish on %s, "+
			"or give these replies up with nats stream purge %s --subject %s: %w",
			o.count, o.filter(), o.cfg.JournalStream, o.subject, denied)
	}
	return nil // move reports any other error
}

// move copies what an older version has kept, but for rows that are finished. Where that
// fails, the rows whose replies are not copied are paid for again.
func (o *oldReplies) move(ctx context.Context, finished func(seq uint64) bool, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, moveMost)
	defer cancel()
	moved, err := o.moveEntries(ctx, finished)
	switch {
	case err != nil && ctx.Err() == nil:
		log.Warn("replies that an older version has kept are not used", slog.Any("error", err))
	case moved > 0:
		log.Info("replies that an older version has kept are under their rows now", slog.Uint64("replies", moved))
	}
}

// moveEntries copies the entries on the old subject, and then removes them. A stream that
// is more than half full has no room for both, so there the copied ones go as soon as it
// refuses another. No entry is ever removed before its copy is stored: where the stream is
// full to the last byte, the rest stays where it is.
func (o *oldReplies) moveEntries(ctx context.Context, finished func(seq uint64) bool) (moved uint64, err error) {
	next := uint64(1)
	for range o.count {
		m, at, err := o.entryFrom(ctx, next)
		if err != nil {
			return moved, err
		}
		next = at + 1
		ref, kept := o.parse(m.Header, m.Data)
		if kept == nil || finished(ref.row) {
			continue
		}
		m.Subject = o.keptStream.subject(ref)
		_, err = streams.Append(ctx, o.nc, []*nats.Msg{m})
		if streams.Full(err) {
			if err := o.purgeBelow(ctx, at); err != nil {
				return moved, err
			}
			_, err = streams.Append(ctx, o.nc, []*nats.Msg{m})
		}
		if err != nil {
			return moved, err
		}
		moved++
	}
	return moved, o.purgeBelow(ctx, next)
}

// purgeBelow removes the old replies below a sequence. There may be a million, so it takes
// as long as ctx lasts, where [streams.PurgeBelow] has the bound of a request.
func (o *oldReplies) purgeBelow(ctx context.Context, below uint64) error {
	request, err := streams.PurgeRequest(o.nc, o.cfg.JournalStream, o.subject, below)
	if err != nil {
		return err
	}
	answer, err := o.nc.RequestMsgWithContext(ctx, request)
	if err == nil {
		err = streams.Refusal(answer)
	}
	return err
}

// entryFrom returns the first entry at or after a sequence, as it was published, and its
// sequence.
func (o *oldReplies) entryFrom(ctx context.Context, from uint64) (m *nats.Msg, at uint64, err error) {
	body, err := json.Marshal(map[string]any{"seq": from, "next_by_subj": o.subject})
	if err != nil {
		return nil, 0, err
	}
	answer, err := o.nc.RequestWithContext(ctx, streams.APIPrefix(o.nc)+"DIRECT.GET."+o.cfg.JournalStream, body)
	if err != nil {
		return nil, 0, err
	}
	if at, err = strconv.ParseUint(streams.Added(answer.Header, jetstream.SequenceHeader), 10, 64); err != nil {
		code, why := streams.StatusOf(answer)
		return nil, 0, fmt.Errorf("get message %d of %s: %s %s", from, o.subject, code, why)
	}
	maps.DeleteFunc(answer.Header, func(name string, _ []string) bool { return streams.ForServer(name) })
	return &nats.Msg{Header: answer.Header, Data: answer.Data}, at, nil
}
