package iwarp

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"oneshot/stag"
	"oneshot/transport/rdma"
)

const (
	placedTag  = rdma.STag(0xfff1a3b7)
	placedBase = 0x5000_0000_2040
)

// place has the server's peers reach memory of n octets, and beside it as much that they must not reach.
func place(t *testing.T, e *end, n int, a rdma.Access) ([]byte, rdma.Region) {
	t.Helper()
	all := bytes.Repeat([]byte{7}, 3*n)
	r, err := e.dom.(rdma.Placer).RegisterAt(all[n:2*n], a, placedTag, placedBase)
	check(t, err)
	return all, r
}

// Memory is read and written under the name that its owner has chosen, and every queue pair of the domain reaches it there.
func TestPlaced(t *testing.T) {
	const n = 300 << 10
	client, server := pair(t, setup{})
	all, r := place(t, server, n, bothWays)
	if r.STag() != placedTag || r.Base() != placedBase || !rdma.IsPlaced(placedTag) || rdma.IsPlaced(stag.MaxIndexes-stag.Kept-1) {
		t.Errorf("the region is %08x at %#x", r.STag(), r.Base())
	}
	client.fill(0, n, 5)
	client.post(rdma.Work{Op: rdma.OpWrite, SGL: client.sge(0, n-1), RemoteSTag: placedTag, RemoteOffset: placedBase + 1},
		rdma.Work{ID: 1, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: client.sge(n, n), RemoteSTag: placedTag, RemoteOffset: placedBase})
	client.want(rdma.OpRead, 1)
	want := append([]byte{7}, client.mem.Bytes()[:n-1]...)
	if !bytes.Equal(client.mem.Bytes()[n:2*n], want) || !bytes.Equal(all[n:2*n], want) {
		t.Error("other octets than were written")
	}
	if !bytes.Equal(all[:n], bytes.Repeat([]byte{7}, n)) || !bytes.Equal(all[2*n:], bytes.Repeat([]byte{7}, n)) {
		t.Error("octets beside it have changed")
	}
	if _, err := server.dom.(rdma.Placer).RegisterAt(all[:9], rdma.AccessRemoteRead, placedTag, 0); !errors.Is(err, rdma.ErrInUse) {
		t.Errorf("registered twice: %v", err)
	}
	if _, err := server.dom.(rdma.Placer).RegisterAt(all[:9], rdma.AccessLocalWrite, placedTag+256, 0); err == nil {
		t.Error("registered with other rights")
	}
	check(t, r.Deregister())
	if r.Deregister() == nil {
		t.Error("deregistered twice")
	}
	again, err := server.dom.(rdma.Placer).RegisterAt(all[:9], rdma.AccessRemoteRead, placedTag, 0)
	check(t, err)
	check(t, again.Deregister())
}

// A reader of memory that changes all the time gets octets of before and after, and keeps its connection.
func TestPlacedChanges(t *testing.T) {
	const n, rounds = 64 << 10, 200
	client, server := pair(t, setup{})
	b := make([]byte, n)
	var mu sync.Mutex // as in a heap: it guards nothing that readers know
	r, err := server.dom.(rdma.Placer).RegisterAt(b, rdma.AccessRemoteRead, placedTag, placedBase)
	check(t, err)
	stop, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for i := byte(0); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			mu.Lock()
			write(b, i)
			mu.Unlock()
		}
	}()
	for i := range uint64(rounds) {
		client.post(rdma.Work{ID: i, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: client.sge(0, n), RemoteSTag: placedTag, RemoteOffset: placedBase})
		client.want(rdma.OpRead, i)
	}
	close(stop)
	<-over
	check(t, r.Deregister())
}

// write changes memory that others read at the same time, which the race detector is not to tell of.
//
//go:norace
func write(b []byte, x byte) {
	for i := range b {
		b[i] = x
	}
}

// What else the STag may be asked for ends the connection, and reaches nothing; nor does the domain give access to what the
// device's other domains have.
func TestPlacedRefused(t *testing.T) {
	const n = 4096
	for name, w := range map[string]rdma.Work{
		"write":            {Op: rdma.OpWrite, RemoteSTag: placedTag, RemoteOffset: placedBase},
		"before":           {Op: rdma.OpRead, RemoteSTag: placedTag, RemoteOffset: placedBase - 1},
		"behind":           {Op: rdma.OpRead, RemoteSTag: placedTag, RemoteOffset: placedBase + n - 99},
		"offset 0":         {Op: rdma.OpRead, RemoteSTag: placedTag},
		"another key":      {Op: rdma.OpRead, RemoteSTag: placedTag + 1, RemoteOffset: placedBase},
		"another index":    {Op: rdma.OpRead, RemoteSTag: placedTag + 256, RemoteOffset: placedBase},
		"another domain":   {Op: rdma.OpRead, RemoteSTag: placedTag + 512, RemoteOffset: placedBase},
		"an arena of it":   {Op: rdma.OpRead},
		"invalidate":       {Op: rdma.OpSend, Flags: rdma.Invalidate, STag: placedTag},
		"not any more":     {Op: rdma.OpRead, RemoteSTag: placedTag, RemoteOffset: placedBase},
		"write at its end": {Op: rdma.OpWrite, RemoteSTag: placedTag, RemoteOffset: placedBase + n - 1},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := pair(t, setup{})
			all, r := place(t, server, n, rdma.AccessRemoteRead)
			dom, err := server.dev.NewDomain()
			check(t, err)
			elsewhere, err := dom.(rdma.Placer).RegisterAt(make([]byte, n), bothWays, placedTag+512, placedBase)
			check(t, err)
			arena, err := dom.Register(make([]byte, n), bothWays)
			check(t, err)
			if name == "an arena of it" {
				w.RemoteSTag = arena.STag()
			}
			if name == "not any more" {
				check(t, r.Deregister())
			}
			w.Flags |= rdma.Signaled
			w.SGL = client.sge(0, 100)
			client.post(w)
			<-client.gone
			<-server.gone
			if !bytes.Equal(all, bytes.Repeat([]byte{7}, 3*n)) {
				t.Error("octets have changed")
			}
			if name != "not any more" {
				check(t, r.Deregister())
			}
			check(t, errors.Join(elsewhere.Deregister(), arena.Deregister()))
		})
	}
}
