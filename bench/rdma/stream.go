package main

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/bench/harness"
)

// The raw stream shows what a program without RDMA and iSCSI reaches. It moves the same bytes over one
// connection, and both ends compute CRC32C: requests of 48 bytes in one direction, data with its CRC, or
// 48 bytes, in the other.
const (
	streamAt   = "127.0.0.1:24003"
	streamArg  = "-stream-server"
	requestLen = 48
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// serveStream answers requests. The first word of a request is the size of the data, the second says
// whether the data comes with the request.
func serveStream() error {
	l, err := net.Listen("tcp", streamAt)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			_ = answer(c)
		}()
	}
}

func answer(c net.Conn) error {
	req := make([]byte, requestLen)
	var data []byte
	for {
		if _, err := io.ReadFull(c, req); err != nil {
			return err
		}
		n := int(binary.BigEndian.Uint32(req))
		if len(data) != n+4 {
			data = make([]byte, n+4)
		}
		if binary.BigEndian.Uint32(req[4:]) != 0 {
			if _, err := io.ReadFull(c, data); err != nil {
				return err
			}
			if crc32.Checksum(data[:n], castagnoli) != binary.BigEndian.Uint32(data[n:]) {
				return errors.New("CRC32C")
			}
			if _, err := c.Write(req); err != nil {
				return err
			}
			continue
		}
		binary.BigEndian.PutUint32(data[n:], crc32.Checksum(data[:n], castagnoli))
		if _, err := c.Write(data); err != nil {
			return err
		}
	}
}

// stream measures the raw stream at point p. Its client runs in this process, on the client's core.
func (b *bench) stream(p harness.Point) (s sample, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return s, err
	}
	one.Set(harness.ClientCore)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return s, err
	}
	defer func() { _ = unix.SchedSetaffinity(0, &all) }()
	c, err := net.Dial("tcp", streamAt)
	if err != nil {
		return s, err
	}
	defer c.Close()
	ios, took, err := exchange(c, p, time.Duration(b.Seconds*float64(time.Second)))
	s.IOPS = float64(ios) / took.Seconds()
	return s, err
}

// exchange keeps depth requests outstanding for d.
func exchange(c net.Conn, p harness.Point, d time.Duration) (ios int, took time.Duration, err error) {
	req := make([]byte, requestLen)
	binary.BigEndian.PutUint32(req, uint32(p.Size))
	data := make([]byte, p.Size+4)
	if p.Write {
		binary.BigEndian.PutUint32(req[4:], 1)
	}
	ask := func() error {
		if !p.Write {
			_, err := c.Write(req)
			return err
		}
		binary.BigEndian.PutUint32(data[p.Size:], crc32.Checksum(data[:p.Size], castagnoli))
		_, err := (&net.Buffers{req, data}).WriteTo(c)
		return err
	}
	take := func() error {
		if p.Write {
			_, err := io.ReadFull(c, req[:requestLen])
			return err
		}
		if _, err := io.ReadFull(c, data); err != nil {
			return err
		}
		if crc32.Checksum(data[:p.Size], castagnoli) != binary.BigEndian.Uint32(data[p.Size:]) {
			return errors.New("CRC32C")
		}
		return nil
	}
	begun := time.Now()
	// This loop writes and reads in turn, so few requests are outstanding: otherwise both buffers could fill up.
	for range min(p.Depth, 4) {
		if err := ask(); err != nil {
			return 0, 1, err
		}
	}
	for ; ios == 0 || time.Since(begun) < d; ios++ { // one at least, on whatever machine
		if err := errors.Join(take(), ask()); err != nil {
			return ios, 1, err
		}
	}
	return ios, time.Since(begun), nil
}
