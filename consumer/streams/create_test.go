package streams_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// The stream of results is created without fast batches only where the server refuses them.
// A refusal for want of a leader is over soon, and no stage changes a stream that exists.
func TestWhichRefusalTakesTheFastBatchesOutOfAStream(t *testing.T) {
	for _, tt := range []struct {
		code int
		want []bool // whether each attempt asks for fast batches
	}{
		{10008, []bool{true}},        // no leader
		{10025, []bool{true, false}}, // the server does not know the setting
	} {
		t.Run(fmt.Sprint(tt.code), func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				srv := stagetest.Core(t)
				nc, server := stagetest.Join(t, srv), stagetest.Join(t, srv)
				refuse := func(code int) []byte {
					return fmt.Appendf(nil, `{"error":{"code":500,"err_code":%d,"description":"no"}}`, code)
				}
				var attempts []bool
				for subject, answer := range map[string]func(*nats.Msg) []byte{
					"$JS.API.STREAM.INFO.*": func(*nats.Msg) []byte { return refuse(10059) },
					"$JS.API.STREAM.CREATE.*": func(m *nats.Msg) []byte {
						var asked struct {
							Fast bool `json:"allow_batched"`
						}
						if err := json.Unmarshal(m.Data, &asked); err != nil {
							t.Error(err)
						}
						if strings.HasSuffix(m.Subject, ".RESULTS") {
							attempts = append(attempts, asked.Fast)
						}
						return refuse(tt.code)
					},
				} {
					stagetest.Value(server.Subscribe(subject, func(m *nats.Msg) { _ = m.Respond(answer(m)) }))(t)
				}
				stagetest.Must(t, server.Flush())
				err := streams.Ensure(t.Context(), nc, streams.Config{
					Name: "stage", InputStream: "ROWS", InputSubject: "rows.>", ResultStream: "RESULTS", ResultSubject: "results",
					AuditStream: "AUDIT", AuditSubject: "audit", Partitions: 1, Create: true, Memory: true,
				})
				if err == nil {
					t.Error("no error")
				}
				if !slices.Equal(attempts, tt.want) {
					t.Errorf("attempts with fast batches: %v, want %v", attempts, tt.want)
				}
			})
		})
	}
}
