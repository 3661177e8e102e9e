package front

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"
)

func unhex(t *testing.T, text string) string {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var mac = [macLen]byte{0x02, 0, 0, 0, 0, 0x0a}

// TestARP: RFC 5227 §2.3.
func TestARP(t *testing.T) {
	want := unhex(t, `
		ffffffffffff 02000000000a 0806
		0001 0800 06 04 0001
		02000000000a c000020a
		000000000000 c000020a`)
	if got := announcement(mac, netip.MustParseAddr("192.0.2.10")); string(got) != want {
		t.Errorf("%x", got)
	}
}

// TestAdvertisement: RFC 4861 §4.4. The checksum is that of another implementation (RFC 1071).
func TestAdvertisement(t *testing.T) {
	want := unhex(t, `
		333300000001 02000000000a 86dd
		60000000 0020 3a ff
		20010db8 00000000 00000000 0000000a
		ff020000 00000000 00000000 00000001
		88 00 f90f 20000000
		20010db8 00000000 00000000 0000000a
		02 01 02000000000a`)
	got := announcement(mac, netip.MustParseAddr("2001:db8::a"))
	if string(got) != want {
		t.Errorf("%x", got)
	}
	ip := netip.MustParseAddr("2001:db8::a")
	all := netip.MustParseAddr("ff02::1")
	if sum := checksum(58, ip.AsSlice(), all.AsSlice(), got[14+40:]); sum != 0 {
		t.Errorf("the packet with its checksum has the sum %#x", sum)
	}
}

// TestTickle: RFC 9293 §3.1, over both versions of IP.
func TestTickle(t *testing.T) {
	got := appendTickle(nil, netip.MustParseAddrPort("192.0.2.10:3260"), netip.MustParseAddrPort("192.0.2.100:40000"))
	want := unhex(t, `
		45 00 0028 0000 0000 40 06 0000 c000020a c0000264
		0cbc 9c40 00000000 00000000 5010 0000 8269 0000`)
	if string(got) != want {
		t.Errorf("%x", got)
	}
	a, b := netip.MustParseAddrPort("[2001:db8::a]:3260"), netip.MustParseAddrPort("[2001:db8::64]:40000")
	got = appendTickle(nil, a, b)
	if len(got) != 60 || got[6] != 6 || checksum(6, a.Addr().AsSlice(), b.Addr().AsSlice(), got[40:]) != 0 {
		t.Errorf("%x", got)
	}
}
