package initiator_test

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"oneshot/initiator"
	"oneshot/test/targettest"
)

// Memory that the kernel may not read cannot be sent, and a part of its PDU may have left by then: the session ends, and says why, and so do all of its
// commands. The disk is as it was.
func TestUnreadableMemory(t *testing.T) {
	const n = 64 << 10
	none, err := unix.Mmap(-1, 0, n, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	check(t, err)
	t.Cleanup(func() { check(t, unix.Munmap(none)) })
	tg := targettest.Start(t, config)
	for _, w := range ways {
		if w.rdma || w.name == "TCP with digests" { // which this process reads itself
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			noLeaks(t)
			s := w.dial(t, tg)
			l, err := s.LU(t.Context(), 0)
			check(t, err)
			before := pattern(n, 1)
			_, err = l.WriteAt(before, 0)
			check(t, err)
			c := &initiator.Command{Out: none}
			check(t, l.Prepare(c, 0))
			if err := s.Do(t.Context(), c); !errors.Is(err, unix.EFAULT) {
				t.Errorf("the command ends with %v", err)
			}
			if err := s.Do(t.Context(), &initiator.Command{CDB: make([]byte, 6)}); !errors.Is(err, unix.EFAULT) {
				t.Errorf("the next one ends with %v", err)
			}
			_ = s.Close()

			again := w.dial(t, tg)
			l, err = again.LU(t.Context(), 0)
			check(t, err)
			got := make([]byte, n)
			_, err = l.ReadAt(got, 0)
			check(t, err)
			if !bytes.Equal(got, before) {
				t.Error("the disk has changed")
			}
			check(t, again.Close())
		})
	}
}
