package quorum

import (
	"bytes"
	"io"
	"net"
	"testing"
)

// sockets returns both ends of a connection over the loopback interface.
func sockets(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if near, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near, far
}

// TestTryEnd: what a peer that reads nothing leaves in the socket is not waited for, and comes before what is written later.
func TestTryEnd(t *testing.T) {
	near, far := sockets(t)
	g := newGathered(near)
	if g.raw == nil {
		t.Fatal("a socket is written to as anything else")
	}
	var want []byte
	write := func(b byte) {
		piece := bytes.Repeat([]byte{b}, 1<<20)
		want = append(want, piece...)
		if n, err := g.Write(piece); n != len(piece) || err != nil {
			t.Fatal(n, err)
		}
	}
	all := true
	for b := byte(1); all; b++ {
		if b > 64 {
			t.Fatal("a socket that nobody reads takes everything")
		}
		g.begin()
		write(b)
		var err error
		if all, err = g.tryEnd(); err != nil {
			t.Fatal(err)
		}
	}
	read := make(chan []byte)
	go func() {
		got, _ := io.ReadAll(far)
		read <- got
	}()
	write(0) // of somebody else than who gathers
	if err := near.Close(); err != nil {
		t.Fatal(err)
	}
	if got := <-read; !bytes.Equal(got, want) {
		t.Errorf("%d bytes were written, and others, %d of them, came", len(want), len(got))
	}
	g.begin()
	if _, err := g.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if _, err := g.tryEnd(); err == nil {
		t.Error("a connection that is closed can be written to")
	}
}

// TestGatheredRead: a socket's bytes, its end and the end of this side come as from any connection.
func TestGatheredRead(t *testing.T) {
	near, far := sockets(t)
	g := newGathered(near)
	for _, text := range []string{"one", "two"} {
		go func() { _, _ = far.Write([]byte(text)) }()
		got := make([]byte, 100)
		if n, err := g.Read(got); err != nil || string(got[:n]) != text {
			t.Errorf("%q, %v came in place of %q", got[:n], err, text)
		}
	}
	go func() { _ = far.Close() }()
	if n, err := g.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("at the end of a connection: %d, %v", n, err)
	}
	_ = near.Close()
	if n, err := g.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("a connection that is closed can be read: %d", n)
	}
}
