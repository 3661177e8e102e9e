package nbd

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/initiator"
	"oneshot/test/targettest"
)

// socketKernel stands for the kernel's driver, as far as a benchmark needs it.
type socketKernel struct{ sock *os.File }

func (k *socketKernel) Connect(s Setting) (int, error) {
	fd, err := unix.Dup(s.Sockets[0])
	if err == nil {
		err = unix.SetNonblock(fd, false)
	}
	k.sock = os.NewFile(uintptr(fd), "")
	return 4999, err
}

func (*socketKernel) Reconfigure(Setting) error { return nil }
func (*socketKernel) Disconnect(int) error      { return nil }

// load is what a benchmark does.
type load struct {
	op           Type
	length, deep int
}

// envLoad has this program be the kernel's side of descriptor 3: the number of requests, and the load.
const envLoad = "ONESHOT_NBD_LOAD"

// page is how much data the driver sends or receives with one call, in bytes.
const page = 4 << 10

// sendAll sends b as the driver does, which says whether more of the request follows.
func sendAll(fd int, b []byte, more bool) error {
	flags := 0
	if more {
		flags = unix.MSG_MORE
	}
	return unix.Sendto(fd, b, flags, nil)
}

// beKernel has n requests done. It makes the driver's calls: one to send a request, one for each page of the data of a WRITE, one
// to receive a reply, one for each page of the data of a READ.
func beKernel(text string) error {
	var (
		n int
		l load
	)
	if _, err := fmt.Sscan(text, &n, &l.op, &l.length, &l.deep); err != nil {
		return err
	}
	const fd, size = 3, 64 << 20
	free := make(chan struct{}, l.deep)
	for range l.deep {
		free <- struct{}{}
	}
	failed := make(chan error, 1)
	go func() {
		rnd, header, data := rand.New(rand.NewPCG(1, 1)), make([]byte, 0, RequestLen), make([]byte, l.length)
		for range n {
			<-free
			r := Request{Type: l.op, Length: uint32(l.length), Offset: uint64(rnd.IntN(size/l.length) * l.length)}
			err := sendAll(fd, r.AppendTo(header), l.op == Write)
			for b := data; l.op == Write && err == nil && len(b) > 0; b = b[page:] {
				err = sendAll(fd, b[:page], len(b) > page)
			}
			if err != nil {
				failed <- err
				return
			}
		}
	}()
	reply, data := make([]byte, ReplyLen), make([]byte, l.length)
	for range n {
		_, _, err := unix.Recvfrom(fd, reply, unix.MSG_WAITALL)
		for b := data; l.op == Read && err == nil && len(b) > 0; b = b[page:] {
			_, _, err = unix.Recvfrom(fd, b[:page], unix.MSG_WAITALL)
		}
		if err != nil {
			return err
		}
		select {
		case err := <-failed:
			return err
		case free <- struct{}{}:
		}
	}
	return nil
}

// BenchmarkAttached has requests done by an attached disk, whose target and whose kernel are other processes. It reports
// for each request the processor time and the switches of this process, and the calls for the device's socket.
func BenchmarkAttached(b *testing.B) {
	tg := targettest.Start(b, `
stores: {disk: {type: memory, size: 64MiB}}
targets: [{iqn: `+iqn+`, luns: {0: disk}}]
portals: [{transport: tcp, listen: $PORTAL}, {transport: iwarp, listen: $PORTAL2}]
`)
	for i, scheme := range []string{"iscsi", "oneshot+iwarp"} {
		for _, l := range []load{{Read, 4 << 10, 32}, {Write, 4 << 10, 32}, {Read, 256 << 10, 8}, {Write, 256 << 10, 8}} {
			b.Run(fmt.Sprintf("%s/%v/%dKiB", scheme, l.op, l.length>>10), func(b *testing.B) {
				u, err := initiator.ParseURL(fmt.Sprintf("%s://%s/%s/0", scheme, tg.Portals[i], iqn))
				check(b, err)
				k := new(socketKernel)
				a, err := Attach(b.Context(), Options{URL: u, Device: -1, Kernel: k, DeadTime: time.Hour, sys: b.TempDir()})
				check(b, err)
				kernel := exec.Command(os.Args[0])
				kernel.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %d %d", envLoad, b.N, l.op, l.length, l.deep))
				kernel.ExtraFiles, kernel.Stderr = []*os.File{k.sock}, os.Stderr
				c := a.conns[0]
				reads, writes := c.reads.Load(), c.writes.Load()
				var before, after syscall.Rusage
				check(b, syscall.Getrusage(syscall.RUSAGE_SELF, &before))
				b.SetBytes(int64(l.length))
				b.ResetTimer()
				check(b, kernel.Run())
				b.StopTimer()
				check(b, syscall.Getrusage(syscall.RUSAGE_SELF, &after))
				per := func(n float64, unit string) { b.ReportMetric(n/float64(b.N), unit) }
				per(float64(after.Utime.Nano()-before.Utime.Nano()), "user-ns/op")
				per(float64(after.Stime.Nano()-before.Stime.Nano()), "system-ns/op")
				per(float64(after.Nvcsw-before.Nvcsw), "switches/op")
				per(float64(c.reads.Load()-reads), "reads/op")
				per(float64(c.writes.Load()-writes), "writes/op")
				check(b, k.sock.Close())
				check(b, a.Close())
			})
		}
	}
}

// BenchmarkSocketPair reports the shortest times that 256 KiB of a WRITE take to be sent and to be read, when the sender gives a page
// with each call, as the driver does, and when it gives all with one.
func BenchmarkSocketPair(b *testing.B) {
	for _, piece := range []int{page, 256 << 10} {
		b.Run(fmt.Sprintf("%dKiB", piece>>10), func(b *testing.B) {
			ours, theirs, err := socketPair()
			check(b, err)
			data, into := make([]byte, 256<<10), make([]byte, 256<<10)
			send, read := time.Hour, time.Hour
			for b.Loop() {
				begin := time.Now()
				for d := data; len(d) > 0; d = d[piece:] {
					check(b, sendAll(theirs, d[:piece], len(d) > piece))
				}
				sent := time.Now()
				_, err := io.ReadFull(ours, into)
				check(b, err)
				send, read = min(send, sent.Sub(begin)), min(read, time.Since(sent))
			}
			b.ReportMetric(float64(send.Nanoseconds()), "send-ns")
			b.ReportMetric(float64(read.Nanoseconds()), "read-ns")
			check(b, errors.Join(ours.Close(), unix.Close(theirs)))
		})
	}
}
