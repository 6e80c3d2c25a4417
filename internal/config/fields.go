package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/llm"
	"github.com/sethvargo/go-envconfig"
)

const (
	// VariablePrefix starts the name of every variable of the configuration.
	VariablePrefix = "STAGE_"
	// FileSuffix ends the name of the variable that holds the path of a file with a
	// secret.
	FileSuffix = "_FILE"
)

// Field is one variable of the configuration: a leaf of [Config], described by its tags.
type Field struct {
	Variable string   // STAGE_POOL_SIZE
	Group    string   // heading in the help
	Help     string   // one sentence without a full stop
	Fallback string   // default, as it would be written in the environment
	Secret   bool     // never printed, and may be given by the path of a file
	OneOf    []string // the words allowed, or none where any text is

	// Deprecated says what to do instead of setting it. It is empty for a variable that
	// stays. One that is deprecated keeps its effect for a release, but is not
	// documented: no help, table or example has it.
	Deprecated string

	// generic is the name that the table shows for a variable that each provider has, for
	// example STAGE_LLM_<PROVIDER>_API_KEY. It is empty for all others.
	generic string
	kind    kind
	min     bound // inclusive
	above   bound // exclusive
	max     bound // inclusive
	index   []int // path from Config, through structs and the slice of providers
	leaf    reflect.StructField
}

// bound is a limit on a number. It keeps the text of the tag, so that a problem says
// 64KiB, and not 65536. The zero bound limits nothing.
type bound struct {
	text  string
	value float64
}

// FlagVariables returns the variables of the field that have a flag. A secret has a
// flag for the path of its file only, since flags show in the list of processes. A field
// that seldom holds a secret also has a flag for its value.
func (f *Field) FlagVariables() []string {
	switch {
	case f.Secret && f.leaf.Tag.Get("flag") == "value":
		return []string{f.Variable, f.Variable + FileSuffix}
	case f.Secret:
		return []string{f.Variable + FileSuffix}
	default:
		return []string{f.Variable}
	}
}

// FlagName returns the name of the variable's flag: pool-size for STAGE_POOL_SIZE.
func FlagName(variable string) string {
	name := strings.TrimPrefix(variable, VariablePrefix)
	return strings.ToLower(strings.ReplaceAll(name, "_", "-"))
}

// value returns the field in c, addressable. It makes the slice of providers where c has
// none yet: reflection can't reach an element of a nil slice.
func (f *Field) value(c *Config) reflect.Value {
	v := reflect.ValueOf(c).Elem()
	for _, i := range f.index {
		if v.Kind() != reflect.Slice {
			v = v.Field(i)
			continue
		}
		if v.IsNil() {
			n := len(llm.Providers())
			v.Set(reflect.MakeSlice(v.Type(), n, n))
		}
		v = v.Index(i)
	}
	return v
}

// Fields returns all fields in the order of [Config], which is the order of help, table
// and problems. It is computed once. Callers must not change the fields.
var Fields = sync.OnceValue(func() []*Field {
	fields := appendFields(nil, reflect.TypeFor[Config](), nil, VariablePrefix, "")
	for _, f := range fields {
		f.min, f.above, f.max = f.bound("min"), f.bound("above"), f.bound("max")
	}
	return fields
})

// fieldsByVariable finds a field by the name of its variable.
var fieldsByVariable = sync.OnceValue(func() map[string]*Field {
	byVariable := make(map[string]*Field)
	for _, f := range Fields() {
		byVariable[f.Variable] = f
	}
	return byVariable
})

// IsDeprecated reports whether a variable is deprecated, see [Field].
func IsDeprecated(variable string) bool {
	f := fieldsByVariable()[variable]
	return f != nil && f.Deprecated != ""
}

// appendFields walks the struct t, whose variables start with prefix. The key of the tag
// env decides: with a key, the field is a leaf, even if its type is a struct such as
// Secret; a struct without a key is a group of fields; a slice without a key has one
// group for each provider. For example, NATS has no key but prefix=NATS_, and its field
// Creds has the key CREDS, which gives STAGE_NATS_CREDS.
func appendFields(fields []*Field, t reflect.Type, index []int, prefix, group string) []*Field {
	for i := range t.NumField() {
		sf := t.Field(i)
		if !sf.IsExported() {
			continue
		}
		path := append(slices.Clone(index), i)
		key, options, _ := strings.Cut(sf.Tag.Get("env"), ",")
		under := cmp.Or(sf.Tag.Get("group"), group)
		_, own, _ := strings.Cut(options, "prefix=")
		switch {
		case key != "":
			fields = append(fields, newField(sf, path, prefix+key, options, under))
		case sf.Type.Kind() == reflect.Slice:
			for n, name := range llm.Providers() {
				before, ownPrefix := len(fields), ProviderVariables(name)+"_"
				fields = appendFields(fields, sf.Type.Elem(), append(slices.Clone(path), n),
					ownPrefix, under)
				for _, f := range fields[before:] {
					f.generic = prefix + "<PROVIDER>_" + strings.TrimPrefix(f.Variable, ownPrefix)
				}
			}
		default:
			fields = appendFields(fields, sf.Type, path, prefix+own, under)
		}
	}
	return fields
}

// newField reads the tags of a leaf. In the help, {oneof} stands for the words allowed.
func newField(sf reflect.StructField, index []int, variable, options, group string) *Field {
	_, fallback, _ := strings.Cut(options, "default=")
	words := strings.Fields(sf.Tag.Get("oneof"))
	if slices.Equal(words, []string{"providers"}) {
		words = llm.Providers()
	}
	return &Field{
		Variable: variable,
		Group:    group,
		Help:     strings.ReplaceAll(sf.Tag.Get("help"), "{oneof}", orList(words)),
		Fallback: fallback,
		Secret:   sf.Type == reflect.TypeFor[Secret](),

		Deprecated: sf.Tag.Get("deprecated"),
		OneOf:      words,
		kind:       kindOf(sf),
		index:      index,
		leaf:       sf,
	}
}

// bound reads a bound as a value of the field's own type, so that a tag may say 64KiB or
// 1s. It panics at a tag that can't be read, which the first test of any kind finds.
func (f *Field) bound(tag string) bound {
	text := f.leaf.Tag.Get(tag)
	if text == "" {
		return bound{}
	}
	var c Config
	lookuper := envconfig.MapLookuper(map[string]string{f.Variable: text})
	if err := f.decode(context.Background(), &c, lookuper); err != nil {
		panic(fmt.Sprintf("tag %s of %s: %v", tag, f.Variable, err))
	}
	n, _ := number(reflect.Indirect(f.value(&c)))
	return bound{text: text, value: n}
}

// decode reads the field from the lookuper, by the full name of the variable.
// go-envconfig stops at the first error in a struct, and all errors must be reported at
// once, so each field is decoded as a struct of its own. A field without text or default
// stays as it is, since go-envconfig would pass "" to the decoder of its type.
func (f *Field) decode(ctx context.Context, c *Config, lookuper envconfig.Lookuper) error {
	if _, set := lookuper.Lookup(f.Variable); !set && f.Fallback == "" {
		return nil
	}
	key, _, _ := strings.Cut(f.leaf.Tag.Get("env"), ",")
	leaf := reflect.StructField{Name: f.leaf.Name, Type: f.leaf.Type, Tag: f.leaf.Tag}
	single := reflect.New(reflect.StructOf([]reflect.StructField{leaf}))
	err := envconfig.ProcessWith(ctx, &envconfig.Config{
		Target:   single.Interface(),
		Lookuper: envconfig.PrefixLookuper(strings.TrimSuffix(f.Variable, key), lookuper),
	})
	if err != nil {
		if f.kind.problem == "" {
			// Unwrapped, the error is that of the decoder. The library has put the name
			// of the Go field before it, which a user does not know.
			return cmp.Or(errors.Unwrap(err), err)
		}
		text, _ := lookuper.Lookup(f.Variable)
		return fmt.Errorf("%q %s", text, f.kind.problem)
	}
	f.value(c).Set(single.Elem().Field(0))
	return nil
}

// text returns the value that the field has in c as it would be written in the
// environment, with secrets and passwords hidden.
func (f *Field) text(c *Config) string {
	v := reflect.Indirect(f.value(c))
	if !v.IsValid() {
		return "" // unset
	}
	switch value := v.Interface().(type) {
	case time.Duration:
		return formatDuration(value)
	case fmt.Stringer:
		return value.String()
	case string:
		return value
	case float64:
		return strconv.FormatFloat(value, 'f', -1, 64)
	default:
		return fmt.Sprint(value)
	}
}
