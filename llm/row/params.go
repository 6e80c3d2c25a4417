package row

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm"
)

// Params merges the object in the row's member with this name over an extra body, see
// [llm.Request]. A row without the member, or with null, changes nothing. Anything but an
// object, and a member that an extra body may not have, is an [*llm.Error] with
// [llm.ReasonInvalidRow].
func (r *Row) Params(name string, extraBody json.RawMessage) (json.RawMessage, error) {
	params := r.member(name)
	if len(params) == 0 || params[0] == 'n' {
		return extraBody, nil
	}
	if params[0] != '{' {
		return nil, invalidRow(r.body, fmt.Errorf("the member %q is no object: it holds members "+
			"of the request", name))
	}
	if err := llm.ValidateExtraBody(params); err != nil {
		problem := strings.TrimPrefix(err.Error(), "extra body: ")
		if e, ok := errors.AsType[*llm.ExtraBodyError](err); ok { // what it advises is for settings
			problem = fmt.Sprintf("%q may not be set by a row", e.Member)
		}
		return nil, invalidRow(r.body, fmt.Errorf("the member %q: %s", name, problem))
	}
	if len(extraBody) == 0 {
		return params, nil
	}
	return jsonbytes.AppendMerged(nil, extraBody, params), nil
}
