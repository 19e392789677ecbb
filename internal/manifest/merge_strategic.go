package manifest

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
)

// strategicMerge lays the fields that over sets on *base by Kubernetes' strategic merge, as
// the patchStrategy and patchMergeKey tags of its API types say: structs and maps merge, lists
// with a merge key merge by it, everything else is replaced. Kubernetes' own implementation
// (apimachinery/pkg/util/strategicpatch) goes through JSON and brings OpenAPI's compiler along;
// the tests hold this one equal to it. The result shares memory with both arguments.
func strategicMerge[T any](base *T, over T) {
	mergeStruct(reflect.ValueOf(base).Elem(), reflect.ValueOf(over))
}

var marshaler = reflect.TypeFor[json.Marshaler]()

func mergeStruct(base, over reflect.Value) {
	for i := range over.NumField() {
		mergeField(base.Field(i), over.Field(i), over.Type().Field(i).Tag)
	}
}

func mergeField(base, over reflect.Value, tag reflect.StructTag) {
	if over.IsZero() {
		return
	}
	switch over.Kind() {
	case reflect.Struct:
		if isLeaf(over.Type()) {
			base.Set(over)
			return
		}
		mergeStruct(base, over)
	case reflect.Pointer:
		if base.IsNil() || over.Elem().Kind() != reflect.Struct || isLeaf(over.Type().Elem()) {
			base.Set(over)
			return
		}
		mergeStruct(base.Elem(), over.Elem())
	case reflect.Map:
		if base.IsNil() {
			base.Set(over)
			return
		}
		for it := over.MapRange(); it.Next(); {
			base.SetMapIndex(it.Key(), it.Value())
		}
	case reflect.Slice:
		key := tag.Get("patchMergeKey")
		switch {
		case over.Len() == 0:
		case key == "" || !slices.Contains(strings.Split(tag.Get("patchStrategy"), ","), "merge"):
			base.Set(over)
		default:
			base.Set(mergeList(base, over, fieldOf(over.Type().Elem(), key)))
		}
	default:
		base.Set(over)
	}
}

// isLeaf says whether a struct is one value in JSON, such as a quantity.
func isLeaf(t reflect.Type) bool { return reflect.PointerTo(t).Implements(marshaler) }

// fieldOf returns the index of the field with a name in JSON, through embedded structs.
func fieldOf(t reflect.Type, name string) []int {
	for _, f := range reflect.VisibleFields(t) {
		if n, _, _ := strings.Cut(f.Tag.Get("json"), ","); n == name {
			return f.Index
		}
	}
	panic("BUG: " + t.String() + " has no field for its merge key " + name)
}

// mergeList merges lists of structs by a key. The order is Kubernetes': over's items in over's
// order, and each of base's others before the first of them that follows it in base.
func mergeList(base, over reflect.Value, key []int) reflect.Value {
	at := func(list, item reflect.Value) int {
		for i := range list.Len() {
			if list.Index(i).FieldByIndex(key).Equal(item.FieldByIndex(key)) {
				return i
			}
		}
		return -1
	}
	out := reflect.MakeSlice(over.Type(), 0, base.Len()+over.Len())
	next := 0
	rest := func(before int) {
		for ; next < base.Len() && next < before; next++ {
			if at(over, base.Index(next)) < 0 {
				out = reflect.Append(out, base.Index(next))
			}
		}
	}
	for j := range over.Len() {
		i := at(base, over.Index(j))
		if i < 0 {
			out = reflect.Append(out, over.Index(j))
			continue
		}
		rest(i)
		merged := reflect.New(over.Type().Elem()).Elem()
		merged.Set(base.Index(i))
		mergeStruct(merged, over.Index(j))
		out = reflect.Append(out, merged)
	}
	rest(base.Len())
	return out
}
