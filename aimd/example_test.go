package aimd_test

import (
	"fmt"

	"github.com/llm-stage/stage/aimd"
)

func Example() {
	throttle, err := aimd.NewThrottle(aimd.Default())
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, overloaded := range []bool{false, true, true, true, false, false} {
		// Here a caller waits for throttle.Delay() and makes its call.
		if overloaded {
			throttle.CapacityError()
		} else {
			throttle.Success()
		}
		fmt.Println(overloaded, throttle.Delay())
	}
	// Output:
	// false 0s
	// true 50ms
	// true 100ms
	// true 200ms
	// false 150ms
	// false 100ms
}
