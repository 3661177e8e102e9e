package endpoint

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseURL(t *testing.T) {
	const uuid = "uuid:0b7f4c1a-53d2-4e8f-a9c6-71e2d8b40f15"
	for in, want := range map[string]URL{
		"rdma+local:///disk1/log":                   {Scheme: Local, Name: "disk1/log"},
		"rdma+local:///" + uuid:                     {Scheme: Local, Name: uuid},
		"rdma+local:///disk1/log?socket=/run/a%20b": {Scheme: Local, Name: "disk1/log", Socket: "/run/a b"},
		"oneshot+iwarp://h/disk1/log":               {Scheme: OneShot, Address: "h:3262", Name: "disk1/log"},
		"oneshot+iwarp://a%b%c@d@[::1]:7/disk1/log": {Scheme: OneShot, Address: "[::1]:7", Name: "disk1/log", User: "a", Secret: []byte("b%c@d")},
		"rdma+verbs://h:9/disk1/log?device=rxe0":    {Scheme: Verbs, Address: "h:9", Name: "disk1/log", Device: "rxe0"},
		"rdma+verbs://[::1]/Disk_1/" + "l-o.g":      {Scheme: Verbs, Address: "[::1]:3262", Name: "Disk_1/l-o.g"},
		"rdma+verbs://user@127.0.0.1/" + uuid + "?": {Scheme: Verbs, Address: "127.0.0.1:3262", Name: uuid, User: "user", Secret: []byte{}},
	} {
		got, err := ParseURL(in)
		if err != nil {
			t.Errorf("%s: %v", in, err)
		} else if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", in, d)
		}
	}
	for _, in := range []string{
		"", "disk/log", "iscsi://h/disk/log", "rdma+local://", "rdma+local://h/disk/log", "rdma+local:///disk", "rdma+local:///disk/", "rdma+local:////log",
		"rdma+local:///disk/log/more", "rdma+local:///disk/Log", "rdma+local:///uuid:1", "rdma+local:///disk/log?device=x", "rdma+local:///disk/log?socket=", "oneshot+iwarp:///disk/log",
		"oneshot+iwarp://h:0/disk/log", "oneshot+iwarp://h/disk/log?socket=/x", "rdma+verbs://h/disk/log?x=1", "rdma+verbs://h/disk/log?%zz",
		"oneshot+iwarp://h/iqn.2026-01.t:x/0", "oneshot+iwarp://h/iqn.t/log",
	} {
		if u, err := ParseURL(in); err == nil {
			t.Errorf("%q is %+v", in, u)
		}
	}
	u, err := ParseURL("oneshot+iwarp://alice%hidden@h/d/l")
	if err != nil || strings.Contains(u.String(), "hidden") || u.String() != "oneshot+iwarp://alice@h:3262/d/l" {
		t.Errorf("%v, %v", u, err)
	}
	if _, err := ParseURL("oneshot+iwarp://alice%hidden@h:x/d/l"); err == nil || strings.Contains(err.Error(), "hidden") {
		t.Errorf("the error is %v", err)
	}
}

func FuzzParseURL(f *testing.F) {
	f.Add("oneshot+iwarp://u%s@[::1]:99/disk/log")
	f.Add("rdma+verbs://h/disk/log?device=x")
	f.Add("rdma+verbs://h/uuid:0b7f4c1a-53d2-4e8f-a9c6-71e2d8b40f15?device=rxe0")
	f.Fuzz(func(t *testing.T, s string) {
		u, err := ParseURL(s)
		if err != nil {
			return
		}
		v, err := ParseURL(u.String())
		if v.Secret = u.Secret; err != nil || !cmp.Equal(u, v) {
			t.Errorf("%q reads %+v, and printed %+v, %v", s, u, v, err)
		}
	})
}

// Errors show no part of a secret, whatever is wrong with the URL.
func TestURLKeepsSecrets(t *testing.T) {
	for _, in := range []string{
		"oneshot+iwarp://al%hidden@h:x/disk1/log", "oneshot+iwarp://al%hid/den@h/disk1/log", "oneshot+iwarp://al%hid?den@h/disk1/log",
		"oneshot+iwarp://al%h/hid?den@h/disk1/log", "oneshot+iwarp:al%hidden@h/disk1/log", "al%hidden@h", "oneshot+iwarp://al%a@hid/den@h/disk1/log",
	} {
		if u, err := ParseURL(in); err == nil {
			t.Errorf("%q is %+v", in, u)
		} else if s := err.Error(); strings.Contains(s, "hid") || strings.Contains(s, "den@") || strings.Contains(s, "al%") {
			t.Errorf("%q: the error is %v", in, err)
		}
	}
}
