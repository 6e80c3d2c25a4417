package consumer

import "testing"

// In a domain the server may put that and a hash of the account in front.
func TestTheNumbersOfAnAckAreFoundInBothOfItsForms(t *testing.T) {
	for before, after := range map[string]string{
		"$JS.ACK.ROWS.stage-0.":               "",
		"$JS.ACK.edge.hGqY4v.ROWS.stage-0.":   "",
		"$JS.ACK._.hGqY4v.ROWS.stage-0.":      ".token",
		"$JS.ACK.edge.hGqY4v.ROWS.stage-0-1.": ".token",
	} {
		ack := before + "3.70.12.1700000000000000000.5" + after
		if seq, delivered := deliveryOf(ack); seq != 12 || delivered != 3 {
			t.Errorf("%s: delivery %d of consumer sequence %d", ack, delivered, seq)
		}
		in := &intake{ackForm: ack}
		if got, want := in.ackOf(71, &awayRow{delivered: 1, consumer: 13}), before+"1.71.13.1700000000000000000.5"+after; got != want {
			t.Errorf("%s: got %s, want %s", ack, got, want)
		}
	}
}
