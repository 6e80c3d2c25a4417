// Package permissions lists the least permissions that a stage's NATS user needs with
// given settings.
//
// The table of rules is the only place that says which subject is needed when. `stage
// setup --print-permissions` prints it for the settings in force, docs/permissions.md is
// generated from it, and test/permissions runs whole stages with what it says and with
// nothing else.
package permissions

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/internal/config"
)

// Set is what one user may do.
type Set struct {
	groups []group
	// Responses is how long after a request the user may answer it, once; 0 means that it
	// answers none.
	Responses time.Duration
}

// group is subjects that are needed for the same reason.
type group struct {
	section            section
	why                string
	publish, subscribe []string
}

// Of returns what the user of a process needs that runs these stages.
func Of(cfgs ...*config.Config) Set { return ofRules(rules, cfgs...) }

// OfErase returns what the user of `stage erase` needs for these stages.
func OfErase(cfgs ...*config.Config) Set { return ofRules(eraseRules, cfgs...) }

// ofRules is Of by some rules.
func ofRules(rules []rule, cfgs ...*config.Config) (s Set) {
	seen := make(map[string]bool)
	for _, cfg := range cfgs {
		for _, r := range rules {
			if r.when != nil && !r.when(cfg) {
				continue
			}
			g := group{section: r.section, why: r.why}
			for _, subject := range expand(r.publish, cfg) {
				if !seen["publish "+subject] {
					seen["publish "+subject] = true
					g.publish = append(g.publish, subject)
				}
			}
			for _, subject := range expand(r.subscribe, cfg) {
				if !seen["subscribe "+subject] {
					seen["subscribe "+subject] = true
					g.subscribe = append(g.subscribe, subject)
				}
			}
			if len(g.publish)+len(g.subscribe) > 0 {
				s.groups = append(s.groups, g)
			}
			s.Responses = max(s.Responses, r.responses)
		}
	}
	return s
}

// Publish returns the subjects that the user must be allowed to publish on.
func (s Set) Publish() (all []string) {
	for _, g := range s.groups {
		all = append(all, g.publish...)
	}
	return all
}

// Subscribe returns the subjects that the user must be allowed to subscribe to.
func (s Set) Subscribe() (all []string) {
	for _, g := range s.groups {
		all = append(all, g.subscribe...)
	}
	return all
}

// serverAPI is what the subjects of JetStream's API begin with in the rules.
const serverAPI = "$JS.API."

// expand fills in the names of the settings, and where the API of JetStream is. A pattern
// with {p} stands for one subject in each partition.
func expand(patterns []string, cfg *config.Config) (subjects []string) {
	api := serverAPI
	if prefix := cfg.NATS.APIPrefix(); prefix != "" {
		api = strings.TrimSuffix(prefix, ".") + "."
	}
	names := []string{
		"{name}", cfg.Name, "{ROWS}", cfg.Input.Stream, "{RESULTS}", cfg.Result.Stream, "{BUCKET}", cfg.Result.Bucket, "{AUDIT}", cfg.Audit.Stream, "{JOURNAL}", cfg.Journal.Stream,
		"{LANE}", cfg.Lane.Stream, "{BATCHES}", cfg.Batch.Stream, "{results}", cfg.Result.Subject, "{audit}", cfg.Audit.Subject, "{dead}", cfg.Streams.DeadLetterSubject,
		"{budget}", string(cfg.Budget.Name), "{inbox}", cfg.NATS.InboxPrefix,
		serverAPI, api,
	}
	for _, pattern := range patterns {
		partitions := 1
		if strings.Contains(pattern, "{p}") {
			partitions = cfg.Streams.Partitions
		}
		for p := range partitions {
			subjects = append(subjects, strings.NewReplacer(append(slices.Clone(names), "{p}", strconv.Itoa(p))...).Replace(pattern))
		}
	}
	return subjects
}
