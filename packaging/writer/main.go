// Command writer is the initiator of the tests of the package: it writes numbered blocks to LUN 0 until
// SIGINT, logging in again whenever its session ends, and prints the number of each block that
// was acknowledged. Then it reads all of them back.
//
//	writer HOST:PORT IQN
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"oneshot/initiator"
)

const blockSize = 4096

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "writer:", err)
		os.Exit(1)
	}
}

func run(address, iqn string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	d := &disk{url: initiator.URL{Address: address, Target: iqn, LUN: -1}}
	n := 0
	for ; ctx.Err() == nil; n++ {
		if err := d.retry(func(lu *initiator.LU) error { return write(lu, n) }); err != nil {
			return fmt.Errorf("block %d: %w", n, err)
		}
		fmt.Println(n + 1)
		time.Sleep(time.Millisecond) // a load, not a benchmark
	}
	for i := range n {
		if err := d.retry(func(lu *initiator.LU) error { return verify(lu, i, n) }); err != nil {
			return err
		}
	}
	fmt.Fprintf(os.Stderr, "%d blocks written and read back, %d logins\n", n, d.logins)
	return d.session.Close()
}

// disk is LUN 0, used through the current session.
type disk struct {
	url     initiator.URL
	session *initiator.Session
	lu      *initiator.LU
	logins  int
}

const unitAttention = 0x6

// patience is how long the target may be unreachable; open-iscsi waits 120 s.
const patience = 60 * time.Second

// retry calls f, and repeats it in a new session if the old one has ended.
func (d *disk) retry(f func(*initiator.LU) error) error {
	for start := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		err := d.login()
		if err == nil {
			err = f(d.lu)
		}
		if err == nil {
			return nil
		}
		answer, answered := errors.AsType[*initiator.StatusError](err)
		if answered && answer.Key == unitAttention && time.Since(start) < patience { // something has changed
			continue
		}
		if answered || errors.Is(err, errDifferent) || time.Since(start) > patience {
			return err
		}
		if d.session != nil {
			_ = d.session.Close()
			d.session = nil
		}
	}
}

func (d *disk) login() error {
	if d.session != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	s, err := initiator.Dial(ctx, d.url, initiator.Options{})
	if err != nil {
		return err
	}
	d.session = s
	d.logins++
	d.lu, err = s.LU(ctx, 0)
	return err
}

// offset returns the place of block n on the disk. After the last place it begins again with the first.
func offset(lu *initiator.LU, n int) int64 {
	return int64(n) * blockSize % (lu.Size() / blockSize * blockSize)
}

func write(lu *initiator.LU, n int) error {
	b := make([]byte, blockSize)
	binary.BigEndian.PutUint64(b, uint64(n))
	_, err := lu.WriteAt(b, offset(lu, n))
	return err
}

var errDifferent = errors.New("a block that was acknowledged has other content")

func verify(lu *initiator.LU, i, n int) error {
	b := make([]byte, blockSize)
	if _, err := lu.ReadAt(b, offset(lu, i)); err != nil {
		return err
	}
	got := binary.BigEndian.Uint64(b)
	again := got > uint64(i) && got < uint64(n) && offset(lu, int(got)) == offset(lu, i)
	if got != uint64(i) && !again {
		return fmt.Errorf("%w: block %d holds %d", errDifferent, i, got)
	}
	return nil
}
