package auditlog

import "slices"

// Erase removes what the event holds of the row's content: bodies, their hashes and error
// texts, which may quote them. Ids, times, counts, tokens and cost stay, so sums over
// events are what they were. The caller's event is changed.
func (c *Call) Erase() {
	c.Request, c.Response = nil, nil
	c.RequestHash, c.ResponseHash = "", ""
	c.Error, c.Erased = "", true
}

// Erase removes what the event holds of the row's content: its key, the hashes of the row,
// its result and its calls, the salt that keeps them from being guessed, and error texts.
// The rest stays, as in [Call.Erase]. The caller's event is changed.
func (r *Row) Erase() {
	r.Key, r.Erased = nil, true
	r.VariablesHash, r.ResultHash, r.CallsHash, r.Salt = "", "", "", ""
	r.Errors = slices.Clone(r.Errors)
	for i := range r.Errors {
		r.Errors[i].Error = ""
	}
}
