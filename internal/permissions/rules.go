package permissions

import (
	"time"

	"github.com/llm-stage/stage/internal/config"
)

// section is the heading of docs/permissions.md under which a rule is listed.
type section string

const (
	sectionRun        section = "run"
	sectionBatches    section = "Batched requests"
	sectionStatus     section = "All replicas on one page"
	sectionRows       section = "Rows on the dashboard"
	sectionControl    section = "STAGE_CONTROL=true"
	sectionCreate     section = "setup, and run with STAGE_CREATE_STREAMS=true"
	sectionPartitions section = "STAGE_PARTITIONS=2"
	sectionBudget     section = "STAGE_BUDGET=account"
	sectionLane       section = "STAGE_LANE=batch"
	sectionOrder      section = "STAGE_ORDER=key"
	sectionDead       section = "STAGE_DEAD_LETTER_SUBJECT=dead.rows"
	sectionDedupe     section = "STAGE_DEDUPE=stored"
	sectionBucket     section = "STAGE_RESULT_BUCKET=LARGE"
	sectionMaxAge     section = "STAGE_RESULT_MAX_AGE=720h"
	sectionMedia      section = "Pictures, documents and sounds in object stores"
	sectionCeiling    section = "STAGE_MAX_COST_USD"
	sectionErase      section = "erase"
)

// rule is the subjects that one thing a stage does needs.
type rule struct {
	section section
	why     string                    // a comment in front of the subjects
	when    func(*config.Config) bool // nil: always
	// publish and subscribe have names of the settings in braces, see expand.
	publish, subscribe []string
	responses          time.Duration // longest time that a request takes which is answered; 0 means that none is
}

// rules are all of them, in the order in which they are printed. A subject that several
// need is printed with the first.
var rules = []rule{
	{section: sectionRun, why: "streams: check that they are as the stage needs them", publish: []string{
		"$JS.API.STREAM.INFO.{ROWS}",
		"$JS.API.STREAM.INFO.{RESULTS}",
		"$JS.API.STREAM.INFO.{AUDIT}",
	}},
	{section: sectionRun, why: "streams: learn at once that one was edited; without it, within a second to a minute", subscribe: []string{
		"$JS.EVENT.ADVISORY.STREAM.UPDATED.{ROWS}",
		"$JS.EVENT.ADVISORY.STREAM.UPDATED.{RESULTS}",
		"$JS.EVENT.ADVISORY.STREAM.UPDATED.{AUDIT}",
	}},
	{section: sectionRun, why: "rows: fetch them, look for a missing one, reset the consumer, hand over", publish: []string{
		"$JS.API.CONSUMER.INFO.{ROWS}.{name}-{p}",
		"$JS.API.CONSUMER.MSG.NEXT.{ROWS}.{name}-{p}",
		"$JS.API.CONSUMER.RESET.{ROWS}.{name}-{p}",
		"$JS.API.CONSUMER.UNPIN.{ROWS}.{name}-{p}",
		"$JS.API.STREAM.MSG.GET.{ROWS}",
		"$JS.ACK.{ROWS}.{name}-{p}.>",
	}},
	{section: sectionRun, why: "results: read the tail of the log, claim the partition, append", publish: []string{
		"$JS.API.STREAM.MSG.GET.{RESULTS}",
		"{results}.{name}.{p}.claim",
		"{results}.{name}.{p}.rows",
	}},
	{section: sectionRun, why: "audit", publish: []string{
		"{audit}.{name}.{p}.call",
		"{audit}.{name}.{p}.row",
		"{audit}.{name}.all.run",
	}},
	{section: sectionRun, why: "journal: keep replies that wait for an earlier row", when: journal, publish: []string{
		"$JS.API.STREAM.INFO.{JOURNAL}",
		"$JS.API.STREAM.PURGE.{JOURNAL}",
		"$JS.API.DIRECT.GET.{JOURNAL}",
		"journal.{name}.{p}.>",
	}},
	{section: sectionRun, why: "journal: learn at once that it was edited", when: journal, subscribe: []string{"$JS.EVENT.ADVISORY.STREAM.UPDATED.{JOURNAL}"}},
	{section: sectionRun, why: "answers of the server; set STAGE_NATS_INBOX_PREFIX so that the user can't read those of others", when: sharedInbox, subscribe: []string{"_INBOX.>"}},
	{section: sectionRun, why: "answers of the server (STAGE_NATS_INBOX_PREFIX)", when: ownInbox, subscribe: []string{"{inbox}.>"}},

	{
		section: sectionBatches, why: "batched requests (STAGE_BATCH)", when: batches,
		publish:   []string{"{audit}.{name}.all.call"},
		subscribe: []string{"{name}." + config.BatchEndpoint, "{name}.llm_query_batched", "$SRV.*", "$SRV.*.llm-stage", "$SRV.*.llm-stage.*"},
		responses: time.Hour,
	},
	{
		section: sectionBatches, why: "deferred batches: take them, store them and their answers, read and remove them", when: batches,
		publish: []string{
			"$JS.API.STREAM.INFO.{BATCHES}",
			"$JS.API.STREAM.MSG.GET.{BATCHES}",
			"$JS.API.STREAM.PURGE.{BATCHES}",
			"$JS.API.CONSUMER.CREATE.{BATCHES}.>",
			"$JS.API.CONSUMER.MSG.NEXT.{BATCHES}.>",
			"batches.{name}.>",
		},
		subscribe: []string{"{name}." + config.BatchEndpoint + ".submit", "{name}." + config.BatchEndpoint + ".get", "{name}." + config.BatchEndpoint + ".cancel"},
	},
	{
		section: sectionStatus, why: "status: ask the other replicas, and answer them",
		publish: []string{"llm-stage.{name}.status"}, subscribe: []string{"llm-stage.{name}.status"}, responses: time.Minute,
	},
	{section: sectionRows, why: "dashboard: the story of a row, and the rows that failed", publish: []string{
		"$JS.API.CONSUMER.CREATE.{AUDIT}.>",
		"$JS.API.CONSUMER.MSG.NEXT.{AUDIT}.>",
		"$JS.API.STREAM.MSG.GET.{AUDIT}",
		"$JS.API.CONSUMER.CREATE.{RESULTS}.>",
		"$JS.API.CONSUMER.MSG.NEXT.{RESULTS}.>",
	}},
	{section: sectionControl, why: "orders of operators (STAGE_CONTROL)", when: func(c *config.Config) bool { return c.Control.Obey }, subscribe: []string{"llm-stage.{name}.control"}},

	{section: sectionCreate, why: "create what is missing (STAGE_CREATE_STREAMS)", when: creates, publish: []string{
		"$JS.API.STREAM.CREATE.{ROWS}",
		"$JS.API.STREAM.CREATE.{RESULTS}",
		"$JS.API.STREAM.CREATE.{AUDIT}",
	}},
	{section: sectionCreate, why: "create the journal", when: both(creates, journal), publish: []string{"$JS.API.STREAM.CREATE.{JOURNAL}"}},
	{section: sectionCreate, why: "create the stream of the batch lane", when: both(creates, (*config.Config).LaneOn), publish: []string{"$JS.API.STREAM.CREATE.{LANE}"}},
	{section: sectionCreate, why: "create the stream of deferred batches", when: both(creates, batches), publish: []string{"$JS.API.STREAM.CREATE.{BATCHES}"}},
	{section: sectionCreate, why: "create the bucket of large results", when: both(creates, stows), publish: []string{"$JS.API.STREAM.CREATE.OBJ_{BUCKET}"}},
	{section: sectionCreate, why: "create the stream of stored replies", when: both(creates, dedupes), publish: []string{"$JS.API.STREAM.CREATE.DEDUPE"}},
	{section: sectionCreate, why: "create the durable consumers, and set their window", when: creates, publish: []string{"$JS.API.CONSUMER.CREATE.{ROWS}.{name}-{p}.>"}},
	{section: sectionCreate, why: "replace a durable consumer that was used in stream order", when: both(creates, reordered), publish: []string{"$JS.API.CONSUMER.DELETE.{ROWS}.{name}-{p}"}},

	{
		section: sectionPartitions, why: "partitions: agree with the other replicas on who serves which", when: func(c *config.Config) bool { return c.Streams.Partitions > 1 },
		publish: []string{"llm-stage.{name}.replicas"}, subscribe: []string{"llm-stage.{name}.replicas"},
	},
	{
		section: sectionBudget, why: "shared budget (STAGE_BUDGET)", when: func(c *config.Config) bool { return c.Budget.Name != "" },
		publish: []string{"llm-stage.budget.{budget}.>"}, subscribe: []string{"llm-stage.budget.{budget}.>"},
	},
	{section: sectionLane, why: "batch lane (STAGE_LANE): record batches, and read which are open", when: (*config.Config).LaneOn, publish: []string{
		"$JS.API.STREAM.INFO.{LANE}",
		"$JS.API.STREAM.MSG.GET.{LANE}",
		"$JS.API.STREAM.PURGE.{LANE}",
		"$JS.API.CONSUMER.CREATE.{LANE}.>",
		"$JS.API.CONSUMER.MSG.NEXT.{LANE}.>",
		"$JS.API.CONSUMER.DELETE.{LANE}.>",
		"{audit}.{name}.{p}.batch",
		"lane.{name}.{p}.>",
	}},
	{section: sectionLane, why: "batch lane: learn at once that its stream was edited", when: (*config.Config).LaneOn, subscribe: []string{"$JS.EVENT.ADVISORY.STREAM.UPDATED.{LANE}"}},
	{section: sectionOrder, why: "order (STAGE_ORDER): read which rows above the low-water mark have their results", when: reordered, publish: []string{
		"$JS.API.CONSUMER.CREATE.{RESULTS}.>",
		"$JS.API.CONSUMER.MSG.NEXT.{RESULTS}.>",
	}},
	{section: sectionDead, why: "dead letters (STAGE_DEAD_LETTER_SUBJECT): find their stream, and store them", when: func(c *config.Config) bool { return c.Streams.DeadLetterSubject != "" }, publish: []string{
		"$JS.API.STREAM.NAMES",
		"{dead}",
	}},
	{section: sectionBucket, why: "large results (STAGE_RESULT_BUCKET): put them into their bucket, and read and remove them there", when: stows, publish: []string{
		"$JS.API.STREAM.INFO.OBJ_{BUCKET}",
		"$JS.API.STREAM.MSG.GET.OBJ_{BUCKET}",
		"$JS.API.STREAM.PURGE.OBJ_{BUCKET}",
		"$O.{BUCKET}.C.*",
		"$O.{BUCKET}.M.*",
	}},
	{section: sectionBucket, why: "large results: learn at once that the bucket was edited", when: stows, subscribe: []string{"$JS.EVENT.ADVISORY.STREAM.UPDATED.OBJ_{BUCKET}"}},
	{section: sectionMaxAge, why: "old results (STAGE_RESULT_MAX_AGE): find them, record that they go, and remove them", when: func(c *config.Config) bool { return c.Result.MaxAge > 0 }, publish: []string{
		"$JS.API.CONSUMER.CREATE.{RESULTS}.>",
		"$JS.API.CONSUMER.MSG.NEXT.{RESULTS}.>",
		"$JS.API.STREAM.PURGE.{RESULTS}",
		"{results}.{name}.dropped.{p}",
	}},
	{section: sectionDedupe, why: "stored replies (STAGE_DEDUPE)", when: dedupes, publish: []string{
		"$JS.API.STREAM.INFO.DEDUPE",
		"$JS.API.DIRECT.GET.DEDUPE." + config.DedupePrefix + ">",
		config.DedupePrefix + ">",
	}},
	{section: sectionMedia, why: "pictures, documents and sounds: read each bucket that rows name; put its name in the place of BUCKET", when: hasMedia, publish: []string{
		"$JS.API.STREAM.MSG.GET.OBJ_BUCKET",
	}},
	{section: sectionCeiling, why: "ceiling (STAGE_MAX_COST_USD): read the cost of earlier runs", when: func(c *config.Config) bool { return c.Cost.MaxUSD > 0 }, publish: []string{
		"$JS.API.CONSUMER.CREATE.{AUDIT}.>",
		"$JS.API.CONSUMER.MSG.NEXT.{AUDIT}.>",
		"$JS.API.STREAM.MSG.GET.{AUDIT}",
	}},
}

// eraseRules are what the user of `stage erase` needs, and nobody else: whoever may delete
// single messages may also delete those that prove what was stored.
var eraseRules = []rule{
	{section: sectionErase, why: "find the rows, and all that is stored of them", publish: []string{
		"$JS.API.STREAM.INFO.{ROWS}",
		"$JS.API.STREAM.INFO.{RESULTS}",
		"$JS.API.STREAM.INFO.{AUDIT}",
		"$JS.API.STREAM.INFO.{LANE}",
		"$JS.API.STREAM.MSG.GET.{ROWS}",
		"$JS.API.STREAM.MSG.GET.{RESULTS}",
		"$JS.API.STREAM.MSG.GET.{AUDIT}",
		"$JS.API.STREAM.MSG.GET.{JOURNAL}",
		"$JS.API.STREAM.MSG.GET.DEDUPE",
		"$JS.API.CONSUMER.CREATE.{ROWS}.>",
		"$JS.API.CONSUMER.MSG.NEXT.{ROWS}.>",
		"$JS.API.CONSUMER.CREATE.{RESULTS}.>",
		"$JS.API.CONSUMER.MSG.NEXT.{RESULTS}.>",
		"$JS.API.CONSUMER.CREATE.{AUDIT}.>",
		"$JS.API.CONSUMER.MSG.NEXT.{AUDIT}.>",
		"$JS.API.CONSUMER.CREATE.DEDUPE.>",
		"$JS.API.CONSUMER.MSG.NEXT.DEDUPE.>",
	}},
	{section: sectionErase, why: "erase it", publish: []string{
		"$JS.API.STREAM.MSG.DELETE.{ROWS}",
		"$JS.API.STREAM.MSG.DELETE.{RESULTS}",
		"$JS.API.STREAM.MSG.DELETE.{AUDIT}",
		"$JS.API.STREAM.MSG.DELETE.{JOURNAL}",
		"$JS.API.STREAM.MSG.DELETE.DEDUPE",
	}},
	{section: sectionErase, why: "tombstones, a claim behind a result that is the last, and what stays of events", publish: []string{
		"{results}.{name}.erased.{p}.*",
		"{results}.{name}.{p}.claim",
		"{audit}.{name}.{p}.call",
		"{audit}.{name}.{p}.row",
		"{audit}.{name}.all.run",
	}},
	{section: sectionErase, why: "large results (STAGE_RESULT_BUCKET)", when: stows, publish: []string{
		"$JS.API.STREAM.MSG.GET.OBJ_{BUCKET}",
		"$JS.API.STREAM.MSG.DELETE.OBJ_{BUCKET}",
		"$JS.API.CONSUMER.CREATE.OBJ_{BUCKET}.>",
		"$JS.API.CONSUMER.MSG.NEXT.OBJ_{BUCKET}.>",
	}},
	{section: sectionErase, why: "dead letters (STAGE_DEAD_LETTER_SUBJECT): find their stream; the name of that stream takes the place of DEAD", when: func(c *config.Config) bool { return c.Streams.DeadLetterSubject != "" }, publish: []string{
		"$JS.API.STREAM.NAMES",
		"$JS.API.CONSUMER.CREATE.DEAD.>",
		"$JS.API.CONSUMER.MSG.NEXT.DEAD.>",
		"$JS.API.STREAM.MSG.GET.DEAD",
		"$JS.API.STREAM.MSG.DELETE.DEAD",
	}},
	{section: sectionErase, why: "records of batches (STAGE_LANE)", when: (*config.Config).LaneOn, publish: []string{
		"$JS.API.CONSUMER.CREATE.{LANE}.>",
		"$JS.API.CONSUMER.MSG.NEXT.{LANE}.>",
		"$JS.API.STREAM.MSG.GET.{LANE}",
		"$JS.API.STREAM.MSG.DELETE.{LANE}",
	}},
	{section: sectionErase, why: "answers of the server; set STAGE_NATS_INBOX_PREFIX so that the user can't read those of others", when: sharedInbox, subscribe: []string{"_INBOX.>"}},
	{section: sectionErase, why: "answers of the server (STAGE_NATS_INBOX_PREFIX)", when: ownInbox, subscribe: []string{"{inbox}.>"}},
}

func sharedInbox(c *config.Config) bool { return c.NATS.InboxPrefix == "" }
func ownInbox(c *config.Config) bool    { return c.NATS.InboxPrefix != "" }
func journal(c *config.Config) bool     { return c.Journal.Enabled }
func batches(c *config.Config) bool     { return c.Serve.Batches }
func creates(c *config.Config) bool     { return c.Streams.Create }
func dedupes(c *config.Config) bool     { return c.Rows.Dedupe == "stored" }
func stows(c *config.Config) bool       { return c.Result.Bucket != "" }
func reordered(c *config.Config) bool   { return !c.Order.OfStream() }

// hasMedia reports whether rows may name objects.
func hasMedia(c *config.Config) bool {
	return c.Prompt.MessagesFile+c.Prompt.MessagesField+c.Prompt.RequestField != ""
}

func both(a, b func(*config.Config) bool) func(*config.Config) bool {
	return func(c *config.Config) bool { return a(c) && b(c) }
}
