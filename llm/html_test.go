package llm

import (
	"strings"
	"testing"
)

func TestPageIsNamedByItsTitle(t *testing.T) {
	tests := []struct {
		status     int
		body, want string
	}{
		{200, "<html><head><TITLE lang=en>\n Sign in &amp; go\n - Acme </TITLE>", `the reply is an HTML page ("Sign in & go - Acme"), not JSON; check the base URL`},
		{200, "<!doctype HTML><title>" + strings.Repeat("ä", 100) + "</title>", `the reply is an HTML page ("` + strings.Repeat("ä", 40) + `…"), not JSON; check the base URL`},
		{200, "<html><body>hello", `reply is not one JSON value: "<html><body>hello"`},
		{200, "<xml><title>no page</title>", `reply is not one JSON value: "<xml><title>no page</title>"`},
		{200, " \n", "the reply is empty"},
		{405, "<html><title>Sign in</title>", `405: Method Not Allowed (HTML page "Sign in")`},
		{405, "<html><title>405 method not allowed</title>", "405: Method Not Allowed"},
		{522, "<html><title>Connection timed out</title>", `522: (HTML page "Connection timed out")`},
	}
	for _, tt := range tests {
		_, err := ParseReply(ChatCompletions{}, Known{}, now, tt.status, nil, []byte(tt.body))
		if err == nil || err.Error() != tt.want {
			t.Errorf("%d %.60q:\n got %v\nwant %s", tt.status, tt.body, err, tt.want)
		}
	}
}
