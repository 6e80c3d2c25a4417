// Package permissions reads docs/permissions.md: the blocks are what a user copies, so
// they are what the tests run with.
package permissions

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
)

// Grants are lists of docs/permissions.md, by the heading that they stand under.
type Grants map[string]Grant

// Grant is what one user may do. The zero Grant is nothing.
type Grant struct {
	Publish, Subscribe []string
	Responses          *server.ResponsePermission // nil: none
}

// And adds others.
func (g Grant) And(others ...Grant) Grant {
	sum := Grant{slices.Clone(g.Publish), slices.Clone(g.Subscribe), g.Responses}
	for _, o := range others {
		sum.Publish, sum.Subscribe = append(sum.Publish, o.Publish...), append(sum.Subscribe, o.Subscribe...)
		sum.Responses = cmp.Or(sum.Responses, o.Responses)
	}
	return sum
}

// User is a user of a server with these permissions and no others.
func (g Grant) User(name string) *server.User {
	return &server.User{Username: name, Password: name, Permissions: &server.Permissions{
		Publish: &server.SubjectPermission{Allow: g.Publish}, Subscribe: &server.SubjectPermission{Allow: g.Subscribe},
		Response: g.Responses,
	}}
}

// Headings of docs/permissions.md.
const (
	Run         = "run"
	Batches     = "Batched requests"
	Status      = "All replicas on one page"
	Rows        = "Rows on the dashboard"
	Control     = "STAGE_CONTROL=true"
	Setup       = "setup, and run with STAGE_CREATE_STREAMS=true"
	Partitions  = "STAGE_PARTITIONS=2"
	Budget      = "STAGE_BUDGET=account"
	Order       = "STAGE_ORDER=key"
	Lane        = "STAGE_LANE=batch"
	DeadLetters = "STAGE_DEAD_LETTER_SUBJECT=dead.rows"
	Dedupe      = "STAGE_DEDUPE=stored"
	Media       = "Pictures, documents and sounds in object stores"
	Ceiling     = "STAGE_MAX_COST_USD"
	Readings    = "Consumers of readings"
)

var (
	heading = regexp.MustCompile(`^##+ (.+)$`)
	opens   = "```nats"
)

// Read reads the document, which lies in a path from the root of the project. A block
// that is no configuration of nats-server is an error.
func Read(path string) (Grants, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	found, under, block := make(Grants), "", []string(nil)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		switch h := heading.FindStringSubmatch(line); {
		case line == opens:
			block = []string{}
		case line == "```" && block != nil:
			if found[under], err = parse(under, strings.Join(block, "\n")); err != nil {
				return nil, err
			}
			block = nil
		case block != nil:
			block = append(block, line)
		case h != nil:
			under = h[1]
		}
	}
	return found, nil
}

// parse reads one block: that of run is a whole configuration, the others are the
// permissions alone.
func parse(under, text string) (g Grant, err error) {
	if under != Run {
		text = "authorization { users: [{user: u, password: p, permissions: {\n" + text + "\n}}] }"
	}
	opts := &server.Options{}
	if err := opts.ProcessConfigString(text); err != nil {
		return g, fmt.Errorf("%s: %w", under, err)
	}
	p := opts.Users[0].Permissions
	if p.Publish != nil {
		g.Publish = p.Publish.Allow
	}
	if p.Subscribe != nil {
		g.Subscribe = p.Subscribe.Allow
	}
	g.Responses = p.Response
	return g, nil
}

// Matches reports whether an entry allows a subject.
func Matches(entry, subject string) bool {
	want, have := strings.Split(entry, "."), strings.Split(subject, ".")
	for i, token := range want {
		switch {
		case token == ">":
			return len(have) > i
		case i >= len(have), token != "*" && token != have[i]:
			return false
		}
	}
	return len(want) == len(have)
}
