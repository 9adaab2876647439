package main

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// Special values travel as objects with this key, whose value says what they
// are. The numbers are fixed by Pulumi's protocol.
const (
	signatureKey     = "4dabf18193072939515e22adb298388d"
	secretSignature  = "1b47061264138c4ac30d75fd1eb44270"
	assetSignature   = "c44067f5952c0a294b673a41bacd8c17"
	archiveSignature = "0def7320c3a5731c473e5ecbe6d01bc7"
	outputSignature  = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
)

// unknownString stands for a string that is not known during a preview.
const unknownString = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"

// unknowns are the strings that stand for unknown values of some type.
var unknowns = map[string]bool{
	unknownString:                          true,
	"1c4a061d-8072-4f0a-a4cb-0ff528b18fe7": true, // bool
	"3eeb2bf0-c639-47a8-9e75-3b44932eb421": true, // number
	"6a19a0b0-7e62-4c92-b797-7f8e31da9cc2": true, // list
	"030794c1-ac77-496b-92df-f27374a8bd58": true, // asset
	"e48ece36-62e2-4504-bad9-02848725956a": true, // archive
	"dd056dcd-154b-4c76-9bd3-c8f88648b5ff": true, // object
}

// properties are the named values of a resource, as they travel.
type properties map[string]*structpb.Value

// cloneProperties returns a deep copy, which may be changed freely.
func cloneProperties(source *structpb.Struct) properties {
	if source == nil {
		return properties{}
	}
	return properties(proto.Clone(source).(*structpb.Struct).GetFields()).orEmpty()
}

func (p properties) orEmpty() properties {
	if p == nil {
		return properties{}
	}
	return p
}

// toStruct returns the properties in the form in which they travel.
func (p properties) toStruct() *structpb.Struct {
	return &structpb.Struct{Fields: p}
}

// sortedKeys returns the names in a stable order.
func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}

// signature says what special value this is, or returns "".
func signature(value *structpb.Value) string {
	return value.GetStructValue().GetFields()[signatureKey].GetStringValue()
}

// secret marks a value as secret, unless it is already or is not known yet.
func secret(value *structpb.Value) *structpb.Value {
	if signature(value) == secretSignature || isUnknown(value) {
		return value
	}
	return structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
		signatureKey: structpb.NewStringValue(secretSignature),
		"value":      value,
	}})
}

// bare returns the value inside a secret or an output, or the value itself.
func bare(value *structpb.Value) *structpb.Value {
	for {
		switch signature(value) {
		case secretSignature:
			value = value.GetStructValue().GetFields()["value"]
		case outputSignature:
			inner, known := value.GetStructValue().GetFields()["value"]
			if !known {
				return structpb.NewStringValue(unknownString)
			}
			value = inner
		default:
			return value
		}
	}
}

// isNull reports whether there is no value.
func isNull(value *structpb.Value) bool {
	if value == nil {
		return true
	}
	_, null := value.GetKind().(*structpb.Value_NullValue)
	return null
}

// isUnknown reports whether the value itself is unknown.
func isUnknown(value *structpb.Value) bool {
	text, ok := bare(value).GetKind().(*structpb.Value_StringValue)
	return ok && unknowns[text.StringValue]
}

// holdsUnknown reports whether the value or anything in it is unknown.
func holdsUnknown(value *structpb.Value) bool {
	value = bare(value)
	switch kind := value.GetKind().(type) {
	case *structpb.Value_ListValue:
		return slices.ContainsFunc(kind.ListValue.GetValues(), holdsUnknown)
	case *structpb.Value_StructValue:
		for _, field := range kind.StructValue.GetFields() {
			if holdsUnknown(field) {
				return true
			}
		}
		return false
	default:
		return isUnknown(value)
	}
}

// equal compares two values. Assets and archives are equal if their contents
// are, wherever these lie; a secret differs from the same value in the open.
func equal(a, b *structpb.Value) bool {
	if isNull(a) || isNull(b) {
		return isNull(a) && isNull(b)
	}
	switch mark := signature(a); {
	case mark != signature(b):
		return false
	case mark == assetSignature || mark == archiveSignature:
		hashA, hashB := assetHash(a), assetHash(b)
		if hashA != "" && hashB != "" {
			return hashA == hashB
		}
	}
	switch kind := a.GetKind().(type) {
	case *structpb.Value_ListValue:
		other, ok := b.GetKind().(*structpb.Value_ListValue)
		return ok && slices.EqualFunc(kind.ListValue.GetValues(), other.ListValue.GetValues(), equal)
	case *structpb.Value_StructValue:
		other, ok := b.GetKind().(*structpb.Value_StructValue)
		return ok && maps.EqualFunc(kind.StructValue.GetFields(), other.StructValue.GetFields(), equal)
	default:
		return proto.Equal(a, b)
	}
}

// assetHash returns the hash that the engine computed of an asset or archive.
func assetHash(value *structpb.Value) string {
	return value.GetStructValue().GetFields()["hash"].GetStringValue()
}

// textValue returns a string value. Output of commands need not be valid
// UTF-8, which the protocol demands.
func textValue(text string) *structpb.Value {
	return structpb.NewStringValue(strings.ToValidUTF8(text, "\uFFFD"))
}
