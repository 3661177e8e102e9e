package front

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestAnnounced: what Announce sends is read, and nothing shorter, and no advertisement that a router may have passed on (RFC 4861 §7.1.2).
func TestAnnounced(t *testing.T) {
	for _, text := range []string{"192.0.2.10", "2001:db8::a"} {
		want := netip.MustParseAddr(text)
		b := announcement(mac, want)[2*macLen+2:]
		if from, ip, ok := announced(b); !ok || from != mac || ip != want {
			t.Errorf("%v: %x says it has %v, %t", want, from, ip, ok)
		}
		for n := range b {
			if _, ip, ok := announced(b[:n]); ok {
				t.Errorf("%d bytes tell of %v", n, ip)
			}
		}
		if want.Is6() {
			b[7] = 254
			if _, ip, ok := announced(b); ok {
				t.Errorf("with a hop limit of 254 it tells of %v", ip)
			}
		}
	}
}

// TestWatch: another machine on the network announces addresses, and the watch of each hears that.
func TestWatch(t *testing.T) {
	if !isApart(t) {
		return
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "here"}, PeerName: "there"}))
	for _, name := range []string{"here", "there"} {
		l, err := netlink.LinkByName(name)
		must(err)
		must(netlink.LinkSetUp(l))
	}
	for _, text := range []string{"192.0.2.10", "2001:db8::a"} {
		ip := netip.MustParseAddr(text)
		w, err := Address{ip, "here"}.Watch()
		must(err)
		heard := make(chan error)
		go func() { heard <- w.Next() }()
		again := time.NewTicker(10 * time.Millisecond)
		for isHeard := false; !isHeard; { // a link that was just made may lose frames
			must(Address{ip.Next(), "there"}.Announce())
			must(Address{ip, "here"}.Announce())
			must(Address{ip, "there"}.Announce())
			select {
			case err := <-heard:
				must(err)
				isHeard = true
			case <-again.C:
			case <-t.Context().Done():
				t.Fatalf("%v is not heard", ip)
			}
		}
		again.Stop()
		go func() {
			for err = nil; err == nil; { // more that was sent
				err = w.Next()
			}
			heard <- err
		}()
		must(w.Close())
		if err := <-heard; err == nil {
			t.Error("a watch that is closed hears something")
		}
	}
}

// TestCarrier: an interface whose cable is pulled at the other end has no carrier, and so has one that is not up, or not there.
func TestCarrier(t *testing.T) {
	if !isApart(t) {
		return
	}
	a := Address{netip.MustParseAddr("192.0.2.10"), "here"}
	if has, err := a.HasCarrier(); has || err == nil {
		t.Errorf("an interface that is not there: %t, %v", has, err)
	}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "here"}, PeerName: "there"}); err != nil {
		t.Fatal(err)
	}
	here, err := netlink.LinkByName("here")
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"198.51.100.1/24", "fe80::1/64"} {
		x, err := netlink.ParseAddr(address)
		if err == nil {
			x.Flags = unix.IFA_F_NODAD
			err = netlink.AddrAdd(here, x)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name  string
		set   func(netlink.Link) error
		want  bool
		drops bool // the kernel drops addresses of IPv6
	}{
		{name: "here", set: netlink.LinkSetUp},
		{name: "there", set: netlink.LinkSetUp, want: true},
		{name: "there", set: netlink.LinkSetDown},
		{name: "there", set: netlink.LinkSetUp, want: true},
		{name: "here", set: netlink.LinkSetDown, drops: true},
	} {
		l, err := netlink.LinkByName(c.name)
		if err == nil {
			err = c.set(l)
		}
		if err != nil {
			t.Fatal(err)
		}
		if has, err := a.HasCarrier(); has != c.want || err != nil {
			t.Errorf("%s was changed: %t, %v", c.name, has, err)
		}
		for at, isHere := range map[string]bool{
			"198.51.100.1": true, "fe80::1%here": true, "fe80::1%there": false, "fe80::1": true, "198.51.100.2": false, "127.0.0.1": false, "0.0.0.0": false,
		} {
			want := ""
			if isHere && !c.want && !(c.drops && strings.Contains(at, ":")) {
				want = "here"
			}
			if name, err := Unlinked(netip.MustParseAddr(at)); name != want || err != nil {
				t.Errorf("%s was changed: %q of %s has no link, %v", c.name, name, at, err)
			}
		}
	}
}
