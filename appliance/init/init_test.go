package main

import (
	"maps"
	"testing"

	"oneshot/config"
)

func TestOwnWords(t *testing.T) {
	got := ownWords("quiet oneshot.ip=10.0.0.2/24,10.0.0.1 root=x oneshot.yaml=YQ== oneshot.rxe=no oneshotx=1\n")
	want := map[string]string{"ip": "10.0.0.2/24,10.0.0.1", "yaml": "YQ==", "rxe": "no"}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestIsPower(t *testing.T) {
	event := func(kind, code, value byte) []byte {
		b := make([]byte, eventLen)
		b[offType], b[offCode], b[offValue] = kind, code, value
		return b
	}
	if !isPower(event(1, 116, 1)) || isPower(event(1, 116, 0)) || isPower(event(1, 115, 1)) || isPower(event(0, 116, 1)) {
		t.Error("the power button is not told from other events")
	}
}

// The default is one that the target takes.
func TestDefault(t *testing.T) {
	c, err := config.Parse("default.yaml", defaultYAML)
	if err != nil || len(c.Portals) != 3 {
		t.Errorf("%v", err)
	}
}
