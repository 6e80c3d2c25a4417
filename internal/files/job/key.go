package job

import (
	"context"
	"log/slog"
	"slices"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/files/load"
)

// checkKey warns if all rows seem to have the same key, for example because of a misspelt
// --order-key field.custmer. Their results would be in the order of the rows then, and
// wait for each other, though the user has asked for another order. It waits for the
// first row.
func (p *Pipeline) checkKey(ctx context.Context) {
	rows, ok := p.Source.(*load.FileRows)
	if order := p.Stage.Cfg.Order; !ok || order.Mode != streams.OrderKey {
		return
	}
	key := slog.String("order_key", p.Stage.Cfg.Order.Key.String())
	field, ok := p.Stage.Cfg.Order.Key.Field()
	if !ok {
		p.Stage.Log.Warn("the rows of a file all have the same subject and no headers, "+
			"so they have one key: give --order-key field.NAME", key)
		return
	}
	names, all, err := rows.FirstColumns(ctx)
	switch {
	case err != nil || len(names) == 0 || slices.Contains(names, field):
	case all:
		p.Stage.Log.Warn("the input has no such column, so all rows have one key: "+
			"check --order-key", key)
	default:
		p.Stage.Log.Warn("the first row has no such member, and rows without it have one key: "+
			"check --order-key", key)
	}
}
