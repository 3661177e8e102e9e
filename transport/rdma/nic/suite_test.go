package nic_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic"
	"oneshot/transport/rdma/nic/card"
	"oneshot/transport/rdma/rdmatest"
)

// With one of these variables in the environment the test binary is a card (cardSocket), or a program that is killed
// (victimSocket).
const (
	cardSocket   = "NIC_TEST_CARD"
	victimSocket = "NIC_TEST_VICTIM"
	victimPeer   = "NIC_TEST_PEER"
)

func TestMain(m *testing.M) {
	var err error
	if socket := os.Getenv(cardSocket); socket != "" {
		err = beCard(socket)
	} else if socket := os.Getenv(victimSocket); socket != "" {
		err = beVictim(socket, os.Getenv(victimPeer))
	} else {
		goleak.VerifyTestMain(m)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// beCard serves until standard input ends.
func beCard(socket string) error {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		cancel()
	}()
	fmt.Println("ready")
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	return card.New(card.Config{Logger: log}).Serve(ctx, l)
}

// process is a card in a process of its own.
type process struct {
	*exec.Cmd
	socket string
}

// start starts a card, which ends with the test.
func start(t testing.TB) *process {
	t.Helper()
	return startAt(t, filepath.Join(t.TempDir(), "nic"))
}

// startAt starts a card at a socket, which one before may have left behind.
func startAt(t testing.TB, socket string) *process {
	t.Helper()
	_ = os.Remove(socket)
	p := &process{Cmd: exec.Command(os.Args[0]), socket: socket}
	p.Env = append(os.Environ(), cardSocket+"="+p.socket)
	p.Stderr = os.Stderr
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err1 := p.StdinPipe()
	out, err2 := p.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := p.Wait(); err != nil && p.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("the card ends with %v", err)
		}
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the card says %q, %v", line, err)
	}
	return p
}

// serve serves a card in this process until the test ends.
func serve(t testing.TB, c card.Config) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "nic")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- card.New(c).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return socket
}

func open(t testing.TB, socket string) *nic.Device {
	t.Helper()
	d, err := nic.Open(nic.Config{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestSuite(t *testing.T) {
	c := start(t)
	rdmatest.Run(t, func(t *testing.T) rdmatest.Pair {
		return rdmatest.Pair{Client: open(t, c.socket), Server: open(t, c.socket), Listen: "127.0.0.1:0"}
	})
}

// A program may connect to itself.
func TestOneProgram(t *testing.T) {
	d := open(t, start(t).socket)
	a, b := newEnd(t, d), newEnd(t, d)
	connect(t, a, b, nil)
	b.receive(1, 0, 8)
	a.post(rdma.Work{ID: 2, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.sge(0, 8)})
	b.want(rdma.OpReceive, 1)
	a.want(rdma.OpSend, 2)
}

// The limits that the suite relies on are those of iWARP.
func TestLimits(t *testing.T) {
	l := open(t, serve(t, card.Config{})).Limits()
	if !l.Windows || !l.OneShot || !l.ReceiveWait || l.ReadSinkWrite {
		t.Errorf("%+v", l)
	}
	if !l.SendInvalidate || !l.RegionInvalidate || l.UnguardedInvalidate || !l.EndTold || !l.CountsRemote {
		t.Errorf("%+v", l)
	}
	var _ rdma.Allocator = (*nic.Device)(nil)
}
