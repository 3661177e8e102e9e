//go:build !race

package main

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"oneshot/mgmt"
)

// overIWARP makes a cluster whose nodes take data by queue pairs.
func overIWARP(t *testing.T) (s *site, data [2]string) {
	at := freePorts(t, 7)
	s = newSiteAt(t, mirrorText, at)
	data = [2]string{at[5], at[6]}
	s.text = strings.NewReplacer("state: consensus", "state: consensus\n  transport: iwarp",
		fmt.Sprintf("{address: %q}", at[0]), fmt.Sprintf("{address: %q, data: %q}", at[0], data[0]),
		fmt.Sprintf("{address: %q}", at[1]), fmt.Sprintf("{address: %q, data: %q}", at[1], data[1])).Replace(s.text)
	for _, name := range []string{"a", "b", "w"} {
		s.write(name, s.text)
	}
	return s, data
}

// connections counts those that the machine has with an address, from this end.
func connections(t *testing.T, address string) (n int) {
	t.Helper()
	at := netip.MustParseAddrPort(address)
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ip := at.Addr().As4()
	want := fmt.Sprintf("%02X%02X%02X%02X:%04X", ip[3], ip[2], ip[1], ip[0], at.Port())
	const established = "01"
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if field := strings.Fields(lines.Text()); len(field) > 3 && field[1] == want && field[3] == established {
			n++
		}
	}
	return n
}

// TestMirrorIWARP: data go over queue pairs, the primary is killed under load, comes back, and takes over. With a node that has another transport
// the mirror goes on, over TLS, and the node is shown.
func TestMirrorIWARP(t *testing.T) {
	s, data := overIWARP(t)
	s.startAll()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	s.level("a")
	queuePairs := func() int { return connections(t, data[0]) + connections(t, data[1]) }
	if n := queuePairs(); n != 1 {
		t.Errorf("two nodes have %d connections for data", n)
	}
	m := newMultipath(ctx, s)
	l := newLoad(t, m)
	l.more(200)
	lost := s.loses(s.kill, func(name string) { s.start(name) })
	l.more(200)
	s.start(lost)
	s.level(other(lost))
	if n := queuePairs(); n != 1 {
		t.Errorf("two nodes have %d connections for data", n)
	}
	l.more(100)

	s.stop("b")
	s.write("b", strings.NewReplacer("transport: iwarp", "transport: tcp", fmt.Sprintf(", data: %q", data[0]), "", fmt.Sprintf(", data: %q", data[1]), "").Replace(s.text))
	s.start("b")
	s.until("a", "b is shown to have another transport", func(m map[string]*mgmt.Member) bool {
		return strings.Contains(strings.Join(m["b"].Differs, " "), "cluster")
	})
	s.level("a")
	l.more(100)
	if n := queuePairs(); n != 0 {
		t.Errorf("%d connections for data, and one node has no such transport", n)
	}
	l.end()
	s.settle(m)
	s.stopAll()
	s.equal()
}
