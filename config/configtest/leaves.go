// Package configtest lets tests change any value of a configuration.
package configtest

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"oneshot/config"
)

// Leaf is a value in a configuration.
type Leaf struct {
	Path  string // ".Stores[0].Size"
	value reflect.Value
}

// Leaves lists the values of c, always in the same order, without positions and warnings.
func Leaves(c *config.Config) []Leaf { return leaves(reflect.ValueOf(c).Elem(), "") }

func leaves(v reflect.Value, path string) (list []Leaf) {
	switch v.Type() {
	case reflect.TypeFor[config.Position]():
		return nil
	case reflect.TypeFor[config.Secret](), reflect.TypeFor[netip.AddrPort]():
		return []Leaf{{path, v}}
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			if path == "" && (name == "File" || name == "Warnings") {
				continue
			}
			list = append(list, leaves(v.Field(i), path+"."+name)...)
		}
	case reflect.Slice:
		for i := range v.Len() {
			list = append(list, leaves(v.Index(i), fmt.Sprintf("%s[%d]", path, i))...)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			list = leaves(v.Elem(), path)
		}
	default:
		list = []Leaf{{path, v}}
	}
	return list
}

// Alter changes the value. The new value need not be valid, except that a LUN still shows a store that exists.
func (l Leaf) Alter(t testing.TB) {
	switch x := l.value.Addr().Interface().(type) {
	case *config.Secret:
		*x = config.NewSecret("quite another secret")
		return
	case *netip.AddrPort:
		*x = netip.AddrPortFrom(x.Addr(), x.Port()+1000)
		return
	}
	switch l.value.Kind() {
	case reflect.String:
		switch was := l.value.String(); {
		case !strings.HasSuffix(l.Path, ".Store"):
			l.value.SetString(was + "x")
		case was == "scratch":
			l.value.SetString("hole")
		default:
			l.value.SetString("scratch")
		}
	case reflect.Bool:
		l.value.SetBool(!l.value.Bool())
	case reflect.Int, reflect.Int64:
		l.value.SetInt(l.value.Int() + 4)
	case reflect.Uint16, reflect.Uint32:
		l.value.SetUint(l.value.Uint() + 100)
	case reflect.Array: // of bytes
		b := l.value.Index(0)
		b.SetUint(b.Uint() ^ 0xff)
	default:
		t.Fatalf("%s is a %s, which configtest does not know", l.Path, l.value.Type())
	}
}
