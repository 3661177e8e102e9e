package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "512": 512, "512B": 512, "1kB": 1000, "1KiB": 1024, "64MiB": 64 << 20, "64 MiB": 64 << 20, "1.5TiB": 3 << 39,
		"10GB": 10e9, "0.5kB": 500, "007MB": 7e6, "2TB": 2e12, "3PB": 3e15, "4PiB": 4 << 50, "10GiB": 10 << 30,
		"9223372036854775807": math.MaxInt64,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "MiB", "1Mi", "1/2", "1e3", "0x10", "1_000", "+1", "--1", "1..5", "9223372036854775808", "9PiBs"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", text, got)
		}
	}
}

func TestFormatSizeIsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		unit := rapid.SampledFrom(units).Draw(t, "unit")
		n := rapid.Int64Range(0, math.MaxInt64/unit.bytes).Draw(t, "n") * unit.bytes
		if got, err := ParseSize(FormatSize(n)); err != nil || got != n {
			t.Fatalf("%d prints as %s and reads as %d, %v", n, FormatSize(n), got, err)
		}
	})
	for n, want := range map[int64]string{0: "0B", 512: "512B", 1000: "1kB", 1024: "1KiB", 256 << 20: "256MiB", 10e9: "10GB", 1536: "1536B"} {
		if got := FormatSize(n); got != want {
			t.Errorf("FormatSize(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestNamePattern(t *testing.T) {
	for _, c := range []struct {
		pattern NamePattern
		name    string
		want    bool
	}{
		{"iqn.2026-11.example.clients:*", "iqn.2026-11.example.clients:host1", true},
		{"iqn.2026-11.example.clients:*", "iqn.2026-11.example.clients:", true},
		{"iqn.2026-11.example.clients:*", "iqn.2026-11.example.clients", false},
		{"iqn.2026-11.example.clients:*", "IQN.2026-11.Example.Clients:HOST1", true},
		{"iqn.2026-11.example.clients:*", "xiqn.2026-11.example.clients:host1", false},
		{"iqn.2026-11.example.clients:a", "iqn.2026-11.example.clients:a", true},
		{"iqn.2026-11.example.clients:a", "iqn.2026-11.example.clients:ab", false},
		{"iqn.2026-11.example.clients:a", "iqn.2026-11.example.clientsxa", false},
		{"*", "", true},
		{"*", "anything", true},
		{"*:db-*-1", "iqn.2026-11.example:db-a-2-db-b-1", true},
		{"*:db-*-1", "iqn.2026-11.example:db-a-12", false},
		{"i*n.*:*", "iqn.2026-11.example:x", true},
		{"**", "x", true},
	} {
		if got := c.pattern.Match(c.name); got != c.want {
			t.Errorf("%q.Match(%q) = %t, want %t", c.pattern, c.name, got, c.want)
		}
	}
}

// TestUnderscore: initiators whose names have an underscore log in, and so they can be named; targets get no such name.
func TestUnderscore(t *testing.T) {
	const text = "stores: {d: {type: memory, size: 1MiB}}\ntargets: [{iqn: %s, luns: {0: d}, initiators: [%q, %q]}]"
	c, err := Parse("x.yaml", fmt.Appendf(nil, text, "iqn.2026-11.example:t", "iqn.2026-11.example:Host_1", "iqn.2026-11.example:my_*"))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"iqn.2026-11.example:host_1": true, "iqn.2026-11.example:my_host": true, "iqn.2026-11.example:host-1": false,
	} {
		if got := c.Targets[0].Admits(name); got != want {
			t.Errorf("%s is admitted: %v", name, got)
		}
	}
	if _, err := Parse("x.yaml", fmt.Appendf(nil, text, "iqn.2026-11.example:t_1", "*", "iqn.2026-11.example:x")); err == nil {
		t.Error("a target has an underscore in its name")
	}
}

// TestNamePatternAsRegexp compares with the standard library's matcher.
func TestNamePatternAsRegexp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab.:*]{0,8}`).Draw(t, "pattern")
		name := rapid.StringMatching(`[ab.:]{0,12}`).Draw(t, "name")
		want := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + "$").MatchString(name)
		if got := NamePattern(pattern).Match(name); got != want {
			t.Fatalf("%q.Match(%q) = %t, want %t", pattern, name, got, want)
		}
	})
}

func TestNamePatternDoesNotAllocate(t *testing.T) {
	p, matched := NamePattern("*:db-*-1"), false
	if n := testing.AllocsPerRun(100, func() { matched = p.Match("iqn.2026-11.example:db-a-1") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if !matched {
		t.Error("no match")
	}
}

func TestAdmits(t *testing.T) {
	all, some := Target{}, Target{Initiators: []Initiator{{Name: "iqn.2026-11.example:a"}, {Name: "eui.*"}}}
	for name, want := range map[string]bool{"iqn.2026-11.example:a": true, "eui.02004567a425678d": true, "iqn.2026-11.example:b": false} {
		if got := some.Admits(name); got != want {
			t.Errorf("Admits(%q) = %t", name, got)
		}
		if !all.Admits(name) {
			t.Errorf("a target without list does not admit %q", name)
		}
	}
}

func TestSecretIsNeverShown(t *testing.T) {
	const text = "do-not-show-this"
	c := Credentials{User: "u", Secret: NewSecret(text)}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "secret", c.Secret, "credentials", c)
	asJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	shown := fmt.Sprintf("%v %+v %#v %s %q %x", c, c, c, c, c, c) + fmt.Sprintf("%v %+v %#v %s %q", c.Secret, c.Secret, c.Secret, c.Secret, &c.Secret) + log.String() + string(asJSON)
	if strings.Contains(shown, text) || strings.Contains(shown, fmt.Sprintf("%x", text)) {
		t.Errorf("the secret shows in %s", shown)
	}
	if string(c.Secret.Bytes()) != text {
		t.Error("Bytes does not return the secret")
	}
}

func TestPortalAddresses(t *testing.T) {
	for listen, want := range map[string][2]string{
		"127.0.0.1":               {"tcp4", "127.0.0.1:3260"},
		"0.0.0.0:1":               {"tcp4", "0.0.0.0:1"},
		"[::1]":                   {"tcp6", "[::1]:3260"},
		"::":                      {"tcp6", "[::]:3260"},
		"[fe80::1%eth0]:3261":     {"tcp6", "[fe80::1%eth0]:3261"},
		"*":                       {"tcp", ":3260"},
		":0":                      {"tcp", ":0"},
		"*:65535":                 {"tcp", ":65535"},
		"[::ffff:192.0.2.1]:3260": {"tcp4", "192.0.2.1:3260"},
	} {
		addr, err := parseListen(listen)
		p := Portal{Listen: addr}
		if got := [2]string{p.Network(), p.Address()}; err != nil || got != want {
			t.Errorf("%q gives %v, %v, want %v", listen, got, err, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for words, want := range map[[2]string]int{
		{"", ""}: 0, {"", "abc"}: 3, {"abc", ""}: 3, {"size", "size"}: 0, {"sise", "size"}: 1, {"szie", "size"}: 1, {"sizes", "size"}: 1, {"kitten", "sitting"}: 3,
	} {
		if got := distance(words[0], words[1]); got != want {
			t.Errorf("distance(%q) = %d, want %d", words, got, want)
		}
	}
}
