package main

import (
	"context"
	"path/filepath"
)

// cluster compares, on three servers with streams of three replicas, the stage that
// groups its appends with the stage on streams that take no groups.
func (s *site) cluster(ctx context.Context, rounds int) error {
	three := &site{dir: filepath.Join(s.dir, "cluster"), self: s.self, stage: s.stage, nats: s.nats}
	defer three.close()
	if err := three.start(ctx, 3); err != nil {
		return err
	}
	for _, sc := range []*scenario{
		{name: "cluster", about: "three servers, three replicas, instant LLM, pool 64", rows: 12_000, pool: 64, rowBytes: 1024, contenders: []string{"stage", "stage" + oneByOne, "dh"}},
		{name: "cluster, no LLM", about: "three servers, three replicas, rows answered at once", rows: 12_000, pool: 64, rowBytes: 1024, contenders: []string{"noop", "noop" + oneByOne}},
	} {
		if err := three.table(ctx, sc, rounds); err != nil {
			return err
		}
	}
	return nil
}
