package streams

import (
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"
)

// TestTransformIsTheServers compares the arithmetic with the server's own.
func TestTransformIsTheServers(t *testing.T) {
	for _, tt := range []struct{ source, dest string }{
		{"rows.*", "rows.{{partition(8,1)}}.{{wildcard(1)}}"},
		{"rows.*", "{{partition(3,1)}}.rows.$1"},
		{"rows.*.*", "rows.{{ Partition( 5 , 1, 2 ) }}.{{wildcard(2)}}.{{wildcard(1)}}"},
		{"*.rows", "in.{{wildcard(1)}}.{{partition(1,1)}}"},
		{"rows.a", "rows.b"},
	} {
		t.Run(tt.dest, func(t *testing.T) {
			theirs, err := server.NewSubjectTransform(tt.source, tt.dest)
			if err != nil {
				t.Fatal(err)
			}
			ours, err := parseTransform(jetstream.SubjectTransformConfig{Source: tt.source, Destination: tt.dest})
			if err != nil {
				t.Fatal(err)
			}
			rapid.Check(t, func(t *rapid.T) {
				subject := ""
				for token := range strings.SplitSeq(tt.source, ".") {
					if token == "*" {
						token = rapid.StringMatching(`[a-zA-Z0-9_-]{1,12}`).Draw(t, "token")
					}
					subject += "." + token
				}
				subject = subject[1:]
				want, err := theirs.Match(subject)
				if err != nil {
					t.Fatal(err)
				}
				stored := ours.forward(subject)
				if stored != want {
					t.Fatalf("%s is stored as %s, the server says %s", subject, stored, want)
				}
				if !covers(ours.filter(), stored) {
					t.Fatalf("%s does not cover %s", ours.filter(), stored)
				}
				if back, ok := ours.inverse(stored); ok && ours.forward(back) != stored {
					t.Fatalf("%s comes from %s, which is stored as %s", stored, back, ours.forward(back))
				}
			})
			if got := ours.forward("somewhere.else.altogether.x"); got != "somewhere.else.altogether.x" {
				t.Errorf("a subject that does not match becomes %s", got)
			}
		})
	}
}

func TestTransformsThatAreNotUnderstoodAreRefused(t *testing.T) {
	for _, tt := range []struct{ source, dest string }{
		{"", "x.{{wildcard(1)}}"},
		{"rows.>", "x.>"},
		{"rows.*", "x.{{split(1,-)}}"},
		{"rows.*", "x.{{wildcard(0)}}"},
		{"rows.*", "x.{{wildcard(1}}"},
		{"rows.*", "x.{{wildcard}}"},
		{"rows.*", "x.$a"},
		{"rows.*", "x.$0"},
		{"rows.*", "x.{{wildcard(1)"},
	} {
		if _, err := parseTransform(jetstream.SubjectTransformConfig{Source: tt.source, Destination: tt.dest}); err == nil {
			t.Errorf("%s to %s is understood", tt.source, tt.dest)
		}
	}
}

func TestPartitionTransform(t *testing.T) {
	for _, tt := range []struct{ input, source, dest, direct string }{
		{"rows.{partition}.>", "rows.*", "rows.{{partition(2,1)}}.{{wildcard(1)}}", "rows.0.> rows.1.>"},
		{"rows.{partition}.*.*", "rows.*.*", "rows.{{partition(2,1)}}.{{wildcard(1)}}.{{wildcard(2)}}", "rows.0.*.* rows.1.*.*"},
		{"{partition}.rows.*", "rows.*", "{{partition(2,1)}}.rows.{{wildcard(1)}}", "0.rows.* 1.rows.*"},
		{"rows.{partition}", "rows.*", "rows.{{partition(2,1)}}", ""},
		{"*.{partition}", "*", "{{wildcard(1)}}.{{partition(2,1)}}", "*.0 *.1"},
	} {
		subjects, transform := partitionTransform(tt.input, 2)
		want := strings.TrimSpace(tt.source + " " + tt.direct)
		if strings.Join(subjects, " ") != want || transform.Source != tt.source || transform.Destination != tt.dest {
			t.Errorf("%s: subjects %v, transform %+v; want %s, %s", tt.input, subjects, transform, want, tt.dest)
		}
		if _, err := server.NewSubjectTransform(transform.Source, transform.Destination); err != nil {
			t.Errorf("%s: the server says: %v", tt.input, err)
		}
	}
}

func TestAddressInputLeadsToEveryPartition(t *testing.T) {
	subjects, created := partitionTransform("rows.{partition}.>", 8)
	tests := []struct {
		name, input string
		cfg         jetstream.StreamConfig
		partitions  int
		wrong       string
	}{
		{"one partition", "rows.>", jetstream.StreamConfig{Subjects: []string{"rows.>"}}, 1, ""},
		{"created by the stage", "rows.{partition}.>", jetstream.StreamConfig{Subjects: subjects, SubjectTransform: created}, 8, ""},
		{"by key alone", "rows.{partition}.>", jetstream.StreamConfig{Subjects: []string{"rows.*"}, SubjectTransform: created}, 8, ""},
		{"without a transform", "rows.{partition}.*", jetstream.StreamConfig{Subjects: []string{"rows.*.*"}}, 8, ""},
		{"the transform of somebody", "rows.{partition}.>", jetstream.StreamConfig{
			Subjects: []string{"in.>"}, SubjectTransform: &jetstream.SubjectTransformConfig{Source: "in.>", Destination: "rows.0.>"},
		}, 1, "understood"},
		{"no place", "rows.a", jetstream.StreamConfig{Subjects: []string{"rows.a"}}, 1, ".>"},
		{"not captured", "rows.{partition}.*", jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"other.>"}}, 2, "captures other.>"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			seen := make(map[string]bool)
			for p := range tt.partitions {
				a, err := AddressInput(tt.cfg, tt.input, p, "file")
				if tt.wrong != "" {
					if err == nil || !strings.Contains(err.Error(), tt.wrong) {
						t.Errorf("partition %d: %v, want an error that says %q", p, err, tt.wrong)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if !covers(InputFilter(tt.input, p), a.Stored) || seen[a.Stored] {
					t.Errorf("partition %d: stored as %s", p, a.Stored)
				}
				seen[a.Stored] = true
				if back, err := InputSubjectOf(tt.cfg, a.Stored); err != nil || back != a.Publish {
					t.Errorf("%s was published on %s, %v; want %s", a.Stored, back, err, a.Publish)
				}
				if tr := tt.cfg.SubjectTransform; tr != nil {
					theirs, err := server.NewSubjectTransform(tr.Source, tr.Destination)
					if err != nil {
						t.Fatal(err)
					}
					if stored, err := theirs.Match(a.Publish); err == nil && stored != a.Stored || err != nil && a.Publish != a.Stored {
						t.Errorf("the server stores %s as %s, %v; want %s", a.Publish, stored, err, a.Stored)
					}
				}
			}
		})
	}
}
