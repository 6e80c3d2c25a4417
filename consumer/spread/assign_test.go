package spread

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
		{"all start at once", []member{{id: "b"}, {id: "a"}, {id: "c"}}, 4, []string{"a", "b", "c", "a"}},
		{"some have begun, the rest stay where they were", []member{{id: "b", owned: []int{1}}, {id: "a", owned: []int{3}}, {id: "c"}}, 4, []string{"a", "b", "c", "a"}},
		{"one joins", []member{{id: "a", owned: []int{0, 1, 2, 3}}, {id: "b"}}, 4, []string{"a", "a", "b", "b"}},
		{"one joins two", []member{{id: "a", owned: []int{0, 2}}, {id: "b", owned: []int{3, 1}}, {id: "c"}}, 4, []string{"a", "b", "a", "c"}},
		{"one dies", []member{{id: "a", owned: []int{0, 1}}, {id: "c", owned: []int{4}}}, 6, []string{"a", "a", "a", "c", "c", "c"}},
		{"the larger share stays where it is", []member{{id: "a", owned: []int{0}}, {id: "b", owned: []int{1, 2}}}, 3, []string{"a", "b", "b"}},
		{"more members than partitions", []member{{id: "a"}, {id: "b", owned: []int{1}}, {id: "c"}}, 2, []string{"a", "b"}},
		{"two say that they own it", []member{{id: "a", owned: []int{0, 1}}, {id: "b", owned: []int{0, 1}}}, 2, []string{"a", "b"}},
		{"one that talks nonsense", []member{{id: "a", owned: []int{-1, 9, 0, 0}}, {id: "b"}}, 2, []string{"a", "b"}},
		{"what was taken over displaces nothing", []member{{id: "a", owned: []int{2, 3}, taken: []int{0, 1}}, {id: "b"}}, 4, []string{"b", "b", "a", "a"}},
		{"nor what another owns", []member{{id: "a", taken: []int{0, 1}}, {id: "b", owned: []int{1}}}, 2, []string{"a", "b"}},
		{"it stays where there is room", []member{{id: "b", owned: []int{3}, taken: []int{0}}, {id: "a", owned: []int{1}}}, 4, []string{"b", "a", "a", "b"}},
		{"one avoids a partition, which another gives up one for", []member{{id: "a", owned: []int{0, 1}, avoids: only(0)}, {id: "b", owned: []int{2, 3}}}, 4, []string{"b", "a", "b", "b"}},
		{"then the other gives up one that is not avoided", []member{{id: "a", owned: []int{1}, avoids: only(3)}, {id: "b", owned: []int{0, 2, 3}}}, 4, []string{"b", "a", "a", "b"}},
		{"the one without any takes it", []member{{id: "a", owned: []int{0}, avoids: only(0)}, {id: "b", owned: []int{1}}, {id: "c"}}, 2, []string{"c", "b"}},
		{"all avoid it", []member{{id: "a", owned: []int{0}, avoids: only(0)}, {id: "b", owned: []int{1}, avoids: only(0)}}, 2, []string{"a", "b"}},
		{"alone it keeps it", []member{{id: "a", owned: []int{0}, avoids: only(0)}}, 1, []string{"a"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := assign(tt.members, tt.partitions); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func only(partition int) func(int) bool { return func(p int) bool { return p == partition } }

// TestAssignKeepsItsRules draws who owns what and who has taken over what, each partition
// by any number of members: what two say that they own counts for the first of them.
func TestAssignKeepsItsRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions := rapid.IntRange(1, 40).Draw(t, "partitions")
		members := make([]member, rapid.IntRange(1, 12).Draw(t, "members"))
		rightly := make([]int, partitions) // who owns each, or -1
		for i := range members {
			members[i].id = string(rune('a' + i))
		}
		for p := range partitions {
			rightly[p] = -1
			for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, len(members)-1), 0, min(3, len(members)), rapid.ID).Draw(t, "who claims "+strconv.Itoa(p)) {
				m := &members[i]
				if rapid.IntRange(0, 3).Draw(t, "taken over") == 0 {
					m.taken = append(m.taken, p)
					continue
				}
				m.owned = append(m.owned, p)
				if rightly[p] < 0 || i < rightly[p] {
					rightly[p] = i
				}
			}
		}
		to := assign(members, partitions)
		few, moved, least := partitions/len(members), 0, 0
		larger := partitions % len(members)
		var own []int // how many each rightly owns
		for i, m := range members {
			has, owns := 0, 0
			for p := range to {
				if to[p] == m.id {
					has++
				}
				if rightly[p] == i {
					owns++
					if to[p] != m.id {
						moved++
					}
				}
			}
			if has != few && (has != few+1 || larger == 0) {
				t.Fatalf("%s has %d of %d partitions among %d", m.id, has, partitions, len(members))
			}
			own = append(own, owns)
		}
		// The fewest that must move: what each rightly owns beyond its share, the larger
		// shares going to those that own most.
		slices.SortFunc(own, func(a, b int) int { return b - a })
		for i, n := range own {
			share := few
			if i < larger {
				share++
			}
			least += max(0, n-share)
		}
		if moved != least {
			t.Fatalf("%d partitions move, %d must: %v to %v", moved, least, members, to)
		}
		// Done, there is nothing more to do.
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

// TestReplicasThatStartTogetherDoNotGetInEachOthersWay has members that all begin with
// nothing claim what they were given, in any order: nobody's place changes on the way.
func TestReplicasThatStartTogetherDoNotGetInEachOthersWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions := rapid.IntRange(1, 64).Draw(t, "partitions")
		members := make([]member, rapid.IntRange(1, 16).Draw(t, "members"))
		for i := range members {
			members[i].id = string(rune('a' + i))
		}
		to := assign(members, partitions)
		for p, id := range to {
			if rapid.Bool().Draw(t, "claimed") {
				m := &members[id[0]-'a']
				m.owned = append(m.owned, p)
			}
		}
		if again := assign(members, partitions); !slices.Equal(again, to) {
			t.Fatalf("from %v to %v, when these had begun: %v", to, again, members)
		}
	})
}

// TestAssignLeavesWhatIsAvoidedToOthers draws who owns what and who avoids what. A member
// gets what it avoids only where all do; who avoids nothing has his share at least; and
// after a few moves nothing moves any more.
func TestAssignLeavesWhatIsAvoidedToOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions := rapid.IntRange(1, 40).Draw(t, "partitions")
		members := make([]member, rapid.IntRange(1, 8).Draw(t, "members"))
		avoided := make([]map[int]bool, len(members))
		shunned := make([]int, partitions)
		for i := range members {
			members[i].id = string(rune('a' + i))
			avoided[i] = make(map[int]bool)
			for _, p := range rapid.SliceOfDistinct(rapid.IntRange(0, partitions-1), rapid.ID).Draw(t, "avoids") {
				avoided[i][p] = true
				shunned[p]++
			}
			if len(avoided[i]) > 0 {
				members[i].avoids = func(p int) bool { return avoided[i][p] }
			}
		}
		for p := range partitions {
			if i := rapid.IntRange(-1, len(members)-1).Draw(t, "owner"); i >= 0 {
				members[i].owned = append(members[i].owned, p)
			}
		}
		var to []string
		for pass := 0; ; pass++ {
			before := to
			to = assign(members, partitions)
			has := make([]int, len(members))
			for i := range members {
				members[i].owned = nil
			}
			for p, id := range to {
				if id == "" {
					t.Fatalf("nobody should have partition %d", p)
				}
				i := int(id[0] - 'a')
				if has[i]++; avoided[i][p] && shunned[p] < len(members) {
					t.Fatalf("%s should have partition %d, which it avoids and not all do", id, p)
				}
				members[i].owned = append(members[i].owned, p)
			}
			if slices.Equal(before, to) {
				for i, n := range has {
					if len(avoided[i]) == 0 && n < partitions/len(members) {
						t.Fatalf("%s avoids nothing and has %d of %d partitions among %d", members[i].id, n, partitions, len(members))
					}
				}
				return
			}
			if pass == 2*len(members) {
				t.Fatalf("it moves on after %d passes, from %v to %v", pass, before, to)
			}
		}
	})
}
