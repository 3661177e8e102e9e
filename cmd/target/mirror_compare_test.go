//go:build !race

package main

import (
	"bytes"
	"context"
	"testing"
	"time"

	"oneshot/initiator"
	"oneshot/mgmt"
)

// TestMirrorCompareAndWrite: a host's COMPARE AND WRITE is done, and the primary killed. Sent again to the other node, as by a host that has not heard of the end, it
// has done what was asked for; to another host that asks for the same the bytes are others.
func TestMirrorCompareAndWrite(t *testing.T) {
	s := newMirror(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	one, other := newHost(ctx, s, "one"), newHost(ctx, s, "two")
	c := initiator.Command{CDB: make([]byte, 16), Out: append(make([]byte, 512), bytes.Repeat([]byte{0xa5}, 512)...)}
	c.CDB[0], c.CDB[9], c.CDB[13] = 0x89, 8, 1 // a block at 8
	s.level("w")
	if sent := one.doAt([]string{"a", "b"}, c); sent.Status != initiator.StatusGood {
		t.Fatalf("%+v", sent)
	}
	primary := s.level("w")
	left := map[string]string{"a": "b", "b": "a"}[primary]
	s.kill(primary)
	s.untilCluster(left, "it is the primary", func(c *mgmt.Cluster) bool { return c.Mirrors[0].Role == "primary" })
	if sent := one.do(left, c); sent.Status != initiator.StatusGood {
		t.Errorf("it was done: status %#x, sense % x", sent.Status, sent.Sense)
	}
	if sent := other.do(left, c); sent.Status == initiator.StatusGood || len(sent.Sense) < 3 || sent.Sense[2]&0xf != 0xe {
		t.Errorf("another host has done the same: status %#x, sense % x", sent.Status, sent.Sense)
	}
}
