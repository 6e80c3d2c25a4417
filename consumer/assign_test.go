package consumer

import (
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

func TestAssignGivesEachItsShareAndMovesAsLittleAsItCan(t *testing.T) {
	tests := []struct {
		name       string
		members    []member
		partitions int
		want       []string
	}{
		{"nobody", nil, 2, []string{"", ""}},
		{"alone", []member{{id: "a"}}, 3, []string{"a", "a", "a"}},
		{"all start at once", []member{{id: "b"}, {id: "a"}, {id: "c"}}, 4, []string{"a", "a", "b", "c"}},
		{"one joins", []member{{"a", []int{0, 1, 2, 3}}, {"b", nil}}, 4, []string{"a", "a", "b", "b"}},
		{"one joins two", []member{{"a", []int{0, 2}}, {"b", []int{3, 1}}, {"c", nil}}, 4, []string{"a", "b", "a", "c"}},
		{"one dies", []member{{"a", []int{0, 1}}, {"c", []int{4}}}, 6, []string{"a", "a", "c", "a", "c", "c"}},
		{"the larger share stays where it is", []member{{"a", []int{0}}, {"b", []int{1, 2}}}, 3, []string{"a", "b", "b"}},
		{"more members than partitions", []member{{"a", nil}, {"b", []int{1}}, {"c", nil}}, 2, []string{"a", "b"}},
		{"two say that they own it", []member{{"a", []int{0, 1}}, {"b", []int{0, 1}}}, 2, []string{"a", "b"}},
		{"one that talks nonsense", []member{{"a", []int{-1, 9, 0, 0}}, {"b", nil}}, 2, []string{"a", "b"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := assign(tt.members, tt.partitions); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// TestAssignKeepsItsRules draws who owns what, each partition by one member at most.
func TestAssignKeepsItsRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions := rapid.IntRange(1, 40).Draw(t, "partitions")
		members := make([]member, rapid.IntRange(1, 12).Draw(t, "members"))
		for i := range members {
			members[i].id = strconv.Itoa(i)
		}
		for p := range partitions {
			if m := rapid.IntRange(-1, len(members)-1).Draw(t, "owner of "+strconv.Itoa(p)); m >= 0 {
				members[m].owned = append(members[m].owned, p)
			}
		}
		to := assign(members, partitions)
		few, moved := partitions/len(members), 0
		var owned []int // how many each owns, and will have
		for _, m := range members {
			has := 0
			for p := range to {
				if to[p] == m.id {
					has++
				} else if slices.Contains(m.owned, p) {
					moved++
				}
			}
			if has != few && (has != few+1 || partitions%len(members) == 0) {
				t.Fatalf("%s has %d of %d partitions among %d", m.id, has, partitions, len(members))
			}
			owned = append(owned, len(m.owned))
		}
		// The fewest that must move: what each owns beyond its share, the larger shares going to those that own most.
		slices.SortFunc(owned, func(a, b int) int { return b - a })
		least := 0
		for i, n := range owned {
			share := few
			if i < partitions%len(members) {
				share++
			}
			least += max(0, n-share)
		}
		if moved != least {
			t.Fatalf("%d partitions move, %d must: %v to %v", moved, least, members, to)
		}
		// Done once, there is nothing more to do.
		after := make([]member, len(members))
		for i := range after {
			after[i].id = members[i].id
			for p := range to {
				if to[p] == after[i].id {
					after[i].owned = append(after[i].owned, p)
				}
			}
		}
		slices.Reverse(after)
		if again := assign(after, partitions); !slices.Equal(again, to) {
			t.Fatalf("it would move on from %v to %v", to, again)
		}
	})
}
