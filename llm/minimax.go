package llm

// baseResp is MiniMax's member base_resp, which every reply of its has: in an error it comes inside a 200, beside choices
// of null.
type baseResp struct {
	Code    looseText `json:"status_code"`
	Message looseText `json:"status_msg"`
}

// miniMaxCodes are those of its error codes that a chat can meet. They have a list of their own: other providers give
// other meanings to the same numbers.
var miniMaxCodes = map[string]Fault{
	"1000": {Status: 500}, // unknown error
	"1001": {Status: 504}, // request timeout
	"1002": {Status: 429}, // rate limit
	"1004": {Status: 401}, // not authorized
	"1008": {SpendLimit: true},
	"1013": {Status: 500}, // internal error
	"1024": {Status: 500}, // internal error
	"1026": {Flagged: true},
	"1027": {Flagged: true}, // the answer
	"1033": {Status: 500},   // system error
	"1039": {Status: 429},   // tokens a minute
	"1041": {Status: 429},   // connections
	"1042": {Status: 413},   // too many invisible characters, so about this row alone
	"2013": {Status: 400},   // invalid parameters
	"2045": {Status: 429},   // requests that grow too fast
	"2049": {Status: 401},   // invalid key
	"2056": {Status: 429},   // the limit of five hours
}

// fault returns the error that it reports, or nil.
func (b *baseResp) fault() *Fault {
	if b.Code == "" || b.Code == "0" {
		return nil
	}
	f := miniMaxCodes[string(b.Code)]
	f.Code, f.Message = string(b.Code), string(b.Message)
	return &f
}
