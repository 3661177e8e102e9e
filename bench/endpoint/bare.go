package main

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
)

// Bytes of a request and of an answer besides data, as in the protocol of endpoints.
const (
	requestLen = 64
	answerLen  = 32
)

// The least that a remote point can cost with sockets and goroutines: a bare exchange of as many bytes over TCP, without a
// protocol, with the same work of the disk behind it. What is between it and the endpoint is the endpoint's; the rest is the
// kernel's and the disk's.

// exchange is a connection to a goroutine of this process that answers each request when it has handled it.
type exchange struct {
	net.Conn
	listener net.Listener
	answers  sync.WaitGroup
	err      error // of the goroutine
}

// answering makes an exchange: handle gets each request, which begins with its length, and returns the answer.
func answering(handle func(request []byte) ([]byte, error)) (x *exchange, err error) {
	x = &exchange{}
	if x.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	x.answers.Go(func() { x.err = x.answer(handle) })
	if x.Conn, err = net.Dial("tcp", x.listener.Addr().String()); err != nil {
		return nil, errors.Join(err, x.listener.Close())
	}
	return x, nil
}

func (x *exchange) answer(handle func([]byte) ([]byte, error)) (err error) {
	c, err := x.listener.Accept()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	buf, have := make([]byte, 64<<10), 0
	for {
		n, err := c.Read(buf[have:])
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if have += n; have < 4 || have < int(binary.BigEndian.Uint32(buf)) {
			continue
		}
		b, err := handle(buf[:have])
		if err == nil {
			_, err = c.Write(b)
		}
		if have = 0; err != nil {
			return err
		}
	}
}

// do sends a request and reads its answer, in one call of the system each if the kernel has it so.
func (x *exchange) do(request, answer []byte) error {
	binary.BigEndian.PutUint32(request, uint32(len(request)))
	if _, err := x.Write(request); err != nil {
		return err
	}
	_, err := io.ReadFull(x, answer)
	return err
}

func (x *exchange) close() error {
	err := errors.Join(x.Close(), x.listener.Close())
	x.answers.Wait()
	return errors.Join(err, x.err)
}

// bareRead answers requests with a block of memory.
func bareRead(_ context.Context, _ string, seconds float64) (s sample, err error) {
	memory := make([]byte, memorySize)
	x, err := answering(func(q []byte) ([]byte, error) {
		at := binary.BigEndian.Uint64(q[8:])
		return memory[at : at+block+answerLen], nil
	})
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, x.close()) }()
	q, a := make([]byte, requestLen), make([]byte, block+answerLen)
	s, _, err = timed(seconds, func() (int, error) {
		binary.BigEndian.PutUint64(q[8:], uint64(rand.Int64N(memorySize/block-1)*block))
		return 1, x.do(q, a)
	})
	return s, err
}

// syncing makes an exchange whose requests are written to the file, and synchronized, before they are answered. commit asks for that.
func syncing(dir string) (commit func(b []byte, off int64) error, closeAll func() error, err error) {
	path, err := prepare(dir)
	if err != nil {
		return nil, nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	a := make([]byte, answerLen)
	x, err := answering(func(q []byte) ([]byte, error) {
		_, err := f.WriteAt(q[requestLen:], int64(binary.BigEndian.Uint64(q[8:])))
		if err == nil {
			err = syscall.Fdatasync(int(f.Fd()))
		}
		return a, err
	})
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	q, answer := make([]byte, requestLen, 64<<10), make([]byte, answerLen)
	commit = func(b []byte, off int64) error {
		binary.BigEndian.PutUint64(q[8:], uint64(off))
		return x.do(append(q, b...), answer)
	}
	return commit, func() error { return errors.Join(x.close(), f.Close()) }, nil
}

// bareWrite writes block after block durably.
func bareWrite(_ context.Context, dir string, seconds float64) (s sample, err error) {
	commit, closeAll, err := syncing(dir)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	b := make([]byte, block)
	s, _, err = timed(seconds, func() (int, error) { return 1, commit(b, rand.Int64N(fileSize/block)*block) })
	return s, err
}

// bareLog is the log of plainLog, whose file is behind an exchange.
func bareLog(_ context.Context, dir string, seconds float64) (s sample, err error) {
	commit, closeAll, err := syncing(dir)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	s, _, err = groupedLog(seconds, commit)
	return s, err
}
