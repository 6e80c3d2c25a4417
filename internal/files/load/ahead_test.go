package load

import (
	"io"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

func TestRowsDoNotWaitForTheOnesAfterThem(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		n := 0
		a := readAhead(func() (*nats.Msg, error) {
			switch n++; n {
			case 3:
				time.Sleep(time.Hour)
			case 5:
				return nil, io.EOF
			}
			return &nats.Msg{Data: []byte("{}")}, nil
		})
		defer a.stop()
		l := &Loader{batch: true, group: 500, entrances: make([]entrance, 1)}
		began := time.Now()
		for i, want := range []struct {
			rows  int
			eof   bool
			after time.Duration
		}{{2, false, groupWait}, {2, true, time.Hour}} {
			group, eof, err := l.gather(0, a.group(t.Context()))
			if took := time.Since(began); len(group) != want.rows || eof != want.eof || err != nil || took != want.after {
				t.Errorf("group %d: %d rows after %v, end %v (%v)", i, len(group), took, eof, err)
			}
		}
	})
}
