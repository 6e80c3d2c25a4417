package executor

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestFlightsRememberABoundedNumber(t *testing.T) {
	f := newFlights(time.Hour)
	for i := range 3 * rememberedMax {
		j := &job{key: fmt.Sprint(i)}
		if known, leads := f.join(j); known != nil || !leads {
			t.Fatalf("key %d is known", i)
		}
		f.resolve(j.key, &answer{Text: strings.Repeat("x", 10<<10)})
		f.finish(j.key)
	}
	if len(f.byKey) != len(f.remembered) || f.bytes > rememberedBytesMax || len(f.remembered) > rememberedMax || len(f.remembered) < rememberedBytesMax/(10<<10)-1 {
		t.Errorf("%d flights, %d remembered, %d bytes", len(f.byKey), len(f.remembered), f.bytes)
	}
}
