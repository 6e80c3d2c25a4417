package main

import (
	"io"
	"maps"
	"testing"

	"github.com/llm-stage/stage/internal/lab/llmtest/batches"
)

func TestTheCheckOfBatchesFindsWhatMustNotBe(t *testing.T) {
	p := mustPlan(t, "-lane", "-api", "anthropic", "-seed", "1")
	all := []row{{seq: 21, n: 12}, {seq: 24, n: 14}, {seq: 25, n: 15}} // number 14 has a deadline
	type found struct {
		batches []batches.Info
		billed  map[string]int
		calls   map[int]int
	}
	for _, c := range []struct {
		name  string
		spoil func(*found)
		want  map[string]int
	}{
		{"nothing", func(*found) {}, map[string]int{}},
		{"a line billed twice", func(f *found) { f.billed["a-21"] = 2 }, map[string]int{"billed": 1}},
		{"a row in two batches", func(f *found) { f.billed["b-21"] = 1 }, map[string]int{"billed": 1}},
		{"a row in a batch that nobody could know of", func(f *found) { f.billed["c-21"] = 1 }, map[string]int{}},
		{"a row in both lanes", func(f *found) { f.calls[12] = 1 }, map[string]int{"billed": 1}},
		{"a row in both lanes by its deadline", func(f *found) { f.calls[14] = 1 }, map[string]int{}},
		{"a batch submitted twice", func(f *found) { f.batches[1].First = "a-21" }, map[string]int{"twice": 1}},
		{"a batch without an intent", func(f *found) { f.batches[1].First = "d-21" }, map[string]int{"orphan": 1}},
		{"a batch that no record names", func(f *found) { f.batches[1].ID = "3" }, map[string]int{"orphan": 1}},
		{"a batch that runs", func(f *found) { f.batches[1].State = "in_progress" }, map[string]int{"orphan": 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &found{
				batches: []batches.Info{{ID: "1", First: "a-21", State: "completed"}, {ID: "2", First: "b-25", State: "expired"}},
				billed:  map[string]int{"a-21": 1, "a-24": 1, "b-25": 1}, calls: map[int]int{},
			}
			c.spoil(f)
			count := newLaneCount()
			for _, token := range []string{"a", "b", "c"} {
				count.recorded[token] = struct{}{}
			}
			count.known["1"], count.known["2"], count.uncertain["c"] = struct{}{}, struct{}{}, struct{}{}
			s := &site{plan: p, notes: newNotes(io.Discard, nil), model: &model{calls: f.calls}}
			s.checkBatches(count, f.batches)
			s.checkBilled(count, f.billed, all)
			if !maps.Equal(s.notes.violations, c.want) {
				t.Errorf("found %v, want %v", s.notes.violations, c.want)
			}
		})
	}
}
