package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sethvargo/go-envconfig"
)

// variablePrefix starts the name of every variable of the configuration.
const variablePrefix = "STAGE_"

// fileSuffix makes the name of the variable that gives a secret by the path of a file.
const fileSuffix = "_FILE"

// field is one variable of the configuration: a leaf of [Config] with what its tags say.
type field struct {
	variable string // STAGE_POOL_SIZE
	group    string // heading in the help
	help     string
	fallback string // default, as it would be written in the environment
	secret   bool
	isFile   bool // value is the path of a file that must be there
	isURL    bool // value is an http or https URL
	oneOf    []string
	min      bound // inclusive
	above    bound // exclusive
	max      bound // inclusive
	index    []int // path from Config
	leaf     reflect.StructField
}

// bound is a limit on a number, with its text for people. The zero bound limits nothing.
type bound struct {
	text  string
	value float64
}

// flagVariables are the variables that have a flag of their own: of a secret that of its path, which may show in the list
// of processes, and its own too where it seldom holds one.
func (f *field) flagVariables() []string {
	switch {
	case f.secret && f.leaf.Tag.Get("flag") == "value":
		return []string{f.variable, f.variable + fileSuffix}
	case f.secret:
		return []string{f.variable + fileSuffix}
	default:
		return []string{f.variable}
	}
}

// flagName turns the name of a variable into that of its flag.
func flagName(variable string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(variable, variablePrefix), "_", "-"))
}

// value is the field in c, addressable.
func (f *field) value(c *Config) reflect.Value {
	return reflect.ValueOf(c).Elem().FieldByIndex(f.index)
}

// configFields are all fields in the order of [Config], which is the order of help, table and faults.
var configFields = sync.OnceValue(func() []field {
	fields := appendFields(nil, reflect.TypeFor[Config](), nil, variablePrefix, "")
	for i := range fields {
		f := &fields[i]
		f.min, f.above, f.max = f.bound("min"), f.bound("above"), f.bound("max")
	}
	return fields
})

// fieldsByVariable finds a field by the name of its variable.
var fieldsByVariable = sync.OnceValue(func() map[string]*field {
	fields := configFields()
	byVariable := make(map[string]*field, len(fields))
	for i := range fields {
		byVariable[fields[i].variable] = &fields[i]
	}
	return byVariable
})

// appendFields walks the struct t, whose variables start with prefix. A struct whose tag has no key, or none at all,
// is a group of fields; one with a key, such as a Secret, is a leaf.
func appendFields(fields []field, t reflect.Type, index []int, prefix, group string) []field {
	for i := range t.NumField() {
		sf := t.Field(i)
		if !sf.IsExported() {
			continue
		}
		path := append(append([]int(nil), index...), i)
		key, options, _ := strings.Cut(sf.Tag.Get("env"), ",")
		under := group
		if g := sf.Tag.Get("group"); g != "" {
			under = g
		}
		if key == "" {
			_, own, _ := strings.Cut(options, "prefix=")
			fields = appendFields(fields, sf.Type, path, prefix+own, under)
			continue
		}
		_, fallback, _ := strings.Cut(options, "default=")
		fields = append(fields, field{
			variable: prefix + key,
			group:    under,
			help:     sf.Tag.Get("help"),
			fallback: fallback,
			secret:   sf.Type == reflect.TypeFor[Secret](),
			isFile:   sf.Tag.Get("file") != "",
			isURL:    sf.Tag.Get("url") != "",
			oneOf:    strings.Fields(sf.Tag.Get("oneof")),
			index:    path,
			leaf:     sf,
		})
	}
	return fields
}

// bound reads a bound of the field's tags as a value of the field's own type.
func (f *field) bound(tag string) bound {
	text := f.leaf.Tag.Get(tag)
	if text == "" {
		return bound{}
	}
	var c Config
	lookuper := envconfig.MapLookuper(map[string]string{f.variable: text})
	if err := f.decode(context.Background(), &c, lookuper); err != nil {
		panic(fmt.Sprintf("tag %s of %s: %v", tag, f.variable, err))
	}
	n, _ := number(reflect.Indirect(f.value(&c)))
	return bound{text: text, value: n}
}

// decode reads the field from the lookuper, which is asked for the full name of the variable. go-envconfig stops at
// the first fault of a struct, and all faults are wanted at once: so each field is decoded as a struct of its own. A
// field without text or default stays as it is, as go-envconfig would hand "" to the decoder of its type.
func (f *field) decode(ctx context.Context, c *Config, lookuper envconfig.Lookuper) error {
	if _, set := lookuper.Lookup(f.variable); !set && f.fallback == "" {
		return nil
	}
	key, _, _ := strings.Cut(f.leaf.Tag.Get("env"), ",")
	single := reflect.New(reflect.StructOf([]reflect.StructField{{Name: f.leaf.Name, Type: f.leaf.Type, Tag: f.leaf.Tag}}))
	err := envconfig.ProcessWith(ctx, &envconfig.Config{
		Target:   single.Interface(),
		Lookuper: envconfig.PrefixLookuper(strings.TrimSuffix(f.variable, key), lookuper),
	})
	if err != nil {
		text, _ := lookuper.Lookup(f.variable)
		return f.decodeFault(text, err)
	}
	f.value(c).Set(single.Elem().Field(0))
	return nil
}

// decodeFault says how to write a value of the field's type. The types of this package say it themselves.
func (f *field) decodeFault(text string, err error) error {
	t := f.leaf.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == reflect.TypeFor[time.Duration]() {
		return fmt.Errorf("%q is not a duration: write it with a unit, such as 500ms, 30s or 24h", text)
	}
	switch {
	case t.PkgPath() != "": // the type's own decoder; envconfig has put the name of the Go field before its error
		return cmp.Or(errors.Unwrap(err), err)
	case t.Kind() == reflect.Bool:
		return fmt.Errorf("%q is not true or false", text)
	case t.Kind() == reflect.Int:
		return fmt.Errorf("%q is not a whole number", text)
	case t.Kind() == reflect.Float64:
		return fmt.Errorf("%q is not a number", text)
	default:
		return err
	}
}

// text writes the value that the field has in c as it would be written in the environment, secrets and passwords
// hidden.
func (f *field) text(c *Config) string {
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

// kind names the values that the field takes, for the help.
func (f *field) kind() string {
	t := f.leaf.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case f.secret, f.isFile:
		return "path"
	case f.isURL, t == reflect.TypeFor[URLs]():
		return "url"
	case t == reflect.TypeFor[time.Duration](), t == reflect.TypeFor[SyncPolicy]():
		return "duration"
	case t == reflect.TypeFor[Size]():
		return "size"
	case t == reflect.TypeFor[Milliseconds]():
		return "ms"
	case t == reflect.TypeFor[ProviderLimits](), t == reflect.TypeFor[Fallbacks](), t == reflect.TypeFor[HostNames]():
		return "list"
	case t.Kind() == reflect.Bool:
		return "bool"
	case t.Kind() == reflect.Int, t.Kind() == reflect.Float64:
		return "number"
	default:
		return "text"
	}
}
