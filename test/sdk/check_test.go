package sdk

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// fits checks that a request is what T describes: it has the members that T requires, and none that T does not know,
// which would be lost when it is decoded and encoded again. A text may become a list of one part: that is the same.
// The members that besides names are not compared.
func fits[T any](t *testing.T, raw []byte, besides ...string) T {
	t.Helper()
	var params T
	if err := json.Unmarshal(raw, &params); err != nil {
		t.Fatalf("%T: %v\n%s", params, err, raw)
	}
	again, err := json.Marshal(params)
	if err != nil {
		t.Fatalf("%T: %v\n%s", params, err, raw)
	}
	if !reflect.DeepEqual(parts(without(value(t, raw), besides)), parts(value(t, again))) {
		t.Errorf("%T does not describe\n%s\nbut\n%s", params, raw, again)
	}
	for _, name := range absent(reflect.ValueOf(params)) {
		t.Errorf("%T requires %s:\n%s", params, name, raw)
	}
	return params
}

// without returns a value without the members of these names, at any depth.
func without(v any, names []string) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = without(v[i], names)
		}
	case map[string]any:
		for _, name := range names {
			delete(v, name)
		}
		for name, member := range v {
			v[name] = without(member, names)
		}
	}
	return v
}

// parts returns a value with the texts of messages and system prompts as lists of one part.
func parts(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = parts(v[i])
		}
	case map[string]any:
		for name, member := range v {
			v[name] = parts(member)
			if text, ok := member.(string); ok && (name == "content" || name == "system") {
				v[name] = []any{map[string]any{"type": "text", "text": text}}
			}
		}
	}
	return v
}

func value(t *testing.T, raw []byte) (v any) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if err := decoder.Decode(&v); err != nil {
		t.Fatalf("%v\n%s", err, raw)
	}
	return v
}

// absent returns the members of a parameter object that are required and have no value.
func absent(v reflect.Value) (names []string) {
	switch v.Kind() { //nolint:exhaustive // the others hold no members
	case reflect.Pointer:
		if !v.IsNil() {
			return absent(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			names = append(names, absent(v.Index(i))...)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			switch {
			case !f.IsExported() || f.Anonymous:
			case f.Tag.Get("api") == "required" && v.Field(i).IsZero():
				names = append(names, f.Name)
			case !v.Field(i).IsZero():
				names = append(names, absent(v.Field(i))...)
			}
		}
	}
	return names
}

// known checks that an SDK understands all of an answer that it has decoded.
func known(t *testing.T, answer any) {
	t.Helper()
	for _, problem := range strange(reflect.ValueOf(answer), fmt.Sprintf("%T", answer)) {
		t.Errorf("%s", problem)
	}
}

// received is what the SDKs keep of a member as it came.
type received interface {
	Raw() string
	Valid() bool
}

// strange returns the members of a decoded answer that the SDK does not know or cannot read, and those that it misses.
func strange(v reflect.Value, at string) (problems []string) {
	switch v.Kind() { //nolint:exhaustive // the others hold no members
	case reflect.Pointer:
		if !v.IsNil() {
			return strange(v.Elem(), at)
		}
		return nil
	case reflect.Slice:
		for i := range v.Len() {
			problems = append(problems, strange(v.Index(i), fmt.Sprintf("%s[%d]", at, i))...)
		}
		return problems
	case reflect.Struct:
	default:
		return nil
	}
	members := v.FieldByName("JSON")
	if !members.IsValid() {
		return nil
	}
	if extra := members.FieldByName("ExtraFields"); extra.IsValid() && extra.Len() > 0 {
		problems = append(problems, fmt.Sprintf("%s has members that the SDK does not know: %v", at, extra.MapKeys()))
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		member := members.FieldByName(f.Name)
		if name == "" || name == "-" || !member.IsValid() {
			continue
		}
		m := member.Interface().(received)
		required, constant := f.Tag.Get("api") == "required", f.Tag.Get("default")
		switch where := at + "." + name; {
		case m.Valid():
			if constant != "" && v.Field(i).String() != constant {
				problems = append(problems, fmt.Sprintf("%s is %s, not %q", where, m.Raw(), constant))
			}
			problems = append(problems, strange(v.Field(i), where)...)
		case m.Raw() == "" && (required || constant != ""):
			problems = append(problems, where+" is missing")
		case m.Raw() != "" && m.Raw() != "null":
			problems = append(problems, fmt.Sprintf("%s has a value of another type: %s", where, m.Raw()))
		}
	}
	return problems
}
