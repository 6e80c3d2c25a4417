package cli

import "testing"

func TestTheShareOfFailedRowsIsAPercentage(t *testing.T) {
	for text, want := range map[string]string{
		"0": "0/1", "5": "5/1", "5%": "5/1", "0.5": "1/2", "100": "100/1", "007": "7/1", "99.999999": "99999999/1000000",
		"": "", "%": "", "-1": "", "+1": "", "101": "", "100.000001": "", "1e2": "", "NaN": "", "1e999999999": "", "Inf": "", "1/2": "", "0x10": "",
		"five": "", "5 %": "", "5%%": "", ".5": "", "5.": "", "1,5": "", "0.0000001": "",
	} {
		var f failOnError
		err, got := f.Set(text), ""
		if err == nil {
			got = f.allowed.String()
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestACommandToPasteNamesWhereTheEventsAre(t *testing.T) {
	flags := &configFlags{
		envFiles: []string{"a b"},
		values:   map[string]string{"STAGE_AUDIT_SUBJECT": "my audit", "STAGE_DATA_DIR": "other", "STAGE_DATA_SYNC": "1s", "STAGE_POOL_SIZE": "8", "STAGE_NATS_URL": ""},
	}
	got := flags.whereJob("it's/j")
	want := `--job j --data-dir 'it'\''s' --env-file 'a b' '--audit-subject=my audit'`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
