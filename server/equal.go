package server

import (
	"reflect"

	"oneshot/config"
)

// equal reports whether two configuration values mean the same. It ignores positions in the file,
// at any depth of the values.
func equal[T any](a, b T) bool {
	return equalValues(reflect.ValueOf(&a).Elem(), reflect.ValueOf(&b).Elem())
}

var positionType = reflect.TypeFor[config.Position]()

func equalValues(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Struct:
		if a.Type() == positionType {
			return true
		}
		if !transparent(a.Type()) {
			return reflect.DeepEqual(a.Interface(), b.Interface())
		}
		for i := range a.NumField() {
			if !equalValues(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	case reflect.Pointer:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() == b.IsNil()
		}
		return equalValues(a.Elem(), b.Elem())
	case reflect.Slice:
		if a.Len() != b.Len() || a.IsNil() != b.IsNil() { // of LUNs that a rule shows, nil is all
			return false
		}
		for i := range a.Len() {
			if !equalValues(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

// transparent reports whether equal can compare a struct field by field.
func transparent(t reflect.Type) bool {
	for i := range t.NumField() {
		if !t.Field(i).IsExported() {
			return false
		}
	}
	return true
}
