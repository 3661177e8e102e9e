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
)

// TestMirrorUnreadable: the only copy in sync cannot read a page of its disk while the other one is brought level. That gets in sync, status
// names what it goes without, a host gets an error of the medium there and nothing older, also when the other node is lost, and a write
// heals it.
func TestMirrorUnreadable(t *testing.T) {
	if !isApartBeside(t) {
		return
	}
	s, media := newMedia(t, diskText)
	s.startAll()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	primary := s.level("a")
	back := other(primary)
	h := newHost(ctx, s, "one")
	const page, first, n = 260, 256, 16 // pages of 4 KiB
	command := func(op byte, page, pages uint32) []byte {
		cdb := make([]byte, 10)
		cdb[0] = op
		binary.BigEndian.PutUint32(cdb[2:], page*8)
		binary.BigEndian.PutUint16(cdb[7:], uint16(pages*8))
		return cdb
	}
	write := func(node string, at, pages uint32, value byte) {
		t.Helper()
		for _, cdb := range [][]byte{command(0x2a, at, pages), {0x35, 9: 0}} {
			c := initiator.Command{CDB: cdb}
			if cdb[0] == 0x2a {
				c.Out = bytes.Repeat([]byte{value}, int(pages)*4096)
			}
			if c := h.do(node, c); c.Status != initiator.StatusGood {
				t.Fatalf("% x at %s: status %#x, sense % x", cdb, node, c.Status, c.Sense)
			}
		}
	}
	reads := func(node string, at, pages uint32, value byte) {
		t.Helper()
		b := make([]byte, pages*4096)
		if c := h.do(node, initiator.Command{CDB: command(0x28, at, pages), In: b}); c.Status != initiator.StatusGood || !bytes.Equal(b, bytes.Repeat([]byte{value}, len(b))) {
			t.Errorf("page %d at %s: status %#x, sense % x, %#x", at, node, c.Status, c.Sense, b[0])
		}
	}
	fails := func(node string) {
		t.Helper()
		c := h.do(node, initiator.Command{CDB: command(0x28, page, 1), In: make([]byte, 4096)})
		if c.Status != initiator.StatusCheckCondition || len(c.Sense) < 14 || c.Sense[2]&0xf != 3 || c.Sense[12] != 0x11 {
			t.Errorf("a read of what nobody can read, at %s: status %#x, sense % x", node, c.Status, c.Sense)
		}
	}
	around := func(node string) {
		t.Helper()
		reads(node, first, page-first, 2)
		reads(node, page+1, first+n-page-1, 2)
	}

	write(primary, first, n, 1)
	s.kill(back)
	write(primary, first, n, 2)
	media[primary].Spoil(page)
	s.start(back)
	s.level("w")
	s.servedBy(primary)
	s.untilCluster(back, "status names it", func(c *mgmt.Cluster) bool {
		return strings.Contains(copiesText(&c.Mirrors[0]), back+" in sync (without 4.0 KiB that no copy could read)")
	})
	fails(primary)
	around(primary)

	s.kill(primary)
	s.untilCluster(back, "the other one serves", func(c *mgmt.Cluster) bool { return c.Mirrors[0].Role == mgmt.RolePrimary })
	fails(back)
	around(back)
	s.kill(back)
	s.start(back) // its node is all of S, and remembers
	s.untilCluster(back, "it serves again", func(c *mgmt.Cluster) bool { return c.Mirrors[0].Role == mgmt.RolePrimary })
	fails(back)
	around(back)
	write(back, page, 1, 3)
	reads(back, page, 1, 3)
	s.start(primary)
	s.level("w")
	s.servedBy(primary)
	reads(primary, page, 1, 3)
	around(primary)
	s.untilCluster(back, "nothing is missing", func(c *mgmt.Cluster) bool { return !strings.Contains(copiesText(&c.Mirrors[0]), "without") })
}
