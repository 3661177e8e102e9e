//go:build !race

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"oneshot/initiator"
	"oneshot/mgmt"
	"oneshot/test/medium"
)

// pages is a host that writes and reads pages of 4 KiB, each filled with one value.
type pages struct{ *host }

// newPages makes the cluster of newMedia, and has its nodes and the host begin. It returns who serves, and the other one.
func newPages(t *testing.T) (s *site, media map[string]*medium.Medium, h pages, primary, back string) {
	t.Helper()
	s, media = newMedia(t, diskText)
	s.startAll()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	primary = s.level("a")
	return s, media, pages{newHost(ctx, s, "one")}, primary, other(primary)
}

func onPages(op byte, page, n uint32) []byte {
	cdb := make([]byte, 10)
	cdb[0] = op
	binary.BigEndian.PutUint32(cdb[2:], page*8)
	binary.BigEndian.PutUint16(cdb[7:], uint16(n*8))
	return cdb
}

// write writes pages at one of the nodes, and flushes.
func (h pages) write(value byte, page, n uint32, nodes ...string) {
	h.t.Helper()
	for _, cdb := range [][]byte{onPages(0x2a, page, n), {0x35, 9: 0}} {
		c := initiator.Command{CDB: cdb}
		if cdb[0] == 0x2a {
			c.Out = bytes.Repeat([]byte{value}, int(n)*4096)
		}
		if c := h.doAt(nodes, c); c.Status != initiator.StatusGood {
			h.t.Fatalf("% x at %v: status %#x, sense % x", cdb, nodes, c.Status, c.Sense)
		}
	}
}

// reads reads pages at one of the nodes.
func (h pages) reads(value byte, page, n uint32, nodes ...string) {
	h.t.Helper()
	b := make([]byte, n*4096)
	if c := h.doAt(nodes, initiator.Command{CDB: onPages(0x28, page, n), In: b}); c.Status != initiator.StatusGood || !bytes.Equal(b, bytes.Repeat([]byte{value}, len(b))) {
		h.t.Errorf("page %d at %v: status %#x, sense % x, %#x", page, nodes, c.Status, c.Sense, b[0])
	}
}

// fails reads a page that nobody can read.
func (h pages) fails(page uint32, nodes ...string) {
	h.t.Helper()
	c := h.doAt(nodes, initiator.Command{CDB: onPages(0x28, page, 1), In: make([]byte, 4096)})
	if c.Status != initiator.StatusCheckCondition || len(c.Sense) < 14 || c.Sense[2]&0xf != 3 || c.Sense[12] != 0x11 {
		h.t.Errorf("a read of what nobody can read, at %v: status %#x, sense % x", nodes, c.Status, c.Sense)
	}
}

// TestMirrorBadPage: a page of the primary's disk cannot be read. A host gets the bytes of the other copy, also when the node of that was
// restarted, and the page is written anew. If the disk does not keep that, they come from there each time; if it does not take it, the
// other node serves, alone. Nothing that was acknowledged is lost.
func TestMirrorBadPage(t *testing.T) {
	if !isApartBeside(t) {
		return
	}
	s, media, h, primary, back := newPages(t)
	disk := media[primary]
	const page, first, n = 260, 256, 16
	isRepaired := func(written <-chan struct{}) {
		t.Helper()
		h.reads(1, first, n, primary)
		s.awaits(written, "the page is written anew")
		h.reads(1, first, n, primary)
	}
	h.write(1, first, n, primary)

	isRepaired(disk.Spoil(page))

	s.untilCluster(primary, "all is durable, and both know", func(c *mgmt.Cluster) bool { return c.Mirrors[0].Records == 0 })
	written := disk.Spoil(page)
	s.kill(back)
	s.untilCluster(primary, "it is alone", func(c *mgmt.Cluster) bool { return strings.Contains(copiesText(&c.Mirrors[0]), back+" away") })
	h.fails(page, primary)
	s.start(back)
	s.level("w")
	s.servedBy(primary)
	isRepaired(written)

	disk.Ruin(page, false)
	for range 3 {
		h.reads(1, first, n, primary)
	}
	h.write(2, page, 1, primary)
	h.reads(2, page, 1, primary)
	if now := s.level("w"); now != primary {
		t.Errorf("%s serves, though the disk of %s takes what is written", now, primary)
	}

	disk.Ruin(page, true)
	h.reads(2, page, 1, primary, back)
	s.untilCluster(back, "it serves alone", func(c *mgmt.Cluster) bool {
		m := &c.Mirrors[0]
		return m.Role == mgmt.RolePrimary && !strings.Contains(copiesText(m), primary+" in sync")
	})
	h.reads(2, page, 1, back)
	h.write(3, page, 1, back)
	h.reads(1, first, page-first, back)

	disk.Heal()
	s.level("w")
	s.servedBy(primary)
	s.kill(back)
	h.reads(3, page, 1, primary)
	h.reads(1, first, page-first, primary)
}

// TestMirrorUnreadableWritten: the only copy in sync does not keep a page of its disk, and a host writes the page while the other copy is brought
// level. That one has it from the host, goes without nothing, and shows it.
func TestMirrorUnreadableWritten(t *testing.T) {
	if !isApartBeside(t) {
		return
	}
	s, media, h, primary, back := newPages(t)
	const page, first, n = 2060, 2048, 16 // behind all that is copied at a time
	write := func(value byte) {
		h.write(value, 0, n, primary)
		h.write(value, first, n, primary)
	}
	write(1)
	s.kill(back)
	write(2)
	media[primary].Ruin(page, false)
	held := media[back].Hold(0)
	s.start(back)
	s.awaits(held, "the copy is brought level")
	h.write(3, page, 1, primary)
	media[back].Heal()
	s.servedBy(back)
	h.reads(3, page, 1, back)
	h.reads(2, 0, n, back)
	h.reads(2, first, page-first, back)
	h.reads(2, page+1, first+n-page-1, back)
}

// awaits waits for an event.
func (s *site) awaits(event <-chan struct{}, what string) {
	s.t.Helper()
	select {
	case <-event:
	case <-time.After(time.Minute):
		s.t.Fatalf("not yet: %s", what)
	}
}

// TestMirrorUnreadable: the only copy in sync cannot read a page of its disk while the other one is brought level. That gets in sync, status
// names what it goes without, a host gets an error of the medium there and nothing older, also when the other node is lost, and a write
// heals it.
func TestMirrorUnreadable(t *testing.T) {
	if !isApartBeside(t) {
		return
	}
	s, media, h, primary, back := newPages(t)
	const page, first, n = 260, 256, 16
	around := func(node string) {
		t.Helper()
		h.reads(2, first, page-first, node)
		h.reads(2, page+1, first+n-page-1, node)
	}

	h.write(1, first, n, primary)
	s.kill(back)
	h.write(2, first, n, primary)
	media[primary].Spoil(page)
	s.start(back)
	s.level("w")
	s.servedBy(primary)
	s.untilCluster(back, "status names it", func(c *mgmt.Cluster) bool {
		return strings.Contains(copiesText(&c.Mirrors[0]), back+" in sync (without 4.0 KiB that no copy could read)")
	})
	h.fails(page, primary)
	around(primary)

	s.kill(primary)
	s.untilCluster(back, "the other one serves", func(c *mgmt.Cluster) bool { return c.Mirrors[0].Role == mgmt.RolePrimary })
	h.fails(page, back)
	around(back)
	s.kill(back)
	s.start(back) // its node is all of S, and remembers
	s.untilCluster(back, "it serves again", func(c *mgmt.Cluster) bool { return c.Mirrors[0].Role == mgmt.RolePrimary })
	h.fails(page, back)
	around(back)
	h.write(3, page, 1, back)
	h.reads(3, page, 1, back)
	s.start(primary)
	s.level("w")
	s.servedBy(primary)
	h.reads(3, page, 1, primary)
	around(primary)
	s.untilCluster(back, "nothing is missing", func(c *mgmt.Cluster) bool { return !strings.Contains(copiesText(&c.Mirrors[0]), "without") })
}
