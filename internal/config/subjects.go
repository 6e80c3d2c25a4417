package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
)

// partitionMark stands for the number of the partition in the input subject. For example,
// rows.{partition}.> is rows.3.> for partition 3.
const partitionMark = "{partition}"

// DedupePrefix starts the subjects of stored replies, which equal rows share.
const DedupePrefix = "dedupe."

// BatchEndpoint is the endpoint of batched requests: the last token of their subject.
const BatchEndpoint = "llm_batch"

// BatchSubject returns the subject on which the stage of that name takes batched
// requests.
func BatchSubject(name string) string { return name + "." + BatchEndpoint }

// DeferredSubject returns the subject of one of the requests about deferred batches:
// submit, get or cancel.
func DeferredSubject(name, request string) string { return BatchSubject(name) + "." + request }

// PartitionSubject returns the filter of one partition of the input, counted from 0.
func (c *InputConfig) PartitionSubject(partition int) string {
	return strings.ReplaceAll(c.Subject, partitionMark, strconv.Itoa(partition))
}

// OfResults reports whether the rows are the results of another stage: the input subject
// matches subjects of results. The stream need not be the same one, since a stream may
// mirror or source another.
func (c *Config) OfResults() bool {
	return streams.Overlap(strings.ReplaceAll(c.Input.Subject, partitionMark, "*"),
		c.Result.Subject+".*.*.rows")
}

// checkStreams checks the names of the streams, and the subjects that the stage publishes
// on, each by itself.
func (c *checker) checkStreams() {
	names := []struct{ variable, name string }{
		{"STAGE_INPUT_STREAM", c.Input.Stream},
		{"STAGE_RESULT_STREAM", c.Result.Stream},
		{"STAGE_AUDIT_STREAM", c.Audit.Stream},
		{"STAGE_JOURNAL_STREAM", c.Journal.Stream},
	}
	if c.LaneOn() {
		names = append(names, struct{ variable, name string }{"STAGE_LANE_STREAM", c.Lane.Stream})
	}
	if c.Serve.Batches {
		names = append(names, struct{ variable, name string }{"STAGE_BATCH_STREAM", c.Batch.Stream})
	}
	for i, s := range names {
		if s.name == "" || len(s.name) > 255 || strings.ContainsFunc(s.name, func(r rune) bool {
			return r <= ' ' || r == 0x7f || strings.ContainsRune(`.*>/\`, r)
		}) {
			c.add(s.variable,
				"%q is not a stream's name: give one without spaces and . * > / \\", s.name)
			continue
		}
		for _, earlier := range names[:i] {
			// A stage that reads another's results may have them in its own result
			// stream.
			chained := earlier.variable == "STAGE_INPUT_STREAM" &&
				s.variable == "STAGE_RESULT_STREAM" && c.OfResults()
			if earlier.name == s.name && !chained {
				c.add(s.variable, "%s is %s already: give each its own stream", s.name,
					earlier.variable)
				break
			}
		}
	}

	if c.Streams.Replicas%2 == 0 && c.none("STAGE_STREAM_REPLICAS") {
		c.add("STAGE_STREAM_REPLICAS",
			"%d: an even number survives no more failures than the odd one below, give 1, 3 or 5",
			c.Streams.Replicas)
	}

	c.checkSubject("STAGE_RESULT_SUBJECT", c.Result.Subject, "results")
	c.checkSubject("STAGE_AUDIT_SUBJECT", c.Audit.Subject, "audit")
	if bucket := c.Result.Bucket; bucket != "" && !streams.IsBucket(bucket) {
		c.add("STAGE_RESULT_BUCKET",
			"%q is no name of a bucket: give letters, digits, - and _, at most 64", bucket)
	}
	switch age := c.Result.MaxAge; {
	case !c.none("STAGE_RESULT_MAX_AGE") || age == 0:
	case age < time.Second: // it is looked for ten times in this time
		c.add("STAGE_RESULT_MAX_AGE",
			"%v is less than a second: give 1s or more, or 0 to keep all results", age)
	case c.Result.Bucket != "":
		c.add("STAGE_RESULT_MAX_AGE", "bodies in a bucket (STAGE_RESULT_BUCKET) would stay "+
			"when their results are dropped: unset one of the two")
	}
	if dead := c.Streams.DeadLetterSubject; dead != "" {
		c.checkSubject("STAGE_DEAD_LETTER_SUBJECT", dead, "rows-failed")
	}
}

// checkSubject checks a subject on which the stage publishes.
func (p *problems) checkSubject(variable, subject, example string) {
	if !validSubject(subject, false) {
		p.add(variable, "%q is not a subject without wildcards, such as %s", subject, example)
	}
}

// checkInput checks the subject of the input: first by itself, then against all subjects
// that the stage publishes on or captures.
func (c *checker) checkInput() {
	const variable = "STAGE_INPUT_SUBJECT"
	input := c.Input.PartitionSubject(0)
	switch {
	case !validSubject(input, true):
		c.add(variable, "%q is not a subject, such as rows.>", c.Input.Subject)
	case strings.Count(c.Input.Subject, partitionMark) > 1,
		strings.Contains(c.Input.Subject, partitionMark) &&
			!slices.Contains(strings.Split(c.Input.Subject, "."), partitionMark):
		c.add(variable,
			"%q: {partition} must be one token of the subject, as in rows.{partition}.>",
			c.Input.Subject)
	case !c.from.anyInput && c.none("STAGE_PARTITIONS") && c.Streams.Partitions > 1 &&
		!strings.Contains(c.Input.Subject, partitionMark):
		c.add(variable, "%q has no place for the partition: with %d partitions write it as "+
			"rows.{partition}.>, or set STAGE_PARTITIONS=1",
			c.Input.Subject, c.Streams.Partitions)
	}
	if !c.none(variable, "STAGE_NAME") {
		return
	}
	anyPartition := strings.ReplaceAll(c.Input.Subject, partitionMark, "*")
	c.checkBatchSubject(anyPartition)
	if c.OfResults() && c.none("STAGE_RESULT_SUBJECT") {
		c.checkResultsIn(anyPartition)
	}
	c.checkOutputs(anyPartition)
}

// checkResultsIn checks an input that consists of results. It must be another stage's:
// with its own results as input, a stage would answer its answers for ever. And it must
// not include claims, which are in the same log but are no rows.
func (c *checker) checkResultsIn(input string) {
	const variable = "STAGE_INPUT_SUBJECT"
	if own := c.Result.Subject + "." + c.Name + ".*.*"; streams.Overlap(input, own) {
		c.add(variable, "%q also matches the results of this stage, %s, "+
			"which would be input again and again: name the stage whose results are meant, "+
			"as in %s.STAGE.*.rows", c.Input.Subject, own, c.Result.Subject)
	} else if streams.Overlap(input, c.Result.Subject+".*.*.claim") {
		c.add(variable, "%q matches more than results, such as claims, which are no rows: "+
			"end it with .rows, as in %s.STAGE.*.rows",
			c.Input.Subject, c.Result.Subject)
	}
}

// CheckCycle reports stages that read each other's results in a circle, for example
// extract -> judge -> extract. They have no other input, so no row comes in; one that did
// would be answered, and paid for, again and again. checkResultsIn finds a stage
// that reads its own results.
func CheckCycle(stages []*Config) error {
	source := func(c *Config) *Config {
		input := strings.ReplaceAll(c.Input.Subject, partitionMark, "*")
		for _, s := range stages {
			if s.Result.Stream == c.Input.Stream &&
				streams.Overlap(input, s.Result.Subject+"."+s.Name+".*.rows") {
				return s
			}
		}
		return nil
	}

	for _, last := range stages {
		circle := []string{last.Name}
		for s := source(last); s != nil && len(circle) <= len(stages); s = source(s) {
			circle = append(circle, s.Name)
			if s == last {
				slices.Reverse(circle)
				return fmt.Errorf("STAGE_INPUT_SUBJECT: the stages %s read each other's results "+
					"in a circle, so no row comes in, and one that did would be answered again "+
					"and again: give the first of the chain an input of its own",
					strings.Join(circle, " -> "))
			}
		}
	}
	return nil
}

// checkOutputs checks that no output is input again: such a row would be answered and
// paid for again and again. For example, a dead letter on rows.failed would match rows.>.
func (c *checker) checkOutputs(input string) {
	type output struct{ variable, subject string }
	outputs := []output{
		{"STAGE_RESULT_SUBJECT", c.Result.Subject + "." + c.Name + ".*.*"},
		{"STAGE_AUDIT_SUBJECT", c.Audit.Subject + "." + c.Name + ".*.*"},
		{"STAGE_JOURNAL_STREAM", "journal." + c.Name + ".>"},
		{"STAGE_DEAD_LETTER_SUBJECT", c.Streams.DeadLetterSubject},
	}
	if c.LaneOn() {
		outputs = append(outputs, output{"STAGE_LANE_STREAM", streams.LaneSubjects(c.Name)})
	}
	if c.Serve.Batches {
		outputs = append(outputs, output{"STAGE_BATCH_STREAM", streams.BatchSubjects(c.Name)})
	}
	if c.Budget.Name != "" {
		outputs = append(outputs, output{"STAGE_BUDGET", c.Budget.Name.Subjects()})
	}
	if !c.none("STAGE_INPUT_SUBJECT") { // it matches the results, see checkResultsIn
		outputs = outputs[1:]
	}
	for _, out := range outputs {
		if out.subject != "" && c.none(out.variable) && streams.Overlap(input, out.subject) {
			c.add(out.variable, "messages on %s would be input again, "+
				"since STAGE_INPUT_SUBJECT is %q: choose another subject", out.subject,
				c.Input.Subject)
		}
	}
}

// checkBatchSubject checks that no stream captures batched requests: the server would
// answer them in the stage's place, and the input stream would take them for rows.
func (c *checker) checkBatchSubject(input string) {
	for _, in := range []struct{ variable, subject string }{
		{"STAGE_INPUT_SUBJECT", input},
		{"STAGE_RESULT_SUBJECT", c.Result.Subject + ".>"},
		{"STAGE_AUDIT_SUBJECT", c.Audit.Subject + ".>"},
		{"STAGE_JOURNAL_STREAM", "journal.>"},
		{"STAGE_LANE_STREAM", c.laneSubjects()},
		{"STAGE_DEDUPE", DedupePrefix + ">"},
		{"STAGE_BATCH_STREAM", "batches.>"},
	} {
		taken := streams.Overlap(in.subject, BatchSubject(c.Name)) ||
			streams.Overlap(in.subject, DeferredSubject(c.Name, "*"))
		if in.subject != "" && c.none(in.variable) && taken {
			c.add("STAGE_NAME",
				"batched requests arrive on %s, which matches %s (%s): give another name",
				BatchSubject(c.Name), in.subject, in.variable)
		}
	}
}

// validSubject reports whether the text is a NATS subject, with wildcards or without.
func validSubject(subject string, wildcards bool) bool {
	return validTokens(subject, wildcards) && !strings.HasPrefix(subject+".", "$JS.")
}

// validTokens is [validSubject] without the rule about subjects of the server. A wildcard
// is a whole token, and > only the last one.
func validTokens(subject string, wildcards bool) bool {
	tokens := strings.Split(subject, ".")
	for i, token := range tokens {
		switch {
		case token == "" ||
			strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r == 0x7f }):
			return false
		case token == "*" || token == ">" && i == len(tokens)-1:
			if !wildcards {
				return false
			}
		case strings.ContainsAny(token, "*>"):
			return false
		}
	}
	return len(subject) <= 255
}
