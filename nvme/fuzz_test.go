package nvme

import (
	"bytes"
	"testing"
)

// An entry is what its fields say: encoded anew it is the same, but for what is reserved.
func FuzzSQE(f *testing.F) {
	for _, c := range []Command{{Opcode: Read, CID: 7, NSID: 1, SGL: SGL{Length: 512, Type: SGLTransport}}, {Opcode: Fabrics, NSID: uint32(Connect)}} {
		f.Add(c.AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < SQELen {
			return
		}
		e := SQE(b[:SQELen])
		c := Command{Opcode: e.Opcode(), Fuse: e.Fuse(), CID: e.CID(), NSID: e.NSID(), SGL: e.SGL()}
		for i := range c.DWords {
			c.DWords[i] = e.DWord(10 + i)
		}
		want := bytes.Clone(e)
		want[1] = want[1]&3 | PSDTSGL<<psdtShift
		clear(want[8:24])
		clear(want[36:39])
		if got := c.AppendTo(nil); !bytes.Equal(got, want) {
			t.Errorf("% x\nwant % x", got, want)
		}
		g := GetLogPage{e}
		if n := g.Length(); n < 4 || n > 1<<34 || n%4 != 0 {
			t.Errorf("a log page of %d bytes", n)
		}
	})
}

// The data of Connect have names, or say that they have not.
func FuzzConnectData(f *testing.F) {
	fields := ConnectFields{CNTLID: DynamicController, SubNQN: DiscoveryNQN, HostNQN: "nqn.2026-11.com.example:host"}
	f.Add(fields.AppendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < ConnectDataLen {
			return
		}
		d := ConnectData(b[:ConnectDataLen])
		sub, ok := d.SubNQN()
		host, ok2 := d.HostNQN()
		if !ok || !ok2 || CheckNQN(sub) != nil || CheckNQN(host) != nil {
			return
		}
		fields := ConnectFields{d.HostID(), d.CNTLID(), sub, host}
		back := ConnectData(fields.AppendTo(nil))
		s, _ := back.SubNQN()
		h, _ := back.HostNQN()
		if s != sub || h != host || back.HostID() != d.HostID() || back.CNTLID() != d.CNTLID() {
			t.Errorf("%q %q", s, h)
		}
	})
}
