//go:build verbs && !guest && cgo && linux

package server

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"oneshot/config"
	"oneshot/initiator"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/verbs/fake"
)

func init() { fake.Install() }

// TestPollingIsSwitchedOff: a device whose portals have polling switched off sleeps at once, and another one polls first while
// commands come in quick succession.
func TestPollingIsSwitchedOff(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // with one nobody polls
	const most = 1 << 20                            // commands; only a hang reaches it
	needed := most
	for _, on := range []bool{true, false} {
		t.Run(fmt.Sprint(on), func(t *testing.T) {
			fake.BeginTest(t, fake.Config{})
			r := serve(t, fmt.Sprintf(`
stores: {d: {type: memory, size: 16MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:t", luns: {0: d}}]
portals: [{transport: verbs, listen: "127.0.0.1:0", device: %s, polling: %v}]
limits: {memory: 64MiB}
`, fake.Name, on))
			d := r.rdma.by[deviceKey{config.TransportVerbs, fake.Name}].Device
			u := initiator.URL{Transport: initiator.ISERVerbs, Address: r.Addrs()[0].String(), Target: iqn + "t", LUN: -1}
			s, err := initiator.Dial(t.Context(), u, initiator.Options{Device: d})
			if err != nil {
				t.Fatal(err)
			}
			attentions(t, s, 0)
			counters := func() rdma.Counters { return d.Counters() }
			n := 0
			for ; n < 2*needed && n < most && (!on || counters().PollingInVain+counters().PollingFound == 0); n++ {
				if err := s.Do(t.Context(), &initiator.Command{CDB: make([]byte, 6)}); err != nil {
					t.Fatal(err)
				}
			}
			if on {
				needed = n
			}
			if c := counters(); (c.PollingInVain+c.PollingFound > 0) != on {
				t.Errorf("polling: %v: after %d commands %d sleeps, polled %d times with success and %d in vain", on, n, c.Sleeps, c.PollingFound, c.PollingInVain)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDeviceIsNamed: a portal uses the device that the configuration names, and no other; one that names none uses what there is.
func TestDeviceIsNamed(t *testing.T) {
	fake.BeginTest(t, fake.Config{})
	r := serve(t, `
stores: {d: {type: memory, size: 16MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:t", luns: {0: d}}]
portals:
  - {transport: verbs, listen: "127.0.0.1:24111", device: nosuch0}
  - {transport: verbs, listen: "127.0.0.1:24112", device: `+fake.Name+`}
limits: {memory: 64MiB}
`)
	var got []string
	for _, p := range r.portals {
		got = append(got, fmt.Sprint(p.portal.(*verbsPortal).devices()))
	}
	if want := []string{"[]", "[" + fake.Name + "]"}; !slices.Equal(got, want) {
		t.Errorf("the portals listen on %v, want %v", got, want)
	}
}
