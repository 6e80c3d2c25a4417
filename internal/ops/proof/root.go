package proof

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
)

// Root is the end of the log of a partition at some time, which stands for everything
// before it.
type Root struct {
	Partition int    `json:"partition"`
	Sequence  uint64 `json:"sequence"` // place in the results stream
	Row       uint64 `json:"row"`      // the one that the message there is about
	Chain     Hash   `json:"chain"`
}

// String is the root as verify prints it and [ReadRoots] reads it.
func (r Root) String() string {
	return fmt.Sprintf("root: partition %d, position %d, row %d, chain %s", r.Partition, r.Sequence, r.Row, r.Chain)
}

// rootLine is a root as verify prints it.
var rootLine = regexp.MustCompile(`(?m)^root: partition ([0-9]+), position ([0-9]+), row ([0-9]+), chain ([0-9a-f]{64})\r?$`)

// ReadRoots returns the roots in what verify has printed, once or more often, as text or as
// JSON.
func ReadRoots(printed []byte) (roots []Root, err error) {
	printed = bytes.TrimPrefix(printed, []byte("\uFEFF"))
	if text := bytes.TrimSpace(printed); len(text) > 0 && text[0] == '{' {
		for reports := json.NewDecoder(bytes.NewReader(text)); reports.More(); {
			var report struct {
				Roots []Root `json:"roots"`
			}
			if err := reports.Decode(&report); err != nil {
				return nil, fmt.Errorf("it is no report of verify: %w", err)
			}
			roots = append(roots, report.Roots...)
		}
	}
	for _, m := range rootLine.FindAllSubmatch(printed, -1) {
		var r Root
		partition, _ := strconv.ParseInt(string(m[1]), 10, 32)
		r.Partition = int(partition)
		r.Sequence, _ = strconv.ParseUint(string(m[2]), 10, 64)
		r.Row, _ = strconv.ParseUint(string(m[3]), 10, 64)
		if r.Chain, err = ParseHash(string(m[4])); err != nil {
			return nil, err
		}
		roots = append(roots, r)
	}
	if len(roots) == 0 {
		return nil, errors.New("it has no root: give what stage verify has printed, as text or with --json")
	}
	return roots, nil
}
