package mgmt

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// Every key of an answer stands in API.md.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("API.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[reflect.Type]bool)
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		for typ.Kind() == reflect.Slice || typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || typ.PkgPath() != reflect.TypeFor[Status]().PkgPath() || seen[typ] {
			return
		}
		seen[typ] = true
		for f := range typ.Fields() {
			key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if !strings.Contains(string(text), "`"+key) && !strings.Contains(string(text), "\""+key+"\"") {
				t.Errorf("API.md does not show %q of %s", key, typ.Name())
			}
			walk(f.Type)
		}
	}
	for _, v := range []any{Status{}, Sessions{}, Reload{}, Problem{}, AccessStates{}, AccessChange{}, Stores{}, Partitions{}, NewPartition{}, PartitionChange{}, Endpoints{}, Token{}, Switched{}, Verify{}, Verification{}} {
		walk(reflect.TypeOf(v))
	}
	if len(seen) < 20 {
		t.Errorf("only %d types were looked at", len(seen))
	}
}
