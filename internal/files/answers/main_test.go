package answers

import (
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
)

func TestMain(m *testing.M) { stagetest.Main(m) }
