package schemas_test

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/golden"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"
)

type object = map[string]any

// headers are those of a stage, with what they say. Where a message has one is in the document.
var headers = map[string]string{
	"Stage-Source-Stream": "stream of the row", "Stage-Source-Seq": "sequence of the row in that stream", "Stage-Source-Subject": "subject of the row",
	"Stage-Status": "success or error", "Stage-State-Id": "the row's permanent name: stage/stream/partition/sequence",
	"Stage-Owner":         "term of ownership that stored the message",
	"Stage-Origin-Stream": "in a chain, stream of the first row", "Stage-Origin-Seq": "in a chain, sequence of the first row",
	"Stage-Low":           "not in stream order: every row up to this sequence has its result here or before",
	"Stage-Ahead":         "not in stream order: how many rows above Stage-Low have their result; absent where there is none",
	"Stage-Ahead-From":    "not in stream order: a sequence of the results stream before which none of these results lies",
	"Stage-Key":           "STAGE_ORDER=key: the row's key",
	"Stage-Chain":         "the hash of all messages of the partition's log up to this one, in hexadecimal: docs/reliability.md has the bytes",
	"Stage-Event":         "the first 16 bytes of the SHA-256 of the row's event, in base64url without padding",
	"Stage-Recorded":      "of an event that was cut after it was recorded, or whose row was erased: the SHA-256 of the event as recorded, in hexadecimal",
	"Stage-Erased":        "what this message stands for was erased: when, and by whom",
	"Stage-Erased-Seq":    "sequence in the audit stream of the event that this one stands for, which was erased",
	"Stage-Object":        "a body that is larger than a message: the object that holds it, as BUCKET/NAME",
	"Stage-Object-Digest": "the body's SHA-256, as the object store writes it", "Stage-Object-Bytes": "the body's size",
	"Stage-Redrive-Of": "the failed row that was published again as this one, by its state id",
	"Stage-Replaces":   "sequence of the row whose place the result takes",
	"Stage-Model":      "model for this row", "Stage-Lane": "live or batch, with a batch lane",
	"Stage-Deadline": "a duration from the row's arrival, or an instant in RFC 3339, with a batch lane",
	"Stage-Load-Id":  "file that the row comes from", "Stage-Load-Row": "place of the row in that file, from 1",
	"Stage-Row-Error": "reason of a row whose body no message can hold", "Stage-Row-Size": "its size in bytes", "Stage-Row-Limit": "what there is room for",
	"Stage-Row-Problem": "why the row can't be read from its file",
	"Stage-Reason":      "reason of the failure", "Stage-Error": "the failure as one line of at most 500 bytes",
	"Stage-Truncated":      "the row left no room for the reason, and is not in the message",
	"Stage-Rows":           "the lowest and the highest sequence of the rows that the call served, as 12-75",
	"Stage-Batch-Id":       "the batched request, as in the audit",
	"Stage-Warning":        "what is outdated about the request",
	"Stage-Redrive-Result": "sequence of the failed result in the results stream",
}

// internalHeaders are on messages of streams that only a stage reads.
var internalHeaders = []string{
	"Stage-Item", "Stage-Request-Hash", "Stage-Reply-Form", "Stage-Input-Created", // the journal
	"Stage-Redrive-From", "Stage-Redrive-As", // marks of redrive in the results stream
	"Stage-Lane-Record",                                                                                                           // the batch lane
	"Stage-Batch-Keep", "Stage-Batch-Prompts", "Stage-Batch-Hash", "Stage-Batch-Done", "Stage-Batch-Problem", "Stage-Batch-State", // deferred batches
}

// headersOf describes the headers of a message. All values are texts.
func headersOf(names ...string) object {
	properties := make(object)
	for _, name := range names {
		properties[name] = object{"type": "string", "description": headers[name]}
	}
	return object{"type": "object", "properties": properties}
}

// draft202012 is a payload with a schema of the drafts that the schemas here have.
func draft202012(schema object) object {
	return object{"schemaFormat": "application/schema+json;version=draft-2020-12", "schema": schema}
}

// asyncAPI is the description of subjects, headers and events for the defaults of a stage.
func asyncAPI(t *testing.T) object {
	t.Helper()
	cfg := stagetest.Value(config.Source{}.Load(t.Context(), config.NeedNothing))(t)
	const name, number = "STAGENAME", 4711
	address := strings.NewReplacer(name, "{stage}", fmt.Sprint(number), "{partition}").Replace
	parameters := func(of string) object {
		all := make(object)
		for parameter, description := range map[string]string{
			"stage": "STAGE_NAME", "partition": "a number from 0 to STAGE_PARTITIONS-1, or all", "row": "the rest of the subject, which is the producer's",
		} {
			if strings.Contains(of, "{"+parameter+"}") {
				all[parameter] = object{"description": description}
			}
		}
		return all
	}
	channels, operations, messages := make(object), make(object), make(object)
	add := func(id, action, subject, description string, message object, more ...object) {
		channel := object{"description": description, "messages": object{id: object{"$ref": "#/components/messages/" + id}}}
		if subject == "" {
			channel["address"] = nil
		} else {
			channel["address"], channel["parameters"] = subject, parameters(subject)
		}
		message["contentType"] = "application/json"
		channels[id], messages[id] = channel, message
		operation := object{"action": action, "channel": object{"$ref": "#/channels/" + id}}
		for _, m := range more {
			maps.Copy(operation, m)
		}
		operations[id] = operation
	}

	add("row", "receive", strings.Replace(cfg.Input.Subject, ">", "{row}", 1), "Rows, in stream "+cfg.Input.Stream+" (STAGE_INPUT_STREAM, STAGE_INPUT_SUBJECT). Other headers go on to the result.",
		object{"payload": object{"type": "object"}, "headers": headersOf("Stage-Model", "Stage-Lane", "Stage-Deadline", "Stage-Redrive-Of", "Stage-Redrive-Result", "Stage-Replaces",
			"Stage-Load-Id", "Stage-Load-Row", "Stage-Row-Error", "Stage-Row-Size", "Stage-Row-Limit", "Stage-Row-Problem")})
	marks := []string{"Stage-Low", "Stage-Ahead", "Stage-Ahead-From"}
	add("result", "send", address(streams.ResultSubject(cfg.Result.Subject, name, number)), "One result for each row, in stream "+cfg.Result.Stream+" (STAGE_RESULT_STREAM, STAGE_RESULT_SUBJECT).",
		object{"payload": draft202012(object{"$ref": "./result.schema.json"}), "headers": headersOf(slices.Concat(marks, []string{
			"Stage-Status", "Stage-Source-Stream", "Stage-Source-Seq", "Stage-Source-Subject", "Stage-State-Id", "Stage-Owner", "Stage-Origin-Stream",
			"Stage-Origin-Seq", "Stage-Key", "Stage-Chain", "Stage-Event", "Stage-Object", "Stage-Object-Digest", "Stage-Object-Bytes", "Stage-Replaces",
		})...)})
	add("claim", "send", address(streams.ClaimSubject(cfg.Result.Subject, name, number)), "A replica has taken a partition over: it fences the one before. Readers of results skip it.",
		object{"payload": object{"type": "object"}, "headers": headersOf(slices.Concat(marks, []string{"Stage-Owner", "Stage-Source-Stream", "Stage-Source-Seq", "Stage-Key", "Stage-Chain"})...)})
	dropped := make(object)
	for field := range reflect.TypeFor[streams.Dropped]().Fields() {
		dropped[field.Tag.Get("json")] = object{}
	}
	add("dropped", "send", streams.DroppedSubject(cfg.Result.Subject, "{stage}", "{partition}"), "Results up to a place of the stream were dropped for their age (STAGE_RESULT_MAX_AGE). Readers of results skip it.",
		object{"payload": object{"type": "object", "required": slices.Sorted(maps.Keys(dropped)), "properties": dropped}})
	for _, kind := range []auditlog.Kind{auditlog.KindCall, auditlog.KindRow, auditlog.KindRun, auditlog.KindBatch} {
		subject := cfg.Audit.Subject + ".{stage}.{partition}." + string(kind)
		if got := address(streams.AuditSubject(cfg.Audit.Subject, name, number, kind)); got != subject {
			t.Errorf("audit subject %s, want %s", got, subject)
		}
		message := object{"payload": draft202012(object{"allOf": []any{
			object{"$ref": "./audit.schema.json"}, object{"properties": object{"event": object{"const": string(kind)}}},
		}})}
		switch kind {
		case auditlog.KindCall:
			message["headers"] = headersOf("Stage-Rows", "Stage-Recorded", "Stage-Erased", "Stage-Erased-Seq")
		case auditlog.KindRow:
			message["headers"] = headersOf("Stage-Recorded", "Stage-Erased", "Stage-Erased-Seq")
		case auditlog.KindBatch, auditlog.KindRun:
		}
		add(string(kind)+"Event", "send", subject, "Audit events of kind "+string(kind)+", in stream "+cfg.Audit.Stream+" (STAGE_AUDIT_STREAM, STAGE_AUDIT_SUBJECT).", message)
	}
	add("deadLetter", "send", "", "Rows that failed, as they came, on STAGE_DEAD_LETTER_SUBJECT; without it there are none. Headers of the row go on.",
		object{"payload": object{"type": "object"}, "headers": headersOf("Stage-Reason", "Stage-Error", "Stage-Truncated", "Stage-Source-Seq", "Stage-Source-Subject")})
	add("batchReply", "send", "", "The answer to a batched request, on the request's reply subject.",
		object{"payload": object{"type": "object", "required": []any{"results", "total_tokens", "total_time_ms"}}, "headers": headersOf("Stage-Batch-Id", "Stage-Warning")})
	delete(operations, "batchReply")
	add("batchRequest", "receive", "{stage}.llm_batch", "Batched requests: prompts that are answered in one reply.",
		object{"payload": object{"type": "object", "required": []any{"prompts"}, "properties": object{
			"prompts":      object{"type": "array", "items": object{"type": "string"}, "minItems": 1, "maxItems": 1000},
			"contexts":     object{"type": []any{"array", "null"}, "items": object{"type": []any{"string", "null"}}},
			"max_parallel": object{"type": []any{"integer", "null"}}, "model": object{"type": []any{"string", "null"}},
		}}}, object{"reply": object{"channel": object{"$ref": "#/channels/batchReply"}}})
	replyOf := func(id, request string, payload object) {
		add(id+"Reply", "send", "", "The answer to a "+request+" of a deferred batch.", object{"payload": payload})
		delete(operations, id+"Reply")
	}
	text, null := object{"type": "string"}, func(kind string) object { return object{"type": []any{kind, "null"}} }
	replyOf("batchSubmit", "submit", object{"type": "object", "required": []any{"id"}, "properties": object{"id": text}})
	add("batchSubmit", "receive", "{stage}.llm_batch.submit", "Deferred batches: prompts that the stage keeps, and answers whatever becomes of the client.",
		object{"payload": object{"type": "object", "required": []any{"prompts"}, "properties": object{
			"prompts":  object{"type": "array", "items": text, "minItems": 1, "maxItems": 1000},
			"contexts": object{"type": []any{"array", "null"}, "items": null("string")}, "max_parallel": null("integer"), "model": null("string"),
			"id":   object{"type": []any{"string", "null"}, "pattern": "^[0-9A-Za-z_-]{1,64}$", "description": "a batch with an id is only submitted once"},
			"keep": object{"type": []any{"string", "null"}, "description": "how long the answers are kept after the end, such as 24h"},
		}}}, object{"reply": object{"channel": object{"$ref": "#/channels/batchSubmitReply"}}})
	state := object{"type": "object", "required": []any{"id", "state", "done", "total"}, "properties": object{
		"id": text, "state": object{"enum": []any{"queued", "running", "done", "cancelled"}}, "done": object{"type": "integer"}, "total": object{"type": "integer"},
		"problem": text, "expires": object{"type": "string", "format": "date-time"}, "from": object{"type": "integer"}, "next": object{"type": "integer"},
		"results": object{"type": "array", "description": "as in batchReply, with total_tokens and total_time_ms, once the batch is over"},
	}}
	for _, request := range []string{"get", "cancel"} {
		id := "batch" + strings.ToUpper(request[:1]) + request[1:]
		replyOf(id, request, state)
		properties := object{"id": text}
		if request == "get" {
			properties["wait"] = object{"type": []any{"string", "null"}, "description": "how long to wait for the end, at most 10m"}
			properties["from"] = object{"type": []any{"integer", "null"}, "description": "first prompt whose result is wanted, for answers that do not fit into a message"}
		}
		add(id, "receive", "{stage}.llm_batch."+request, map[string]string{"get": "How far a deferred batch has come, and its answers.", "cancel": "Cancels a deferred batch."}[request],
			object{"payload": object{"type": "object", "required": []any{"id"}, "properties": properties}}, object{"reply": object{"channel": object{"$ref": "#/channels/" + id + "Reply"}}})
	}
	return object{
		"asyncapi": "3.0.0", "defaultContentType": "application/json",
		"info": object{
			"title": "llm-stage", "version": "1",
			"description": "Subjects, headers and events of a stage, with its default settings. Readers ignore members and headers that they do not know.",
		},
		"servers":  object{"nats": object{"host": "localhost:4222", "protocol": "nats", "description": "STAGE_NATS_URL"}},
		"channels": channels, "operations": operations, "components": object{"messages": messages},
	}
}

// ASYNCAPI is the path of AsyncAPI's own schema of version 3.0.0, where that is at hand.
func TestTheAsyncAPIDocumentIsTrue(t *testing.T) {
	document := asyncAPI(t)
	text := stagetest.Value(yaml.Marshal(document))(t)
	golden.Check(t, "asyncapi.yaml", "# Written by go test ./docs/schemas -update.\n"+string(text))
	path := os.Getenv("ASYNCAPI")
	if path == "" {
		return
	}
	f := stagetest.Value(os.Open(path))(t)
	defer func() { _ = f.Close() }()
	c := jsonschema.NewCompiler()
	if err := c.AddResource("asyncapi.json", stagetest.Value(jsonschema.UnmarshalJSON(f))(t)); err != nil {
		t.Fatal(err)
	}
	var plain any
	if err := yaml.Unmarshal(text, &plain); err != nil {
		t.Fatal(err)
	}
	if err := stagetest.Value(c.Compile("asyncapi.json"))(t).Validate(plain); err != nil {
		t.Errorf("%v", err)
	}
}

// Each header that the program knows is described, and no other.
func TestEachHeaderIsInTheAsyncAPIDocument(t *testing.T) {
	quoted := regexp.MustCompile(`"(Stage-[A-Z][A-Za-z]*(?:-[A-Z][A-Za-z]*)*)"`)
	found := make(map[string]bool)
	for _, dir := range []string{"../../consumer", "../../internal"} {
		if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			for _, match := range quoted.FindAllSubmatch(source, -1) {
				found[string(match[1])] = true
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	text := string(stagetest.Value(os.ReadFile("asyncapi.yaml"))(t))
	for name := range found {
		if !slices.Contains(internalHeaders, name) && !strings.Contains(text, name+":") {
			t.Errorf("%s is not described: add it to headers and to its messages, and run go test ./docs/schemas -update", name)
		}
	}
	for name := range headers {
		if !found[name] {
			t.Errorf("%s is described, and no program knows it", name)
		}
	}
}
