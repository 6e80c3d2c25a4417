package executor

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestFlightsRememberABoundedNumber(t *testing.T) {
	f := newFlights(time.Hour)
	for i := range 3 * landedMax {
		j := &job{key: fmt.Sprint(i)}
		if known, leads := f.join(j); known != nil || !leads {
			t.Fatalf("key %d is known", i)
		}
		f.land(j.key, &answer{Text: strings.Repeat("x", 10<<10)})
		f.end(j.key)
	}
	if len(f.air) != len(f.landed) || f.bytes > landedBytesMax || len(f.landed) > landedMax || len(f.landed) < landedBytesMax/(10<<10)-1 {
		t.Errorf("%d in the air, %d landed, %d bytes", len(f.air), len(f.landed), f.bytes)
	}
}
