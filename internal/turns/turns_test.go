package turns

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// item is of a key, has a place in it, and is told from its equals by id.
type item struct {
	key       string
	place, id int
}

func byPlace(a, b item) int { return cmp.Compare(a.place, b.place) }

// model is the same as [Queue] without any of its care: all items in one list, in the order of their places, and the
// keys in two.
type model struct {
	items        []item
	turns, aside []string
}

func (m *model) first(key string) int {
	return slices.IndexFunc(m.items, func(i item) bool { return i.key == key })
}

func (m *model) push(i item) {
	at := slices.IndexFunc(m.items, func(other item) bool { return byPlace(i, other) < 0 })
	if at < 0 {
		at = len(m.items)
	}
	had := m.first(i.key)
	m.items = slices.Insert(m.items, at, i)
	switch away := slices.Index(m.aside, i.key); {
	case had < 0:
		m.turns = append(m.turns, i.key)
	case away >= 0 && m.items[m.first(i.key)] == i:
		m.aside = slices.Delete(m.aside, away, away+1)
		m.turns = append(m.turns, i.key)
	}
}

func (m *model) pop() (i item) {
	at := m.first(m.turns[0])
	i = m.items[at]
	m.items = slices.Delete(m.items, at, at+1)
	m.turns = m.turns[1:]
	if m.first(i.key) >= 0 {
		m.turns = append(m.turns, i.key)
	}
	return i
}

func (m *model) remove(match func(item) bool) {
	m.items = slices.DeleteFunc(m.items, match)
	none := func(key string) bool { return m.first(key) < 0 }
	m.turns, m.aside = slices.DeleteFunc(m.turns, none), slices.DeleteFunc(m.aside, none)
}

func TestAQueueDoesAsAListWould(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, m, ids := New(byPlace), &model{}, 0
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				ids++
				i := item{fmt.Sprint("key ", rapid.IntRange(0, 5).Draw(t, "key")), rapid.IntRange(0, 9).Draw(t, "place"), ids}
				q.Push(i.key, i)
				m.push(i)
			},
			"push many": func(t *rapid.T) { // mostly in order, as rows come
				key := fmt.Sprint("key ", rapid.IntRange(0, 5).Draw(t, "key"))
				for n := range rapid.IntRange(1, 40).Draw(t, "items") {
					ids++
					i := item{key, n, ids}
					q.Push(key, i)
					m.push(i)
				}
			},
			"pop": func(t *rapid.T) {
				if len(m.turns) == 0 {
					t.Skip("no turn")
				}
				if first, got, want := q.First(), q.Pop(), m.pop(); got != want || first != want {
					t.Fatalf("got %v after %v as the first, want %v", got, first, want)
				}
			},
			"set aside": func(t *rapid.T) {
				if len(m.turns) == 0 {
					t.Skip("no turn")
				}
				q.SetAside()
				m.turns, m.aside = m.turns[1:], append(m.aside, m.turns[0])
			},
			"resume": func(*rapid.T) {
				q.Resume()
				m.turns, m.aside = append(m.aside, m.turns...), nil
			},
			"remove": func(t *rapid.T) {
				rest := rapid.IntRange(0, 2).Draw(t, "rest")
				match := func(i item) bool { return i.id%3 == rest }
				before := len(m.items)
				m.remove(match)
				if got := q.Remove(match); len(got) != before-len(m.items) || !slices.IsSortedFunc(got, func(a, b item) int {
					if a.key != b.key {
						return 0
					}
					return byPlace(a, b)
				}) {
					t.Fatalf("removed %v of %d", got, before)
				}
			},
			"": func(t *rapid.T) {
				if q.Len() != len(m.items) || q.Ready() != (len(m.turns) > 0) {
					t.Fatalf("%d items, ready %v, want %d and %d keys in turn", q.Len(), q.Ready(), len(m.items), len(m.turns))
				}
				if q.Ready() && q.First() != m.items[m.first(m.turns[0])] || !q.Ready() && q.First() != (item{}) {
					t.Fatalf("first %v, turns %v of %v", q.First(), m.turns, m.items)
				}
			},
		})
	})
}

// TestNoKeyGetsAheadOfAnother: between any two calls of Pop, the counts of two keys that have items all the while differ
// by at most one.
func TestNoKeyGetsAheadOfAnother(t *testing.T) {
	const keys = 5
	rapid.Check(t, func(t *rapid.T) {
		q := New[int](nil)
		var waiting [keys]int
		var ahead, most [keys][keys]int // of two keys, since both have items
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				key := rapid.IntRange(0, keys-1).Draw(t, "key")
				for range rapid.IntRange(1, 9).Draw(t, "items") {
					q.Push(fmt.Sprint(key), key)
					waiting[key]++
				}
			},
			"pop": func(t *rapid.T) {
				if !q.Ready() {
					t.Skip("empty")
				}
				key := q.Pop()
				for other := range keys {
					if other == key || waiting[other] == 0 {
						continue
					}
					ahead[key][other]++
					ahead[other][key]--
					most[key][other] = max(most[key][other], ahead[key][other])
					most[other][key] = max(most[other][key], ahead[other][key])
					if most[key][other]+most[other][key] > 1 {
						t.Fatalf("key %d got ahead of %d", key, other)
					}
				}
				if waiting[key]--; waiting[key] == 0 {
					for other := range keys {
						ahead[key][other], ahead[other][key], most[key][other], most[other][key] = 0, 0, 0, 0
					}
				}
			},
		})
	})
}

// What a queue keeps to be used again is bounded, and in steady state nothing is allocated.
func TestAQueueOfChangingKeysAllocatesNothing(t *testing.T) {
	for _, waiting := range []int{1, 100, 1000} {
		names := make([]string, 10_000)
		for i := range names {
			names[i] = fmt.Sprint("customer ", i)
		}
		q := New[int](nil)
		next := 0
		push := func() {
			q.Push(names[next%len(names)], next)
			next++
		}
		for range waiting {
			push()
		}
		turn := func() {
			for range 100 {
				push()
				q.Pop()
			}
		}
		for range 1000 {
			turn()
		}
		if n := testing.AllocsPerRun(100, turn); n > 0 {
			t.Errorf("%v allocations for 100 items, want none: %d wait", n, waiting)
		}
		if len(q.lines) != waiting || len(q.idle) > 1 {
			t.Errorf("%d lines are in use and %d kept, want %d and at most one", len(q.lines), len(q.idle), waiting)
		}
	}
}

func TestWhatAQueueKeepsIsBounded(t *testing.T) {
	q := New[int](nil)
	for key := range 3000 {
		for n := range 100 {
			q.Push(fmt.Sprint(key), n)
		}
	}
	for q.Ready() {
		q.Pop()
	}
	room := 0
	for _, l := range q.idle {
		room += cap(l.items)
	}
	if room > idleRoomMax || room != q.room || len(q.idle) > idleLinesMax || len(q.lines) > 0 {
		t.Errorf("%d lines with room for %d items are kept, %d in use", len(q.idle), room, len(q.lines))
	}
	q.Push("again", 1)
	if q.Pop(); q.room > idleRoomMax {
		t.Errorf("room for %d items", q.room)
	}
}

func BenchmarkQueue(b *testing.B) {
	for _, keys := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			names := make([]string, keys)
			for i := range names {
				names[i] = fmt.Sprint("customer ", i)
			}
			q, n := New[int](nil), 0
			for range 1024 {
				q.Push(names[n%keys], n)
				n++
			}
			b.ReportAllocs()
			for b.Loop() {
				q.Push(names[n%keys], n)
				n++
				q.Pop()
			}
		})
	}
}
