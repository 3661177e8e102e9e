package main

import (
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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

// The default configuration is valid.
func TestDefault(t *testing.T) {
	c, err := config.Parse("default.yaml", defaultYAML)
	if err != nil || len(c.Portals) != 4 || len(c.Subsystems) != 1 {
		t.Errorf("%v", err)
	}
}

// With oneshot.advertise the default configuration tells initiators that address.
func TestDefaultAdvertises(t *testing.T) {
	text, err := defaultConfig("192.0.2.7")
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse("default.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"192.0.2.7:3260", "192.0.2.7:3261", "192.0.2.7:3262", ""} {
		if got := c.Portals[i].Advertise; got != want {
			t.Errorf("portal %d is told as %q", i, got)
		}
	}
	if _, err := defaultConfig("x\"}"); err == nil {
		t.Error("what is no host was taken")
	}
}

// The target may open enough descriptors for all connections of the default limits, so that it does not warn at boot.
func TestTargetHasDescriptors(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := allowDescriptors(before.Max); err != nil { // more needs CAP_SYS_RESOURCE, which tests may not have
		t.Fatal(err)
	}
	out, err := exec.Command("sh", "-c", "ulimit -n").Output()
	if want := fmt.Sprintf("%d\n", before.Max); err != nil || string(out) != want {
		t.Errorf("a process that init starts has %q, %v", out, err)
	}
	if spare := descriptors - config.DefaultLimits().Connections; spare < 1024 {
		t.Errorf("%d descriptors are left beside connections", spare)
	}
}

// An interface has addresses of IPv6 also if DHCP has given none of IPv4.
func TestAnyIPv4(t *testing.T) {
	for text, want := range map[string]bool{"fec0::5054:ff:fe12:3456/64 fe80::1/64": false, "": false, "fe80::1/64 10.0.2.15/24": true} {
		var addrs []net.Addr
		for _, w := range strings.Fields(text) {
			ip, n, err := net.ParseCIDR(w)
			if err != nil {
				t.Fatal(err)
			}
			n.IP = ip
			addrs = append(addrs, n)
		}
		if got := anyIPv4(addrs); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
}

// The appliance gives the target as long to stop as the unit of the package does, which is longer than it takes at the most.
func TestStopTime(t *testing.T) {
	unit, err := os.ReadFile("../../packaging/oneshot.service")
	if err != nil {
		t.Fatal(err)
	}
	if line := fmt.Sprintf("\nTimeoutStopSec=%.0fs\n", stopTime.Seconds()); !strings.Contains(string(unit), line) {
		t.Errorf("the unit does not say %q", line)
	}
}
