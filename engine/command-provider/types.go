package main

import (
	"fmt"
	"maps"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
)

// kind is the type of a field. Its text is what messages call it.
type kind string

const (
	textKind     kind = "string"
	boolKind     kind = "bool"
	numberKind   kind = "float64"
	listKind     kind = "[]interface {}"
	textListKind kind = "[]string"
	textMapKind  kind = "map[string]string"
	objectKind   kind = "struct"
	assetKind    kind = "asset"
)

// field describes one input.
type field struct {
	name     string
	kind     kind
	required bool
	// fallback is the value that Check puts in when none is given.
	fallback *structpb.Value
	// object describes the value of a field of kind objectKind.
	object *objectType
	// secret fields are marked as secret as a whole by Check.
	secret bool
	// replaces says that a change of the field as a whole replaces the resource.
	replaces bool
}

// objectType describes a group of fields.
type objectType struct {
	// module and name are only used in messages.
	module, name string
	fields       []field
}

// failure is one thing that is wrong with the inputs.
type failure struct{ property, reason string }

// decodingError lists everything that is wrong with the inputs.
type decodingError []failure

func (e decodingError) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d failures decoding:", len(e))
	for _, failure := range e {
		fmt.Fprintf(&text, "\n\t%s: %s", failure.property, failure.reason)
	}
	return text.String()
}

func (t *objectType) qualifiedName() string { return t.module + "." + t.name }

func (t *objectType) field(name string) *field {
	for i := range t.fields {
		if t.fields[i].name == name {
			return &t.fields[i]
		}
	}
	return nil
}

// check returns what is wrong with the given values, in the fields' order.
func (t *objectType) check(values properties) decodingError {
	var failures decodingError
	for i := range t.fields {
		field := &t.fields[i]
		value := values[field.name]
		var reason string
		switch {
		case !isNull(value):
			reason = t.checkField(field, value)
		case field.required:
			reason = fmt.Sprintf("Missing required field '%s' on '%s'", field.name, t.qualifiedName())
		}
		if reason != "" {
			failures = append(failures, failure{field.name, reason})
		}
	}
	for _, name := range sortedKeys(values) {
		if t.field(name) == nil {
			failures = append(failures, failure{
				name, fmt.Sprintf("Unrecognized field '%s' on '%s'", name, t.qualifiedName()),
			})
		}
	}
	return failures
}

// checkField returns why the value does not fit the field, or "".
func (t *objectType) checkField(field *field, value *structpb.Value) string {
	if isUnknown(value) {
		return ""
	}
	value = bare(value)
	mismatch := func(label string, want kind, got *structpb.Value) string {
		return fmt.Sprintf("Field '%s' on '%s' must be a '%s'; got '%s' instead",
			label, t.qualifiedName(), want, typeName(got))
	}

	switch field.kind {
	case textListKind:
		list, ok := value.GetKind().(*structpb.Value_ListValue)
		if !ok {
			return mismatch(field.name, field.kind, value)
		}
		for i, element := range list.ListValue.GetValues() {
			if !isUnknown(element) && typeName(bare(element)) != textKind {
				return mismatch(fmt.Sprintf("%s[%d]", field.name, i), textKind, bare(element))
			}
		}
	case textMapKind:
		if !isPlainObject(value) {
			return mismatch(field.name, field.kind, value)
		}
		elements := value.GetStructValue().GetFields()
		for _, name := range sortedKeys(elements) {
			element := elements[name]
			if !isUnknown(element) && typeName(bare(element)) != textKind {
				return mismatch(fmt.Sprintf("%s[%s]", field.name, name), textKind, bare(element))
			}
		}
	case objectKind:
		if !isPlainObject(value) {
			return mismatch(field.name, "map[string]interface {}", value)
		}
		if inner := field.object.check(value.GetStructValue().GetFields()); len(inner) > 0 {
			return fmt.Sprintf("An error occurred decoding '%s.%s': %s", t.name, field.name, inner)
		}
	case assetKind:
		if mark := signature(value); mark != assetSignature && mark != archiveSignature {
			return mismatch(field.name, field.kind, value)
		}
	default:
		if typeName(value) != field.kind {
			return mismatch(field.name, field.kind, value)
		}
	}
	return ""
}

// applyDefaults fills in the values of fields that are not given, here and in
// the objects that are given.
func (t *objectType) applyDefaults(values properties) {
	for i := range t.fields {
		field := &t.fields[i]
		value := values[field.name]
		switch {
		case isNull(value) && field.fallback != nil:
			values[field.name] = field.fallback
		case field.kind == objectKind && !isNull(value) && !isUnknown(value):
			object := bare(value).GetStructValue()
			// The map may be nil for an empty object.
			object.Fields = properties(object.GetFields()).orEmpty()
			field.object.applyDefaults(object.GetFields())
		}
	}
}

// applySecrets marks the fields that have to be secret.
func (t *objectType) applySecrets(values properties) {
	for i := range t.fields {
		field := &t.fields[i]
		if value := values[field.name]; field.secret && !isNull(value) {
			values[field.name] = secret(value)
		}
	}
}

// typeName is what messages call the type of a value.
func typeName(value *structpb.Value) kind {
	switch value.GetKind().(type) {
	case *structpb.Value_StringValue:
		return textKind
	case *structpb.Value_BoolValue:
		return boolKind
	case *structpb.Value_NumberValue:
		return numberKind
	case *structpb.Value_ListValue:
		return listKind
	case *structpb.Value_StructValue:
		return "map[string]interface {}"
	default:
		return "<nil>"
	}
}

// isPlainObject reports whether the value is an object that is not special.
func isPlainObject(value *structpb.Value) bool {
	return value.GetStructValue() != nil && signature(value) == ""
}

// The accessors below read checked inputs. A value that is not given reads as
// the zero value of its type.

func (p properties) has(name string) bool { return !isNull(p[name]) }

func (p properties) text(name string) string { return bare(p[name]).GetStringValue() }

func (p properties) number(name string) float64 { return bare(p[name]).GetNumberValue() }

func (p properties) object(name string) properties {
	return properties(maps.Clone(bare(p[name]).GetStructValue().GetFields())).orEmpty()
}

// flag returns a bool that has the given value when it is not given.
func (p properties) flag(name string, fallback bool) bool {
	if !p.has(name) {
		return fallback
	}
	return bare(p[name]).GetBoolValue()
}

func (p properties) textList(name string) []string {
	var texts []string
	for _, element := range bare(p[name]).GetListValue().GetValues() {
		texts = append(texts, bare(element).GetStringValue())
	}
	return texts
}

func (p properties) textMap(name string) map[string]string {
	texts := map[string]string{}
	for key, element := range bare(p[name]).GetStructValue().GetFields() {
		texts[key] = bare(element).GetStringValue()
	}
	return texts
}
