package llmtest

import (
	"context"
	"net/http"
)

// Bearer authorises calls by one token, as an identity of a cloud does.
type Bearer string

// Authorize implements llm.Authorizer, of package llm.
func (b Bearer) Authorize(_ context.Context, r *http.Request, _ []byte) (int, error) {
	r.Header.Set("Authorization", "Bearer "+string(b))
	return 1, nil
}

// Outdated reports that the token stays valid.
func (Bearer) Outdated(int) bool { return false }

// Account names who has the token.
func (Bearer) Account() string { return "somebody" }
