package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Earlier versions kept all replies of a partition on one subject, journal.stage.0. A
// new owner copies them to the subjects of their rows before it takes any, which takes .5
// ms an entry. One release later this file can go.
//
// The permissions that the setup of an earlier version printed don't cover those subjects.
// Then the partition waits and says so, since the alternative would be to pay again for
// all that was kept.

// moveMost bounds the time that this may take.
const moveMost = 10 * time.Minute

// countOld returns how many replies an older version has kept. It is called before the
// claim: whoever is fenced claims again at once, and a claim that is not followed by a
// request for rows soon gets no pin.
func (c *Consumer) countOld(ctx context.Context) (replies uint64) {
	if !c.cfg.Journal {
		return 0
	}
	stream, err := streams.Look(ctx, c.js, c.cfg.JournalStream)
	if err != nil {
		return 0
	}
	subject := strings.TrimSuffix(c.journalPrefix(), ".")
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subject))
	if err != nil {
		return 0
	}
	return info.State.Subjects[subject]
}

// mayMoveOld returns an error where replies of an older version can't be copied for want of
// a permission. It tries with an empty message about row 0, which no stream has. It is
// called before the claim, since the partition tries again until it may: a claim with each
// attempt would fill the results.
func (c *Consumer) mayMoveOld(ctx context.Context, replies uint64) error {
	if replies == 0 {
		return nil
	}
	trial := c.journalSubject(keptRef{0, wholeRow})
	_, err := streams.Append(ctx, c.nc, []*nats.Msg{{Subject: trial}})
	if err == nil {
		return c.purgeJournal(ctx, trial, 0)
	}
	if denied := streams.Denied(c.nc, err, trial); errors.Is(denied, nats.ErrPermissionViolation) {
		return fmt.Errorf("%d replies that an older version has kept belong on subjects of their rows: allow the NATS user to publish on %s, "+
			"or give these replies up with nats stream purge %s --subject %s: %w",
			replies, c.journalFilter(), c.cfg.JournalStream, strings.TrimSuffix(c.journalPrefix(), "."), denied)
	}
	return nil // moveOld says what else is wrong
}

// moveOld copies what an older version has kept. Where that fails, the rows whose replies
// are not copied are paid for again.
func (t *term) moveOld(ctx, soft context.Context, lost <-chan nats.Status, replies uint64) error {
	if replies == 0 {
		return nil
	}
	return t.whilePinned(ctx, soft, lost, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, moveMost)
		defer cancel()
		moved, err := t.moveEntries(ctx, replies)
		switch {
		case err != nil && ctx.Err() == nil:
			t.c.log.Warn("replies that an older version has kept are not used", slog.Any("error", err))
		case moved > 0:
			t.c.log.Info("replies that an older version has kept are under their rows now", slog.Uint64("replies", moved))
		}
		return nil
	})
}

// moveEntries copies the entries on the old subject, and then removes them. A stream that
// is more than half full has no room for both, so there the copied ones go as soon as it
// refuses another. No entry is ever removed before its copy is stored: where the stream is
// full to the last byte, the rest stays where it is.
func (t *term) moveEntries(ctx context.Context, replies uint64) (moved uint64, err error) {
	subject, next := strings.TrimSuffix(t.c.journalPrefix(), "."), uint64(1)
	for range replies {
		m, at, err := t.c.oldEntry(ctx, subject, next)
		if err != nil {
			return moved, err
		}
		next = at + 1
		row, item, _, err := t.c.parseEntry(m.Header, m.Data)
		if err != nil || t.finished(row) {
			continue
		}
		m.Subject = t.c.journalSubject(keptRef{row, item})
		_, err = streams.Append(ctx, t.c.nc, []*nats.Msg{m})
		if streams.Full(err) {
			if err := t.c.purgeJournal(ctx, subject, at); err != nil {
				return moved, err
			}
			_, err = streams.Append(ctx, t.c.nc, []*nats.Msg{m})
		}
		if err != nil {
			return moved, err
		}
		moved++
	}
	return moved, t.c.purgeJournal(ctx, subject, next)
}

// oldEntry returns the first entry on a subject at or after a sequence, as it was
// published, and its sequence.
func (c *Consumer) oldEntry(ctx context.Context, subject string, from uint64) (m *nats.Msg, at uint64, err error) {
	body, err := json.Marshal(map[string]any{"seq": from, "next_by_subj": subject})
	if err != nil {
		return nil, 0, err
	}
	answer, err := c.nc.RequestWithContext(ctx, streams.APIPrefix(c.nc)+"DIRECT.GET."+c.cfg.JournalStream, body)
	if err != nil {
		return nil, 0, err
	}
	if at, err = strconv.ParseUint(streams.Added(answer.Header, jetstream.SequenceHeader), 10, 64); err != nil {
		code, why := streams.StatusOf(answer)
		return nil, 0, fmt.Errorf("get message %d of %s: %s %s", from, subject, code, why)
	}
	m = &nats.Msg{Header: nats.Header{}, Data: answer.Data}
	for name, values := range answer.Header {
		if !streams.ForServer(name) {
			m.Header[name] = values
		}
	}
	return m, at, nil
}
