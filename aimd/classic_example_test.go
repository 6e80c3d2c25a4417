package aimd_test

import (
	"fmt"
	"time"

	"github.com/llm-stage/stage/aimd"
)

// The classic law doubles the delay with each refusal and shortens it by a step with each
// success.
func ExampleClassic() {
	law, err := aimd.NewClassic(aimd.Default())
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, refused := range []bool{false, true, true, true, false, false} {
		now = law.Next(now, 0)
		ticket := law.Sent(now, 1)
		if refused {
			law.Rejected(now, ticket, aimd.Hint{})
		} else {
			law.Accepted(now, ticket)
		}
		fmt.Println(refused, law.Stats().CurrentDelay)
	}
	// Output:
	// false 0s
	// true 50ms
	// true 100ms
	// true 200ms
	// false 150ms
	// false 100ms
}
