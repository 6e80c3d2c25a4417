package executor

import (
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/llm/row"
)

var _ consumer.Fitter = (*Executor)(nil)

// ResultTooLarge implements [consumer.Fitter].
func (e *Executor) ResultTooLarge(in *consumer.Row, size, room int) []byte {
	parsed, err := e.parse(in)
	if err != nil {
		parsed = nil // the body is no row
	}
	return e.prompt.errorBody(parsed, in, row.ResultTooLarge(size, room, e.prompt.ownServer), nil)
}
