package main

import (
	"fmt"
	"slices"
	"strings"

	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"google.golang.org/protobuf/types/known/structpb"
)

// diffInputs compares two versions of a resource's inputs.
func diffInputs(inputs *objectType, old, new properties) *pulumirpc.DiffResponse {
	changes := map[string]*pulumirpc.PropertyDiff{}
	response := &pulumirpc.DiffResponse{
		Changes:         pulumirpc.DiffResponse_DIFF_NONE,
		HasDetailedDiff: true,
		DetailedDiff:    changes,
	}
	for i := range inputs.fields {
		field := &inputs.fields[i]
		found := map[string]pulumirpc.PropertyDiff_Kind{}
		diffValue(field.name, old[field.name], new[field.name], found)
		if len(found) == 0 {
			continue
		}
		response.Changes = pulumirpc.DiffResponse_DIFF_SOME
		response.Diffs = append(response.Diffs, field.name)
		// Only the field as a whole counts: the official provider calls a
		// changed element of triggers an update, and leaves it to the SDK
		// (replace_on_changes) to ask for more.
		if change, whole := found[field.name]; whole && field.replaces {
			found[field.name] = asReplacement(change)
			response.Replaces = append(response.Replaces, field.name)
		}
		for path, change := range found {
			changes[path] = &pulumirpc.PropertyDiff{Kind: change}
		}
	}
	slices.Sort(response.Diffs)
	return response
}

// diffValue adds the differences between two values to found, by their paths.
// Lists and plain objects are compared element by element, all else as a whole.
func diffValue(path string, old, new *structpb.Value, found map[string]pulumirpc.PropertyDiff_Kind) {
	switch {
	case equal(old, new):
	case isNull(old):
		found[path] = pulumirpc.PropertyDiff_ADD
	case isNull(new):
		found[path] = pulumirpc.PropertyDiff_DELETE
	case old.GetListValue() != nil && new.GetListValue() != nil:
		oldElements, newElements := old.GetListValue().GetValues(), new.GetListValue().GetValues()
		for i := range max(len(oldElements), len(newElements)) {
			diffValue(fmt.Sprintf("%s[%d]", path, i), at(oldElements, i), at(newElements, i), found)
		}
	case isPlainObject(old) && isPlainObject(new):
		oldFields, newFields := old.GetStructValue().GetFields(), new.GetStructValue().GetFields()
		for name := range oldFields {
			diffValue(path+pathStep(name), oldFields[name], newFields[name], found)
		}
		for name := range newFields {
			if _, both := oldFields[name]; !both {
				diffValue(path+pathStep(name), nil, newFields[name], found)
			}
		}
	default:
		found[path] = pulumirpc.PropertyDiff_UPDATE
	}
}

// at returns an element, or nil if the list is too short.
func at(elements []*structpb.Value, i int) *structpb.Value {
	if i < len(elements) {
		return elements[i]
	}
	return nil
}

// pathStep returns how a key of an object is written in a property path.
func pathStep(name string) string {
	if strings.ContainsAny(name, `."[]`) {
		return `["` + strings.ReplaceAll(name, `"`, `\"`) + `"]`
	}
	return "." + name
}

func asReplacement(change pulumirpc.PropertyDiff_Kind) pulumirpc.PropertyDiff_Kind {
	switch change {
	case pulumirpc.PropertyDiff_ADD:
		return pulumirpc.PropertyDiff_ADD_REPLACE
	case pulumirpc.PropertyDiff_DELETE:
		return pulumirpc.PropertyDiff_DELETE_REPLACE
	default:
		return pulumirpc.PropertyDiff_UPDATE_REPLACE
	}
}

// mayChangeOutputs reports whether an update with these inputs could give other
// outputs than the stored ones: if an input that was given before is different
// now, or is not known yet. An input that is given for the first time does not
// count, which is how the official provider behaves.
func mayChangeOutputs(old, new properties) bool {
	for _, value := range new {
		if holdsUnknown(value) {
			return true
		}
	}
	for name, value := range old {
		if !isNull(value) && !equal(value, new[name]) {
			return true
		}
	}
	return false
}
