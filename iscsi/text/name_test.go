package text

import (
	"strings"
	"testing"
)

// Names that initiators have, and what is kept of them.
func TestName(t *testing.T) {
	for s, want := range map[string]string{
		"iqn.1993-08.org.debian:01:9a3e5634dc7f":                         "",
		"iqn.1991-05.com.microsoft:WIN-7.corp.example":                   "iqn.1991-05.com.microsoft:win-7.corp.example",
		"iqn.1998-01.com.vmware:esx_01-1f2e3d4c":                         "",
		"iqn.2008-11.org.linux-kvm":                                      "",
		"iqn.2008-11.org.linux-kvm:0d94e6dd-66bd-4a09-a2c6-6b3b8f8d4a3c": "",
		"iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-test":            "",
		"iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-test-2":          "",
		"iqn.2010-04.org.ipxe:00000000-0000-0000-0000-525400123456":      "",
		"iqn.2000-04.com.qlogic:qle4062c.gs10849a09162":                  "",
		"iqn.1994-05.com.redhat:1d2e3f":                                  "",
		"eui.02004567A425678D":                                           "eui.02004567a425678d",
		"naa.52004567BA64678D":                                           "naa.52004567ba64678d",
		"naa.62004567BA64678D0123456789ABCDEF":                           "naa.62004567ba64678d0123456789abcdef",
		"iqn.2026-11.example:größe":                                      "",
		"iqn.c:1":                                                        "",
		"iqn." + strings.Repeat("x", MaxName-4):                          "",
	} {
		if want == "" {
			want = s
		}
		if got, err := Name(s); got != want || err != nil {
			t.Errorf("%q: %q, %v", s, got, err)
		}
	}
	for _, s := range []string{
		"", "iqn", "iqn.", "host", "All", "IQN", "eui.", "eui.0200", "eui.02004567a425678g", "naa.5200", "naa.52004567ba64678d0", "iqn:2026.x",
		"iqn.2026-11.example:a,i,0x800000000001", "iqn.2026-11.example:a b", "iqn.2026-11.example:a\tb", "iqn.2026-11.example:a\nb",
		"iqn.2026-11.example:a/b", "iqn.2026-11.example:a=b", "iqn.2026-11.example:a;b", "iqn.2026-11.example:\"a\"", "iqn.2026-11.example:a\xff",
		"iqn.2026-11.example:a\u2028b", "iqn.2026-11.example:a\u3002b", "iqn.2026-11.example:\x7f", "iqn." + strings.Repeat("x", MaxName-3),
	} {
		if got, err := Name(s); err == nil {
			t.Errorf("%q is taken as %q", s, got)
		}
	}
}

// FuzzName: what is taken is taken again as it is, and holds nothing that separates it from what
// follows.
func FuzzName(f *testing.F) {
	for _, s := range []string{"iqn.2026-11.example:x", "eui.02004567A425678D", "iqn.x,i,0x1", "naa.", "iqn.\xc3\x9f", "iqn.\u0130"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name, err := Name(s)
		if err != nil {
			return
		}
		if strings.ContainsAny(name, ", \x00\n=") {
			t.Fatalf("%q", name)
		}
		if again, err := Name(name); again != name || err != nil {
			t.Fatalf("%q becomes %q, %v", name, again, err)
		}
	})
}
