package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/llm"
	"github.com/nats-io/nats.go/jetstream"
)

// objectVerifier knows which objects the results of the stage name. It finds objects that
// no result names. They are no violation: a killed process leaves such objects.
//
// It holds a hash for each result whose body is an object, some 20 bytes in a map.
type objectVerifier struct {
	named map[string]map[uint64]bool // by bucket: hashes of names
}

// unnamedShown is how many of the objects that no result names are shown.
const unnamedShown = 5

func (o *objectVerifier) name(ref *objects.Ref) {
	if o.named[ref.Bucket] == nil {
		o.named[ref.Bucket] = make(map[uint64]bool)
	}
	o.named[ref.Bucket][digest([]byte(ref.Name))] = true
}

// readBody notes what the body of a result shows. A body that is an object is always read,
// because nothing else shows that the object exists.
func (l *linkVerifier) readBody(h *verifiedRow) (err error) {
	r := h.ResultRow
	if h.erased {
		return nil
	}
	if r.Object != nil {
		l.objects.name(r.Object)
		r.Body, err = l.object(r.Object)
		if objects.Lasts(err) || errors.Is(err, jetstream.ErrStreamNotFound) {
			l.violate(violationObject, r.Seq,
				"the result of row %d, at %d of the results stream, has no body: %v", r.Seq, r.At,
				err)
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the result of row %d: %w", r.Seq, err)
		}
		l.stats.Objects++
		h.sha = llm.Hash(r.Body)
	}
	if h.made = l.madeOf(r); h.made != nil {
		h.sha = h.made.sha
	}
	return nil
}

// findUnnamed notes the objects of the stage that no result names, in the buckets that
// results name and in the bucket of the settings. It looks at objects of rows up to the
// marks, since the object of a later row may wait for its result.
func (o *objectVerifier) findUnnamed(ctx context.Context, s *store, parts []*partitionVerifier, report *Report) error {
	if bucket := s.cfg.Result.Bucket; bucket != "" && o.named[bucket] == nil {
		o.named[bucket] = nil
	}
	for _, bucket := range slices.Sorted(maps.Keys(o.named)) {
		if err := o.findUnnamedIn(ctx, s, bucket, parts, report); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			report.note("bucket %s: whether it has objects that no result names was not checked: %v",
				bucket, err)
		}
	}
	return nil
}

func (o *objectVerifier) findUnnamedIn(ctx context.Context, s *store, bucket string, parts []*partitionVerifier, report *Report) error {
	var shown []string
	count, bytes := 0, uint64(0)
	all := stored.ReadOptions{Stream: streams.BucketStream(bucket), Filters: []string{streams.BucketObjects(bucket) + ">"}}
	err := stored.Each(ctx, s.js, all, func(m *jetstream.RawStreamMsg) error {
		var info jetstream.ObjectInfo
		if json.Unmarshal(m.Data, &info) != nil || info.Deleted || !mayBeNamed(info.Name, s.cfg.Name, parts) || o.named[bucket][digest([]byte(info.Name))] {
			return nil //nolint:nilerr // it is no object
		}
		bytes += info.Size
		if count++; count <= unnamedShown {
			shown = append(shown, info.Name)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if count > 0 {
		report.note("bucket %s has objects that no result names: %d, with %d bytes. A process that was killed has left them, or their results are gone; "+
			"nats object rm %s NAME removes one: %s", bucket, count, bytes, bucket, strings.Join(shown, ", "))
	}
	return nil
}

// mayBeNamed reports whether an object is of a row of the stage that has its result.
func mayBeNamed(name, stage string, logs []*partitionVerifier) bool {
	parts := strings.Split(name, "/")
	if len(parts) != 4 || parts[0] != stage { // stage, partition, row, hash
		return false
	}
	partition, err := strconv.Atoi(parts[1])
	row, rowErr := strconv.ParseUint(parts[2], 10, 64)
	return err == nil && rowErr == nil && partition >= 0 && partition < len(logs) && row <= logs[partition].log.mark
}
