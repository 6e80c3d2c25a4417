// Command mutants measures what the tests notice. It changes the program in one place at a time, for instance a < into a
// <=, and runs the tests of the package that reach that place. A change that no test notices is a rule without a test.
//
//	go -C tools run ./mutants -n 40 ../pool ../sequencer
//
// It prints one line for each package, and each change that lived. Which changes are made follows from the seed, and the
// name of a change from the function that it is in, so that two runs of -out can be compared when the tests have changed
// in between, or parts of the program that the change is not in.
//
// Some packages are tested through another one: -with ../internal/stage has its tests judge, too.
package main

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// outcome is what became of a change.
type outcome string

const (
	killed   outcome = "killed"    // a test failed, or did not end
	lived    outcome = "lived"     // each test that reaches the place passed
	unread   outcome = "unreached" // no test reaches the place
	unbuilt  outcome = "not built" // the compiler refuses the change, so it counts for nothing
	maxTries         = 3           // per change wanted: how many are tried if the compiler refuses some
)

func main() {
	n := flag.Int("n", 30, "changes in each package")
	seed := flag.Uint64("seed", 1, "chooses the changes")
	jobs := flag.Int("jobs", 2, "changes that are tried at the same time")
	out := flag.String("out", "", "JSON `file` for the outcomes, written after each change")
	with := flag.String("with", "", "`directories` of more packages whose tests judge, separated by commas")
	before := flag.String("before", "", "`file` of an earlier run: print what it killed and this run did not")
	flag.Parse()
	if err := run(flag.Args(), strings.FieldsFunc(*with, func(r rune) bool { return r == ',' }), *n, *seed, *jobs, *out, *before); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(dirs, others []string, n int, seed uint64, jobs int, out, before string) error {
	earlier := make(map[string]outcome)
	if before != "" {
		data, err := os.ReadFile(before)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(data, &earlier); err != nil {
			return fmt.Errorf("%s: %w", before, err)
		}
	}
	temp, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	all := make(map[string]outcome)
	for _, dir := range dirs {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return err
		}
		if err := measure(dir, others, n, seed, jobs, temp, func(m mutant, o outcome) error {
			all[m.name] = o
			if out == "" {
				return nil
			}
			data, err := json.MarshalIndent(all, "", "\t")
			if err != nil {
				return err
			}
			return os.WriteFile(out, data, 0o600)
		}); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	if before == "" {
		return nil
	}
	missed := 0
	for _, name := range slices.Sorted(maps.Keys(earlier)) {
		if now, ok := all[name]; ok && earlier[name] == killed && now != killed && now != unbuilt {
			missed++
			fmt.Printf("killed before, %s now: %s\n", now, name)
		}
	}
	if missed > 0 {
		return fmt.Errorf("%d changes that were noticed before are not noticed now", missed)
	}
	return nil
}

// measure tries n changes of the package in dir and prints what became of them.
func measure(dir string, others []string, n int, seed uint64, jobs int, temp string, report func(mutant, outcome) error) error {
	began := time.Now()
	mutants, err := find(dir)
	if err != nil {
		return err
	}
	suite, err := newSuite(dir, others, temp, jobs)
	if err != nil {
		return err
	}
	choose(mutants, seed)
	var (
		mu     sync.Mutex
		group  sync.WaitGroup
		next   int
		counts = make(map[outcome]int)
		errs   []error
		alive  []string
	)
	for range jobs {
		group.Go(func() {
			for {
				mu.Lock()
				tried := next
				enough := len(errs) > 0 || tried >= len(mutants) || tried >= n*maxTries || counts[killed]+counts[lived]+counts[unread] >= n
				next++
				mu.Unlock()
				if enough {
					return
				}
				m := mutants[tried]
				o, err := suite.try(m)
				mu.Lock()
				if err == nil {
					counts[o]++
					err = report(m, o)
				}
				if err != nil {
					errs = append(errs, err)
				}
				if o == lived || o == unread {
					alive = append(alive, fmt.Sprintf("  %s: %s", o, m.name))
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	if len(errs) > 0 {
		return errs[0]
	}
	fmt.Printf("%s: %d changes: %d killed, %d lived, %d unreached (%d not built, %s)\n", suite.name, counts[killed]+counts[lived]+counts[unread],
		counts[killed], counts[lived], counts[unread], counts[unbuilt], time.Since(began).Round(time.Second))
	slices.SortFunc(alive, cmp.Compare)
	if len(alive) > 0 {
		fmt.Println(strings.Join(alive, "\n"))
	}
	return nil
}
