package aimd_test

import (
	"fmt"
	"time"

	"github.com/llm-stage/stage/aimd"
)

func ExampleAdaptive() {
	law, err := aimd.NewAdaptive(aimd.DefaultAdaptive(8))
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var tickets []aimd.Ticket
	for range 4 {
		now = law.Next(now, len(tickets)) // here a caller waits until then, and makes its call
		tickets = append(tickets, law.Sent(now, len(tickets)+1))
		fmt.Println(law.Phase(), law.Stats().CurrentDelay.Round(time.Millisecond))
	}
	for _, refused := range tickets[2:] { // a single one could be an accident
		law.Rejected(now.Add(60*time.Millisecond), refused, aimd.Hint{})
	}
	fmt.Println(law.Phase(), law.Stats().CurrentDelay.Round(time.Millisecond))
	// Output:
	// start 125ms
	// start 113ms
	// start 101ms
	// start 91ms
	// drain 223ms
}
