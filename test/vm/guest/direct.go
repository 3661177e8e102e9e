package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"oneshot/test/vm/agent"
)

// direct: @direct DEVICE BYTES[,BYTES]... COUNT DEPTH writes COUNT pieces of BYTES each past the page
// cache, DEPTH of them at a time, and reads them back; then pieces of the next size.
func direct(_ func(string), a []string) error {
	f, err := os.OpenFile(a[0], os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for size := range strings.SplitSeq(a[1], ",") {
		if err := writeAndRead(f, number(size), number(a[2]), number(a[3])); err != nil {
			return err
		}
	}
	return nil
}

// writeAndRead writes count pieces of size bytes, depth at a time, and reads them back.
func writeAndRead(f *os.File, size, count, depth int) (err error) {
	for _, transfer := range []func(*os.File, []byte, int) error{writePiece, readPiece} {
		pieces := make(chan int, count)
		for n := range count {
			pieces <- n
		}
		close(pieces)
		errs := make(chan error, depth)
		var wg sync.WaitGroup
		for range depth {
			wg.Go(func() { errs <- transferAll(f, size, pieces, transfer) })
		}
		wg.Wait()
		close(errs)
		for e := range errs {
			err = errors.Join(err, e)
		}
	}
	return err
}

// transferAll takes pieces until there are none.
func transferAll(f *os.File, size int, pieces <-chan int, transfer func(*os.File, []byte, int) error) error {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON) // aligned, as O_DIRECT wants it
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(b) }()
	for n := range pieces {
		if err := transfer(f, b, n); err != nil {
			return fmt.Errorf("piece %d of %d bytes: %w", n, size, err)
		}
	}
	return nil
}

func writePiece(f *os.File, b []byte, n int) error {
	fillPiece(b, n)
	_, err := f.WriteAt(b, int64(n)*int64(len(b)))
	return err
}

func readPiece(f *os.File, b []byte, n int) error {
	if _, err := f.ReadAt(b, int64(n)*int64(len(b))); err != nil {
		return err
	}
	want := make([]byte, len(b))
	fillPiece(want, n)
	if !bytes.Equal(b, want) {
		return errors.New("not what was written")
	}
	return nil
}

// fillPiece makes bytes that no other piece of any length has.
func fillPiece(b []byte, n int) {
	_, _ = agent.NewBytes(uint64(n), uint64(len(b))).Read(b)
}

// busy: @busy DEVICE BYTES DEPTH writes for ever, past the page cache, DEPTH pieces of BYTES
// at a time, and says so when each has been written once.
func busy(say func(string), a []string) error {
	f, err := os.OpenFile(a[0], os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	size, depth := number(a[1]), number(a[2])
	errs := make(chan error, depth)
	var first sync.WaitGroup
	for n := range depth {
		first.Add(1)
		go func() { errs <- rewrite(f, size, n, first.Done) }()
	}
	first.Wait()
	say("busy")
	return <-errs
}

// rewrite writes a piece until that fails, and calls once after the first time.
func rewrite(f *os.File, size, n int, once func()) error {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	for times := 0; err == nil; times++ {
		err = writePiece(f, b, n)
		if times == 0 {
			once()
		}
	}
	return err
}
