package streams

import "testing"

func TestAViolationOfAnotherSubjectIsNotNamed(t *testing.T) {
	const violation = "nats: permissions violation: Permissions Violation for "
	for _, tt := range []struct {
		text, prefix string
		subjects     []string
		want         bool
	}{
		{violation + `Subscription to "$SRV.STATS"`, "", []string{"$JS.>"}, false},
		{violation + `Publish to "llm-stage.stage.replicas"`, "", []string{"$JS.>"}, false},
		{violation + `Publish to "$JS.API.STREAM.INFO.ROWS"`, "", []string{"$JS.>"}, true},
		{violation + `Publish to "$JS.API.STREAM.INFO.ROWS"`, "", []string{"audit.stage.0.row"}, false},
		{violation + `Publish to "results.stage.0.claim"`, "", []string{"$JS.>", "results.stage.0.>"}, true},
		{violation + `Subscription to "_INBOX.abc.*"`, "", []string{"$JS.>"}, true},
		{violation + `Subscription to "_INBOX.abc.*"`, "_app", []string{"$JS.>"}, false},
		{violation + `Subscription to "_app.abc.*"`, "_app", []string{"$JS.>"}, true},
	} {
		if got := concerns(tt.text, tt.prefix, tt.subjects); got != tt.want {
			t.Errorf("%s, inbox %q, subjects %q: %v", tt.text, tt.prefix, tt.subjects, got)
		}
	}
}
