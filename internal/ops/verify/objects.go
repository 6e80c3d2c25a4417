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

// objectVerifier knows which objects the results of the stage name. It finds those that
// none names, which are no violation: a killed process leaves what it had in hand.
//
// It holds eight bytes for each result whose body is an object.
type objectVerifier struct {
	named map[string]map[uint64]bool // by bucket: hashes of names
}

// unnamedShown is how many objects that no result names are shown.
const unnamedShown = 5

func (o *objectVerifier) name(ref *objects.Ref) {
	if o.named[ref.Bucket] == nil {
		o.named[ref.Bucket] = make(map[uint64]bool)
	}
	o.named[ref.Bucket][digest([]byte(ref.Name))] = true
}

// readBody notes what the body of a result shows. A body that is an object is read always:
// nothing else shows that it is there.
func (v *partitionVerifier) readBody(h *verifiedRow) (err error) {
	r := h.ResultRow
	if h.erased {
		return nil
	}
	if r.Object != nil {
		v.objects.name(r.Object)
		r.Body, err = v.object(r.Object)
		if objects.Lasts(err) || errors.Is(err, jetstream.ErrStreamNotFound) {
			v.violate(violationObject, r.Seq,
				"the result of row %d, at %d of the results stream, has no body: %v", r.Seq, r.At,
				err)
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the result of row %d: %w", r.Seq, err)
		}
		v.stats.Objects++
		h.sha = llm.Hash(r.Body)
	}
	if h.made = v.madeOf(r); h.made != nil {
		h.sha = h.made.sha
	}
	return nil
}

// findUnnamed notes the objects of the stage that no result names, in the buckets that
// results name and in the one of the settings. It goes by rows up to the marks: the object
// of a later one may wait for its result.
func (v *verification) findUnnamed(ctx context.Context) error {
	if v.cfg.Result.Bucket != "" && v.objects.named[v.cfg.Result.Bucket] == nil {
		v.objects.named[v.cfg.Result.Bucket] = nil
	}
	for _, bucket := range slices.Sorted(maps.Keys(v.objects.named)) {
		if err := v.findUnnamedIn(ctx, bucket); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			v.report.note("bucket %s: whether it has objects that no result names was not checked: %v",
				bucket, err)
		}
	}
	return nil
}

func (v *verification) findUnnamedIn(ctx context.Context, bucket string) error {
	r, err := stored.Open(ctx, v.js, stored.ReadOptions{Stream: streams.BucketStream(bucket), Filters: []string{streams.BucketObjects(bucket) + ">"}})
	if err != nil {
		return err
	}
	defer r.Close()
	var shown []string
	count, bytes := 0, uint64(0)
	for {
		m, err := r.Next(ctx)
		if err != nil {
			return err
		}
		if m == nil {
			break
		}
		var info jetstream.ObjectInfo
		if json.Unmarshal(m.Data, &info) != nil || info.Deleted || !v.mayBeNamed(info.Name) || v.objects.named[bucket][digest([]byte(info.Name))] {
			continue
		}
		bytes += info.Size
		if count++; count <= unnamedShown {
			shown = append(shown, info.Name)
		}
	}
	if count > 0 {
		v.report.note("bucket %s has objects that no result names: %d, with %d bytes. A process that was killed has left them, or their results are gone; "+
			"nats object rm %s NAME removes one: %s", bucket, count, bytes, bucket, strings.Join(shown, ", "))
	}
	return nil
}

// mayBeNamed reports whether an object is of a row of the stage that has its result.
func (v *verification) mayBeNamed(name string) bool {
	parts := strings.Split(name, "/")
	if len(parts) != 4 || parts[0] != v.cfg.Name { // stage, partition, row, hash
		return false
	}
	partition, err := strconv.Atoi(parts[1])
	row, rowErr := strconv.ParseUint(parts[2], 10, 64)
	return err == nil && rowErr == nil && partition >= 0 && partition < len(v.parts) && row <= v.parts[partition].mark
}
