package consumer_test

import (
	"strings"
	"testing"

	"github.com/llm-stage/stage/consumer"
)

// A user reads the problems of a configuration in one order, however often it is tried.
func TestTheProblemsOfAConfigurationKeepTheirOrder(t *testing.T) {
	for range 100 {
		_, err := consumer.New(nil, consumer.Config{Lane: struct{ consumer.Lane }{}})
		var empty []string
		for line := range strings.Lines(err.Error()) {
			if name, found := strings.CutSuffix(strings.TrimSpace(line), " is empty"); found {
				empty = append(empty, strings.TrimPrefix(name, "consumer: "))
			}
		}
		if got, want := strings.Join(empty, " "), "Name InputStream InputSubject ResultStream ResultSubject"; got != want {
			t.Fatalf("got %s, want %s, of:\n%v", got, want, err)
		}
	}
}
