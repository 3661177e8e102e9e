package front

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
)

// apart has this process be the one of a test that has a network of its own.
const apart = "ONESHOT_TEST_APART"

// isApart reports whether this process has a network of its own; if not, another one that has runs the test.
func isApart(t *testing.T) bool {
	if os.Getenv(apart) != "" {
		return true
	}
	c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), apart+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET}
	if os.Geteuid() != 0 {
		c.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	c.Stdout, c.Stderr = t.Output(), t.Output()
	if err := c.Run(); err != nil {
		t.Errorf("with a network of its own: %v", err)
	}
	return false
}

// TestForGood: an address that the administrator has given the machine for good stays as it is, whenever he has done that and whatever its
// prefix, and only what Add has put there goes.
func TestForGood(t *testing.T) {
	if !isApart(t) {
		return
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{"192.0.2.10/24", "192.0.2.10/32", "2001:db8::a/64", "2001:db8::a/128"} {
		p := netip.MustParsePrefix(prefix)
		a := Address{p.Addr(), "lo"}
		wants := func(when string, want ...string) {
			t.Helper()
			list, err := netlink.AddrList(lo, a.family())
			if err != nil {
				t.Fatal(err)
			}
			var has []string
			for _, x := range list {
				text := x.IPNet.String()
				if uint32(x.ValidLft) != forever {
					text += " for a time"
				}
				has = append(has, text)
			}
			slices.Sort(has)
			if !slices.Equal(has, want) {
				t.Errorf("%s: %s: the interface has %q, want %q", prefix, when, has, want)
			}
		}
		own := fmt.Sprintf("%v for a time", netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
		good, err := netlink.ParseAddr(prefix)
		if err != nil {
			t.Fatal(err)
		}
		gives := func() {
			t.Helper()
			if err := netlink.AddrReplace(lo, good); err != nil {
				t.Fatal(err)
			}
		}
		refuses := func(when string) {
			t.Helper()
			if err := a.Add(); err == nil || !strings.Contains(err.Error(), "for good") {
				t.Errorf("%s: %s: %v", prefix, when, err)
			}
		}

		gives()
		refuses("the administrator was first")
		wants("after that", prefix)
		if err := a.Remove(); err != nil {
			t.Error(err)
		}
		wants("after Remove", prefix)
		if err := netlink.AddrDel(lo, good); err != nil {
			t.Fatal(err)
		}

		if err := a.Add(); err != nil {
			t.Error(err)
		}
		wants("after Add", own)
		gives()
		if p.Addr().Is6() { // the kernel has each IP once: it changes the one that is there
			prefix = strings.TrimSuffix(own, " for a time")
			if good, err = netlink.ParseAddr(prefix); err != nil {
				t.Fatal(err)
			}
		}
		refuses("it is to be prolonged, and the administrator was there meanwhile")
		if err := a.Remove(); err != nil {
			t.Error(err)
		}
		wants("after Add, the administrator, and Remove", prefix)
		if err := netlink.AddrDel(lo, good); err != nil {
			t.Fatal(err)
		}
	}
}
