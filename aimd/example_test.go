package aimd_test

import (
	"fmt"
	"time"

	"github.com/llm-stage/stage/aimd"
)

func Example() {
	law, err := aimd.NewClassic(aimd.Default())
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, overloaded := range []bool{false, true, true, true, false, false} {
		now = law.Next(now, 0) // here a caller waits until then, and makes its call
		ticket := law.Sent(now, 1)
		if overloaded {
			law.Rejected(now, ticket, aimd.Hint{})
		} else {
			law.Accepted(now, ticket)
		}
		fmt.Println(overloaded, law.Stats().CurrentDelay)
	}
	// Output:
	// false 0s
	// true 50ms
	// true 100ms
	// true 200ms
	// false 150ms
	// false 100ms
}
