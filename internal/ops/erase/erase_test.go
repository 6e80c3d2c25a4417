package erase_test

import (
	"testing"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
)

func TestNothingOfARowIsLeft(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{}, map[string]string{"STAGE_DEDUPE": "stored"})
		s.rows("one", "two of Erika Mustermann", "three")
		s.work(3, nil)
		before := s.usage()
		s.erase(rowsOf(2))
		if files := s.holds("Mustermann"); len(files) > 0 {
			t.Errorf("the text is still in %q", files)
		}
		if after := s.usage(); after != before {
			t.Errorf("usage was %s, and is %s", before, after)
		}
	})
}
