package llm

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// FailureReason reads the reason out of an error result whose reply goes into field; empty: there is none. Results of a
// run with another field are understood too.
func FailureReason(body []byte, field string) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil {
		return ""
	}
	var fault struct {
		Reason string `json:"reason"`
	}
	if json.Unmarshal(fields[field+"_error"], &fault) == nil && fault.Reason != "" {
		return fault.Reason
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) { // the field had another name in that run
		if strings.HasSuffix(name, "_error") && json.Unmarshal(fields[name], &fault) == nil && fault.Reason != "" {
			return fault.Reason
		}
	}
	return ""
}
