package throttle

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	decisiveSeeds = flag.Int("decisive", 0, "compare the law on the servers that decide about it, with so many seeds")
	decisiveFile  = flag.String("against", "", "with -decisive: the figures to compare with, in a file that is made if it is not there")
)

// decisive are the servers on which changes of the law have failed so far. A pattern
// matches whole names of [Scenarios], [Grid], [Families] or [Targets].
var decisive = []string{
	// Noise: these should gain.
	`100 rows, calls of .*`, `600 rows of that, noise 0\.2`,
	`noise 0\.(05|1|2|5), no limit, pool (10|32|128)`,
	`noise 0\.(05|1|2|5), 5/s, pool 1[06]`,
	`noise 0\.(05|1|2|5), 20/s, pool (10|32|128)`, `noise 0\.(05|1|2|5), 20/s, calls of 200 ms, pool 1[06]`,
	`noise 0\.2, 200/s, pool (32|128)`, `noise 0\.2, 20/s, calls up to 20 ms late`,
	// Limits: these must not lose.
	`S1`, `S2`, `S2c`, `S3`, `S4m`, `S5`, `S6`, `S7`, `noise 0, .*`, `S1, calls up to 20 ms late`,
	`GCRA, burst [12]`, `(20|200|1000)/s, (1|5)% sporadic`, `S2, 10% sporadic`,
	`a tenant comes and goes each (5|20) s`, `32 and 8 at once, .*`, `tokens, .*`, `sine of 60 s`, `low: 1/s`,
	`(2|4|16|64) clients at 20/s, unknown to each other`, `S2, 16 clients`, `64 clients at 200/s, .*`,
	`a gateway of [48] servers, .*`, `20/s, refusals take 5s`, `refusals take 1s`,
	`calls of 20ms, .*`, `200/s, pool 512`, `no limit`,
	`100 rows at 20/s, pool 32`, `300 rows at 100/s, pool 128`,
}

// brief is what is compared of a run.
type brief struct{ Utilisation, Waste, Jain, Seconds, Worst float64 }

// TestDecisive is for experiments with the law: it runs the servers on which changes of it
// have failed, in about ten seconds a seed, and shows what has changed since the figures
// of -against were recorded. So run it once with the law of today, change the law, and run
// it again. Without -decisive it only checks that each pattern matches something.
func TestDecisive(t *testing.T) {
	all := targetsAndOthers()
	if *decisiveSeeds == 0 {
		for _, pattern := range decisive {
			if !slices.ContainsFunc(all, func(target Target) bool { return whole(pattern).MatchString(target.Name) }) {
				t.Errorf("%s matches no server", pattern)
			}
		}
		return
	}
	before, recorded := recordedFigures(t)
	after := map[string]brief{}
	only, wanted := whole(strings.Join(decisive, "|")), regexp.MustCompile(*targetNames)
	for _, target := range all {
		if !only.MatchString(target.Name) || !wanted.MatchString(target.Name) {
			continue
		}
		b := target.brief(t)
		after[target.Name] = b
		line := fmt.Sprintf("%-52s", target.Name) + b.String(target)
		if old, ok := before[target.Name]; ok {
			line += "   before" + old.String(target) + old.verdict(b, target)
		}
		fmt.Println(line)
	}
	if !recorded && *decisiveFile != "" {
		data, err := json.MarshalIndent(after, "", " ")
		if err == nil {
			err = os.WriteFile(*decisiveFile, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func targetsAndOthers() (all []Target) {
	for _, sc := range slices.Concat(Scenarios(), Grid(), Families()) {
		all = append(all, Target{Scenario: sc})
	}
	return append(all, Targets()...)
}

func whole(pattern string) *regexp.Regexp { return regexp.MustCompile("^(" + pattern + ")$") }

// recordedFigures returns the figures of -against, and whether there are any.
func recordedFigures(t *testing.T) (figures map[string]brief, ok bool) {
	t.Helper()
	data, err := os.ReadFile(*decisiveFile)
	if err != nil {
		return nil, false // to be recorded
	}
	err = json.Unmarshal(data, &figures)
	if err != nil {
		t.Fatal(err)
	}
	return figures, true
}

// brief runs the adaptive law at a target.
func (target Target) brief(t *testing.T) brief {
	t.Helper()
	seeds := *decisiveSeeds
	if target.Timed {
		seeds *= 8
	}
	f, worst := target.mean(t, Adaptive, seeds)
	return brief{f.Utilisation, f.Waste, f.Jain, f.Seconds, worst}
}

// String returns the figures that count at a target.
func (b brief) String(target Target) string {
	if target.Timed {
		return fmt.Sprintf(" %5.1f / %5.1f s %4.1f%%", b.Seconds, b.Worst, 100*b.Waste)
	}
	line := fmt.Sprintf(" %.3f / %4.1f%%", b.Utilisation, 100*b.Waste)
	if target.Clients > 1 {
		return line + fmt.Sprintf(" %.3f", b.Jain)
	}
	return line + "      "
}

// verdict marks what is better or worse than chance and the goals of a change allow: .005
// of the utilisation, one point of waste, .02 of Jain's index, a twentieth of the time.
func (b brief) verdict(now brief, target Target) string {
	marks := ""
	mark := func(gain, allowed float64, sign string) {
		switch {
		case gain < -allowed:
			marks += " -" + sign
		case gain > allowed:
			marks += " +" + sign
		}
	}
	if target.Timed {
		mark(1-now.Seconds/b.Seconds, .05, "time")
	} else {
		mark(now.Utilisation-b.Utilisation, .005, "use")
	}
	mark(b.Waste-now.Waste, .01, "waste")
	mark(now.Jain-b.Jain, .02, "Jain")
	return marks
}
