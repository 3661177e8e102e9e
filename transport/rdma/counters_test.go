package rdma

import (
	"reflect"
	"testing"
)

// Every field has its name and its difference.
func TestCounters(t *testing.T) {
	var a, b Counters
	va, vb := reflect.ValueOf(&a).Elem(), reflect.ValueOf(&b).Elem()
	for i := range va.NumField() {
		va.Field(i).SetUint(uint64(100 + 3*i))
		vb.Field(i).SetUint(uint64(2 * i))
	}
	d := reflect.ValueOf(a.Sub(b))
	seen := make(map[string]bool)
	i := 0
	for name, v := range a.All() {
		if v != va.Field(i).Uint() || seen[name] {
			t.Errorf("%d: %s is %d, want %d", i, name, v, va.Field(i).Uint())
		}
		seen[name] = true
		if got := d.Field(i).Uint(); got != uint64(100+i) {
			t.Errorf("%s: difference %d, want %d", name, got, 100+i)
		}
		i++
	}
	if i != va.NumField() {
		t.Errorf("%d of %d fields", i, va.NumField())
	}
}
