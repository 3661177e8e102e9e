package rdmatest

import (
	"errors"
	"runtime"
	"testing"

	"oneshot/transport/rdma"
)

const (
	grantTag  = rdma.STag(0xfff2a307)
	grantBase = 0x5000_0000_0000
)

// granting returns two ends, and memory that the server gives the client; false: the device does not let its owner choose names.
func granting(t *testing.T, p Pair) (client, server *end, b []byte, g rdma.Grant) {
	client, server = connect(t, p, options{memory: victim})
	granter, ok := server.dom.(rdma.Granter)
	if !ok {
		return client, server, nil, nil
	}
	b = alloc(t, p.Server, victim)
	g, err := granter.Grant(b, rdma.AccessRemoteRead|rdma.AccessRemoteWrite, grantTag, grantBase)
	check(t, err)
	return client, server, b, g
}

// reaches is what may be tried on memory that is granted.
func (e *end) reaches(op rdma.Opcode, s rdma.STag, to uint64) rdma.Work {
	return rdma.Work{ID: 1, Op: op, Flags: rdma.Signaled, SGL: e.sge(1000, 100), RemoteSTag: s, RemoteOffset: to}
}

// Granted memory is written and read under the name that its owner has chosen, and when the grant has gone the name is free.
func testGranted(t *testing.T, p Pair) {
	client, server, b, g := granting(t, p)
	if g == nil {
		return
	}
	fill(client.mem.Bytes(), 1)
	client.post(client.reaches(rdma.OpWrite, grantTag, grantBase+200))
	client.sends.want(rdma.OpWrite, 1)
	read := client.reaches(rdma.OpRead, grantTag, grantBase+200)
	read.SGL = client.sge(0, 100)
	client.post(read)
	client.sends.want(rdma.OpRead, 1)
	same(t, "what was read", client.bytes(0, 100), client.bytes(1000, 100))
	same(t, "what was written", b[200:300], client.bytes(1000, 100))
	same(t, "what is beside it", append(b[:200:200], b[300:]...), make([]byte, victim-100))
	if _, err := server.dom.(rdma.Granter).Grant(b, rdma.AccessRemoteRead, grantTag+1, grantBase); !errors.Is(err, rdma.ErrInUse) {
		t.Errorf("granted under another key of the name: %v", err)
	}
	for _, a := range []rdma.Access{0, rdma.AccessLocalWrite, rdma.AccessRemoteInvalidate | rdma.AccessRemoteRead} {
		if _, err := server.dom.(rdma.Granter).Grant(b, a, grantTag+256, grantBase); err == nil {
			t.Errorf("granted with access %d", a)
		}
	}
	for !g.Revoke() { // the server may not have let go of the Read whose data the client has
		runtime.Gosched()
	}
	check(t, g.Free())
	again, err := server.dom.(rdma.Granter).Grant(b, rdma.AccessRemoteWrite, grantTag+1, grantBase)
	check(t, err)
	client.post(client.reaches(rdma.OpWrite, grantTag+1, grantBase))
	client.sends.want(rdma.OpWrite, 1)
	server.receive(7, 0, 100)
	client.post(client.send(2, 0, 0, 10)) // comes behind it
	server.recvs.want(rdma.OpReceive, 7)
	same(t, "what was written", b[:100], client.bytes(1000, 100))
	check(t, again.Free())
}

// Who has no grant, or has one no more, ends his connection and reaches nothing.
func testGrantRefused(t *testing.T, p Pair) {
	for name, x := range map[string]struct {
		op rdma.Opcode
		s  rdma.STag
		to uint64
		by func(t *testing.T, server *end, b []byte, g rdma.Grant) (free func())
	}{
		"a Write after Revoke": {op: rdma.OpWrite, s: grantTag, to: grantBase, by: func(_ *testing.T, _ *end, _ []byte, g rdma.Grant) func() {
			g.Revoke()
			return free
		}},
		"a Read after Revoke": {op: rdma.OpRead, s: grantTag, to: grantBase, by: func(_ *testing.T, _ *end, _ []byte, g rdma.Grant) func() {
			g.Revoke()
			return free
		}},
		"a Write by the key of before": {op: rdma.OpWrite, s: grantTag, to: grantBase, by: func(t *testing.T, server *end, b []byte, g rdma.Grant) func() {
			check(t, g.Free())
			next, err := server.dom.(rdma.Granter).Grant(b, rdma.AccessRemoteWrite, grantTag+1, grantBase)
			check(t, err)
			return func() { check(t, next.Free()) }
		}},
		"a Write at its end": {op: rdma.OpWrite, s: grantTag, to: grantBase + victim - 99},
		"a Write before it":  {op: rdma.OpWrite, s: grantTag, to: grantBase - 1},
		"a Write of what is another's": {op: rdma.OpWrite, s: grantTag + 256, to: grantBase, by: func(t *testing.T, server *end, b []byte, _ rdma.Grant) func() {
			d, err := server.dev.NewDomain()
			check(t, err)
			other, err := d.(rdma.Granter).Grant(b, rdma.AccessRemoteWrite, grantTag+256, grantBase)
			check(t, err)
			return func() { check(t, errors.Join(other.Free(), d.Close())) }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			client, server, b, g := granting(t, p)
			if g == nil {
				return
			}
			after := free
			if x.by != nil {
				after = x.by(t, server, b, g)
			}
			violate(t, client, server, client.reaches(x.op, x.s, x.to))
			same(t, "memory", b, make([]byte, victim))
			after()
			if name != "a Write by the key of before" {
				check(t, g.Free())
			}
		})
	}
}
