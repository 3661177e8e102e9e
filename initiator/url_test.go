package initiator

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseURL(t *testing.T) {
	for in, want := range map[string]URL{
		"iscsi://host":                         {Address: "host:3260", LUN: -1},
		"iscsi://127.0.0.1/":                   {Address: "127.0.0.1:3260", LUN: -1},
		"iscsi://[::1]:99/iqn.t:x":             {Address: "[::1]:99", Target: "iqn.t:x", LUN: -1},
		"iscsi://[::1]/iqn.t:x":                {Address: "[::1]:3260", Target: "iqn.t:x", LUN: -1},
		"iser+iwarp://h/iqn.t:x/0":             {Transport: ISER, Address: "h:3261", Target: "iqn.t:x"},
		"oneshot+iwarp://h:7/iqn.t:x/12":       {Transport: OneShot, Address: "h:7", Target: "iqn.t:x", LUN: 12},
		"iser+verbs://h/iqn.t:x/3?device=rxe0": {Transport: ISERVerbs, Address: "h:3260", Target: "iqn.t:x", LUN: 3, Device: "rxe0"},
		"iscsi://[fe80::1%eth0]:99/iqn.t:x":    {Address: "[fe80::1%eth0]:99", Target: "iqn.t:x", LUN: -1},
		"iscsi://u%s@fe80::1%eth0/":            {Address: "[fe80::1%eth0]:3260", LUN: -1, CHAP: &Credentials{Name: "u", Secret: []byte("s")}},
		"iscsi://u%s@h/iqn.t:x/1": {
			Address: "h:3260", Target: "iqn.t:x", LUN: 1, CHAP: &Credentials{Name: "u", Secret: []byte("s")},
		},
		"iscsi://u%p@ss%word@h/iqn.t:x/1": {
			Address: "h:3260", Target: "iqn.t:x", LUN: 1, CHAP: &Credentials{Name: "u", Secret: []byte("p@ss%word")},
		},
		"iscsi://u@h/iqn.t:x/1?target_user=t&target_password=w&header_digest=crc32c&data_digest=CRC32C": {
			Address: "h:3260", Target: "iqn.t:x", LUN: 1, HeaderDigest: true, DataDigest: true,
			CHAP: &Credentials{Name: "u", Secret: []byte{}}, Mutual: &Credentials{Name: "t", Secret: []byte("w")},
		},
	} {
		got, err := ParseURL(in)
		if err != nil {
			t.Errorf("%s: %v", in, err)
		} else if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", in, d)
		}
	}
	for _, in := range []string{
		"", "host", "http://host", "iscsi://", "iscsi:///iqn", "iscsi://h:0", "iscsi://h:x/", "iscsi://h:70000/", "iscsi://h//0",
		"iscsi://h/iqn/x", "iscsi://h/iqn/-1", "iscsi://h/iqn/99999", "iscsi://h/iqn/0?x=1", "iscsi://h/iqn/0?data_digest=md5", "iscsi://h/iqn/0?%zz", "iscsi://h/iqn/0?device=x",
	} {
		if u, err := ParseURL(in); err == nil {
			t.Errorf("%q is %+v", in, u)
		}
	}
}

// The URL of a partition, which package endpoint reads, is told from that of a LUN.
func TestPartitionURL(t *testing.T) {
	for in, partition := range map[string]bool{
		"oneshot+iwarp://h/disk1/log": true, "oneshot+iwarp://h/disk1/0": true, "oneshot+iwarp://h/iqn.t:x/0": false,
		"oneshot+iwarp://h/eui.02004567A425678D/0": false, "oneshot+iwarp://h/naa.52004567BA64678D/x": false, "iscsi://h/disk1/log": false,
	} {
		_, err := ParseURL(in)
		if _, is := errors.AsType[*PartitionError](err); is != partition {
			t.Errorf("%s: %v", in, err)
		}
	}
}

func TestURLKeepsSecrets(t *testing.T) {
	u, err := ParseURL("iscsi://alice%hidden-words@h/iqn.t:x/1")
	if err != nil {
		t.Fatal(err)
	}
	if s := u.String(); s != "iscsi://alice@h:3260/iqn.t:x/1" {
		t.Errorf("it reads %s", s)
	}
	for _, in := range []string{
		"iscsi://alice%hidden-words@h:x/iqn.t:x/1",
		"iscsi://alice%hid/den@h/iqn.t:x/1", "iscsi://alice%hid?den@h/iqn.t:x/1", "iscsi://alice%h/iqn?den@h/iqn.t:x/1",
		"iscsi:alice%hidden@h/iqn.t:x/1", "alice%hidden@h", "isci://alice%hidden@h",
		"iscsi://alice@h/iqn.t:x/1?target_password=%hidden", "iscsi://alice@h/iqn.t:x/1?target_password=hid;den", "iscsi://alice@h/iqn.t:x/1?target_password=a&hidden=b",
		"iscsi://alice@h/iqn.t:x/1?target_password=a&hidden",
	} {
		if u, err := ParseURL(in); err == nil {
			t.Errorf("%q is %+v", in, u)
		} else if s := err.Error(); strings.Contains(s, "hid") || strings.Contains(s, "den") || strings.Contains(s, "alice%") {
			t.Errorf("%q: the error is %v", in, err)
		}
	}
}

func FuzzParseURL(f *testing.F) {
	f.Add("iscsi://u%s@[::1]:99/iqn.t:x/1?data_digest=crc32c")
	f.Add("oneshot+iwarp://h")
	f.Fuzz(func(t *testing.T, s string) {
		u, err := ParseURL(s)
		if err != nil {
			return
		}
		v, err := ParseURL(u.String())
		if err != nil || v.Address != u.Address || v.Target != u.Target || v.LUN != u.LUN || v.Transport != u.Transport {
			t.Errorf("%q reads %+v, and printed %+v, %v", s, u, v, err)
		}
	})
}
