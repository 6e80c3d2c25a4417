package config

import (
	"reflect"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/rowkey"
)

// kind is how the values of a type are written: for the help, for the JSON Schema, and
// for the problem of a text that is no such value.
type kind struct {
	name string // what the help calls the value
	json string // type of an unquoted value in JSON and YAML, or "" where it is always text
	// pattern matches the texts in the JSON Schema, or is "" if any text may be right. It
	// also matches "", which counts as unset.
	pattern string
	// problem completes the error of a text that can't be decoded, for example "is not a
	// number". It is "" if the error of the type's own decoder says what is wrong.
	problem string

	// check returns the problem of a text that could be decoded, or "". It may be nil.
	check func(text string) string
}

const (
	numberPattern   = `^([+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)?$`
	durationPattern = `\+?(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|ms|s|m|h))+`
)

// kinds has the kind of each type in [Config]. A new type of field needs an entry here. A
// pattern accepts the empty text, too, since a variable set to "" counts as unset.
var kinds = map[reflect.Type]kind{
	reflect.TypeFor[bool]():           {name: "bool", json: "boolean", pattern: `^([01tfTF]|true|false|True|False|TRUE|FALSE)?$`, problem: "is not true or false"},
	reflect.TypeFor[int]():            {name: "number", json: "integer", pattern: `^([+-]?[0-9]+)?$`, problem: "is not a whole number"},
	reflect.TypeFor[float64]():        {name: "number", json: "number", pattern: numberPattern, problem: "is not a number"},
	reflect.TypeFor[Milliseconds]():   {name: "ms", json: "number", pattern: numberPattern},
	reflect.TypeFor[Size]():           {name: "size", json: "integer", pattern: `^ *([0-9]+ *(B|KiB|MiB|GiB)? *)?$`},
	reflect.TypeFor[time.Duration]():  {name: "duration", pattern: `^(0|` + durationPattern + `)?$`, problem: "is not a duration: write it with a unit, such as 500ms, 30s or 24h"},
	reflect.TypeFor[SyncPolicy]():     {name: "duration", pattern: `^(always|` + durationPattern + `)?$`},
	reflect.TypeFor[ProviderLimits](): {name: "list", pattern: `^([a-z-]+=[0-9]+( *, *[a-z-]+=[0-9]+)*)?$`},
	reflect.TypeFor[Fallbacks]():      {name: "list", pattern: `^([a-z-]+:[^,]+(, *[a-z-]+:[^,]+)*)?$`},
	reflect.TypeFor[Parts]():          {name: "list", pattern: partsPattern},
	reflect.TypeFor[HostNames]():      {name: "list", pattern: `^[A-Za-z0-9_.*:\[\], -]*$`},
	reflect.TypeFor[URLs]():           {name: "url"},
	reflect.TypeFor[streams.Order]():  {name: "text"},
	reflect.TypeFor[BudgetName]():     {name: "text", pattern: budgetPattern, check: checkBudgetName},
	reflect.TypeFor[rowkey.Place]():   {name: "text", pattern: `^(subject(\.[1-9][0-9]*)?|header\.[!-9;-~]+|field\..+)?$`},
	reflect.TypeFor[Secret]():         {name: "path"}, // its flag takes the path of the file
	reflect.TypeFor[string]():         {name: "text"},
}

// kindOf returns the kind of a field by its type, or by its tags file and url.
func kindOf(sf reflect.StructField) kind {
	t := sf.Type
	switch {
	case sf.Tag.Get("file") != "":
		return kind{name: "path", check: checkFile}
	case sf.Tag.Get("url") != "":
		return kind{name: "url", pattern: `^(https?://[^#]+)?$`, check: checkBaseURL}
	case t.Kind() == reflect.Pointer:
		t = t.Elem()
	}
	return kinds[t]
}

// Kind returns the kind of value that the field takes, for the help: path, url, duration,
// size, ms, list, bool, number or text.
func (f *Field) Kind() string { return f.kind.name }
