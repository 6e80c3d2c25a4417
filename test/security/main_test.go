package security_test

import (
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
)

func TestMain(m *testing.M) {
	stagetest.Wait()
	stagetest.Main(m)
}
