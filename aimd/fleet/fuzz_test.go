package fleet

import (
	"testing"
	"time"

	"github.com/llm-stage/stage/aimd"
)

// No message, whoever sent it, makes a leader or a member panic, hang or stop.
func FuzzHear(f *testing.F) {
	f.Add([]byte(`{"plan":1,"leader":"a","term":3,"turns":5,"curve":[1,2,3,4,5,6,7,8,9,10],"rate":10,"ring":1,"places":[{"id":"m","s":0.5,"o":0.5,"n":1}]}`))
	f.Add([]byte(`{"plan":1,"leader":"a","term":3,"curve":[1,2,3,4,5,6,7,8,9,10],"rate":10,"belief":{"limit":20,"low":18,"high":22,"met_ago":1e8,"in_flight":9,"random":1}}`))
	f.Add([]byte(`{"report":1,"id":"b","weight":1,"seq":1,"sent":5,"refusals":[{"turn":3,"epoch":1,"term":1,"retry_after":5}]}`))
	f.Add([]byte(`{"report":1,"id":"b","weight":1,"seq":1,"rpm":1,"refusals":[{"turn":3,"epoch":1,"term":1,"reset":1e9}]}`))
	f.Add([]byte(`{"hello":1,"id":"c"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := New(Config{ID: "m", Law: aimd.DefaultAdaptive(8)})
		if err != nil {
			t.Fatal(err)
		}
		now, calls := time.Unix(0, 0), 0
		run := func(ticks int, each time.Duration) {
			for range ticks {
				now = now.Add(each)
				out, _ := m.Tick(now)
				for _, echo := range out {
					if err := m.Hear(now, echo); err != nil {
						t.Fatalf("its own message %s: %v", echo, err)
					}
				}
				if !m.Next(now, 0).After(now) {
					calls++
					m.Accepted(now, m.Sent(now, 1))
				}
			}
		}
		run(10, 100*time.Millisecond)
		_ = m.Hear(now, body)
		run(10, 20*time.Millisecond)
		_ = m.Hear(now, body)
		run(30, 100*time.Millisecond)
		calls = 0
		run(30, 100*time.Millisecond)
		if calls == 0 { // one message can pause the calls for a minute
			run(900, 100*time.Millisecond)
		}
		if calls == 0 {
			t.Error("no call in 90 s")
		}
	})
}
