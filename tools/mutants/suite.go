package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// suite is the tests that judge the changes of one package.
type suite struct {
	name  string // import path
	temp  string
	tests []test // quickest first
}

// test is one test, what it reaches and how long it takes.
type test struct {
	dir    string // of its package
	name   string
	took   time.Duration
	blocks map[string][]block // by base name of the file
}

// block is a part of a file that runs as a whole, as `go test -coverprofile` writes it.
type block struct{ line, col, endLine, endCol int }

func (b block) has(line, col int) bool {
	return (line > b.line || line == b.line && col >= b.col) && (line < b.endLine || line == b.endLine && col <= b.endCol)
}

// newSuite finds the tests of the package in dir, and those in others that reach it.
func newSuite(dir string, others []string, temp string, jobs int) (*suite, error) {
	name, err := exec.Command("go", "-C", dir, "list", ".").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	s := &suite{name: strings.TrimSpace(string(name)), temp: temp}
	for _, d := range append([]string{dir}, others...) {
		if err := s.add(d, jobs); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(s.tests, func(a, b test) int { return int(a.took - b.took) })
	return s, nil
}

// add runs each test of the package in dir alone, to know what it reaches.
func (s *suite) add(dir string, jobs int) error {
	binary := filepath.Join(s.temp, "covered.test")
	if out, err := exec.Command("go", "-C", dir, "test", "-c", "-vet=off", "-cover", "-coverpkg", s.name, "-o", binary, ".").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	list := exec.Command(binary, "-test.list", "^Test")
	list.Dir = dir
	names, err := list.Output()
	if err != nil {
		return fmt.Errorf("list of tests: %w", err)
	}
	var (
		mu    sync.Mutex
		group sync.WaitGroup
		errs  []error
	)
	slots := make(chan struct{}, jobs)
	for name := range strings.FieldsSeq(string(names)) {
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			t, err := s.reach(dir, binary, name)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			if len(t.blocks) > 0 {
				s.tests = append(s.tests, t)
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

func (s *suite) reach(dir, binary, name string) (test, error) {
	profile := filepath.Join(s.temp, name+".cover")
	cmd := exec.Command(binary, "-test.run", "^"+name+"$", "-test.short", "-test.coverprofile", profile, "-test.timeout", "10m")
	cmd.Dir = dir
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return test{}, fmt.Errorf("%s fails without a change: %w\n%s", name, err, out)
	}
	t := test{dir: dir, name: name, took: time.Since(began), blocks: make(map[string][]block)}
	f, err := os.Open(profile)
	if err != nil {
		return test{}, err
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var b block
		var statements, count int
		path, rest, found := strings.Cut(lines.Text(), ".go:")
		if !found {
			continue
		}
		if _, err := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d", &b.line, &b.col, &b.endLine, &b.endCol, &statements, &count); err == nil && count > 0 {
			base := filepath.Base(path) + ".go"
			t.blocks[base] = append(t.blocks[base], b)
		}
	}
	return t, os.Remove(profile)
}

// try builds the package with the change and runs the tests that reach it, until one fails.
func (s *suite) try(m mutant) (outcome, error) {
	var reach []test
	for _, t := range s.tests {
		if slices.ContainsFunc(t.blocks[filepath.Base(m.file)], func(b block) bool { return b.has(m.line, m.col) }) {
			reach = append(reach, t)
		}
	}
	if len(reach) == 0 {
		return unread, nil
	}
	dir, err := os.MkdirTemp(s.temp, "change")
	if err != nil {
		return "", err
	}
	defer func() {
		_ = os.RemoveAll(dir)
		for _, t := range reach {
			_ = os.RemoveAll(filepath.Join(t.dir, "testdata", "rapid")) // where rapid writes what fails
		}
	}()
	src, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	changed := filepath.Join(dir, filepath.Base(m.file))
	if err := os.WriteFile(changed, slices.Concat(src[:m.from], []byte(m.by), src[m.to:]), 0o600); err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{m.file: changed}})
	if err != nil {
		return "", err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		return "", err
	}
	binaries := make(map[string]string) // by the directory of the tests
	// The quick tests first: most changes fail one of them.
	for len(reach) > 0 {
		in, n, took := reach[0].dir, 0, time.Duration(0)
		for n < len(reach) && reach[n].dir == in && (n == 0 || took < 5*time.Second) {
			took += reach[n].took
			n++
		}
		if binaries[in] == "" {
			binaries[in] = filepath.Join(dir, fmt.Sprintf("changed%d.test", len(binaries)))
			if err := exec.Command("go", "-C", in, "test", "-c", "-vet=off", "-overlay", list, "-o", binaries[in], ".").Run(); err != nil {
				return unbuilt, nil
			}
		}
		passed, err := s.passes(in, binaries[in], reach[:n], took)
		if err != nil {
			return "", err
		}
		if !passed {
			return killed, nil
		}
		reach = reach[n:]
	}
	return lived, nil
}

// passes reports whether the tests pass. A change may make an endless loop, so a test that takes much longer than without
// the change fails.
func (s *suite) passes(dir, binary string, tests []test, took time.Duration) (bool, error) {
	names := make([]string, len(tests))
	for i, t := range tests {
		names[i] = regexp.QuoteMeta(t.name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 8*took+20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^("+strings.Join(names, "|")+")$", "-test.short", "-test.failfast")
	cmd.Dir = dir
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && ctx.Err() == nil {
		return false, err
	}
	return err == nil, nil
}
