package storm

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/initiator"
	"oneshot/initiator/host"
	"oneshot/internal/loglimit"
	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
	nvmepdu "oneshot/nvme/tcp/pdu"
	"oneshot/test/attack"
)

// TestStorm uses one daemon for all attacks, so that anything that one attack leaves behind affects the
// next ones.
func TestStorm(t *testing.T) {
	began := time.Now()
	d := start(t, `
stores: {a: {type: memory, size: 16MiB}, b: {type: file, path: $DIR/b.img, size: 16MiB}}
targets:
  - {iqn: `+iqn+`t, luns: {0: a, 1: b}}
  - {iqn: `+iqn+`chap, luns: {0: a}, auth: {chap: {user: honest, secret: secret-of-the-honest}}}
subsystems: [{nqn: "`+nqn+`", namespaces: {1: a}}]
portals: [{listen: $PORTAL}, {transport: nvme-tcp, listen: $PORTAL2}]
management: {socket: $DIR/socket}
limits: {connections: 8192, login_timeout: 1h, memory: 64MiB, memory_per_connection: 4MiB}
`)
	s := &storm{d, t, d.watch(), began, 0}
	s.brokenReload()
	s.idle = d.descriptors()
	var attacks []func()
	for _, f := range s.fronts() {
		attacks = append(attacks, func() { s.connections(f) })
	}
	for _, f := range append(attacks, s.descriptors, s.wrongSecrets, s.peersThatDoNotRead) {
		f()
		s.Works()
		if t.Failed() {
			return
		}
	}
}

type storm struct {
	*daemon
	t *testing.T
	*attack.Witness
	began time.Time // before the daemon
	idle  int       // descriptors of the daemon with the witness alone
}

// A reload with a broken file says where, and changes nothing.
func (s *storm) brokenReload() {
	err := s.reload("stores: {a: {type: memory,", "stores: {a: {type: memroy,")
	if err == nil || !strings.Contains(err.Error(), "target.yaml:2") || !strings.Contains(err.Error(), "memroy") {
		s.t.Errorf("a broken file: %v", err)
	}
}

// front is a protocol at whose portal connections begin.
type front struct {
	name    string
	addr    string
	begin   []byte // what opens a connection
	part    int    // how much of it takes the daemon into the middle
	refused func() uint64
	honest  func()
	late    string // what the log says of a beginning that does not go on
	gaveWay string // and of one that has given way
}

func (s *storm) fronts() []front {
	return []front{
		{
			"iSCSI", s.Portal(), loginRequest("drip"), pdu.BHSLen + 5,
			func() uint64 { return s.status().Counters.Refused }, func() { s.honest("t", nil) },
			"no login within", "of those that have not logged in it is the oldest",
		},
		{
			"NVMe", s.Portals[1], new(nvmepdu.IC).AppendTo(nil, nvmepdu.ICReq), 50,
			func() uint64 { return s.status().NVMe.Counters.Refused }, s.honestHost,
			"no Connect command within", "of those without a controller it is the oldest",
		},
	}
}

// connections opens 10,000 connections as fast as possible: silent ones, ones with half of a login, and
// ones that log in a byte at a time. The daemon keeps as many as limits.connections allows until the login
// timeout. The oldest give way to later ones, so that an honest initiator can log in. Nothing is left
// afterwards.
func (s *storm) connections(f front) {
	const n, limit = 10_000, 8192
	raiseDescriptors(s.t, n+1000)
	before := s.idle
	s.until("the witness is alone", func() bool { return s.daemon.descriptors() == before })
	refused, resident := f.refused(), s.resident()
	// each says what a connection costs that the daemon has had, of as many as it may have had at once.
	each := func(connections int64) {
		s.t.Helper()
		if more := s.resident() - resident; more > connections*perConnection {
			s.t.Errorf("%s: %d bytes for each connection that has yet to log in", f.name, more/connections)
		}
	}
	const held = limit / 2 // as many may be there without a login
	conns := s.dial(f.addr, held)
	s.until("all connections that there is room for are held", func() bool { return s.daemon.descriptors() == before+held })
	each(held)
	conns = append(conns, s.dial(f.addr, n-held)...)
	s.Works()
	s.until("as many connections as there is room for are held, and the others are not", func() bool {
		return f.refused()-refused >= n-held && s.daemon.descriptors() == before+held
	})
	f.honest()
	each(limit) // a connection that gives way keeps its memory until its goroutine has run
	if got := s.status().Buffers.InUse; got > 1<<20 {
		s.t.Errorf("%s: %d bytes of I/O memory", f.name, got)
	}

	var drip sync.WaitGroup
	for i, c := range conns {
		switch {
		case i%500 == 0:
			drip.Go(func() { dripInto(c, f.begin) })
		case i%10 == 0:
			_, _ = c.Write(f.begin[:f.part])
		}
	}
	if err := s.reload("login_timeout: 1h", "login_timeout: 1s"); err != nil {
		s.t.Fatal(err)
	}
	for _, c := range conns {
		// All of them end: those that were refused, and those that did not log in.
		_ = c.SetDeadline(time.Now().Add(patience)) // only a hang reaches it
		if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, unix.ECONNRESET) {
			s.t.Fatal(err)
		}
		_ = c.Close()
	}
	drip.Wait()
	s.until("descriptors are back", func() bool { return s.daemon.descriptors() <= before })
	if got := s.logged(f.late); got == 0 || got > s.mostLines() {
		s.t.Errorf("%s: %d lines about logins that did not come", f.name, got)
	}
	if got := s.logged(f.gaveWay); got == 0 || got > s.mostLines() {
		s.t.Errorf("%s: %d lines about connections that gave way", f.name, got)
	}
	if err := s.reload("", ""); err != nil {
		s.t.Fatal(err)
	}
	f.honest()
}

const (
	// perConnection is the most memory that a connection without a session may cost. Measured were 11 KiB,
	// and 39 KiB under the race detector.
	perConnection = 64 << 10
)

// mostLines is how many lines of one kind the log may have by now: in each window the burst, and the line about omitted ones.
func (s *storm) mostLines() int {
	windows := int(time.Since(s.began)/loglimit.Window) + 2 // one is under way, and this process may be late to look
	return windows * (loglimit.Burst + 1)
}

// dial opens n connections as fast as possible.
func (s *storm) dial(addr string, n int) []*net.TCPConn {
	conns := make([]*net.TCPConn, n)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				c, err := net.DialTimeout("tcp", addr, patience)
				if err != nil {
					s.t.Error(err)
					return
				}
				conns[i] = c.(*net.TCPConn)
			}
		})
	}
	wg.Wait()
	if s.t.Failed() {
		s.t.FailNow()
	}
	return conns
}

// dripInto sends b a byte at a time, again and again, until the target closes the connection.
func dripInto(c net.Conn, b []byte) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i = (i + 1) % (len(b) - 1) { // the last byte never comes
		if _, err := c.Write(b[i : i+1]); err != nil {
			return
		}
		<-tick.C
	}
}

// raiseDescriptors allows this process n descriptors.
func raiseDescriptors(t *testing.T, n uint64) {
	t.Helper()
	var l unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l)
	if err == nil && l.Cur < n {
		err = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: max(n, l.Max)})
	}
	if err != nil {
		t.Fatalf("%d descriptors are needed (ulimit -Hn): %v", n, err)
	}
}

// honest logs in with the right secret, and logs out.
func (s *storm) honest(target string, c *initiator.Credentials) {
	s.t.Helper()
	session, err := s.login(target, c)
	if err == nil {
		err = session.Close()
	}
	if err != nil {
		s.t.Errorf("the honest: %v", err)
	}
}

// honestHost connects a host of NVMe, and lets it go.
func (s *storm) honestHost() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	c, err := host.Dial(ctx, host.URL{Address: s.Portals[1], Subsystem: nqn}, host.Options{})
	if err == nil {
		err = c.Close()
	}
	if err != nil {
		s.t.Errorf("the honest host: %v", err)
	}
}

// descriptors lets the daemon run out of descriptors. The log says so once, sessions go on, and waiting
// connections are accepted when there are descriptors again.
func (s *storm) descriptors() {
	var was unix.Rlimit
	few := unix.Rlimit{Cur: uint64(s.daemon.descriptors() + 20)}
	if err := unix.Prlimit(s.PID(), unix.RLIMIT_NOFILE, nil, &was); err != nil {
		s.t.Fatal(err)
	}
	few.Max = was.Max
	if err := unix.Prlimit(s.PID(), unix.RLIMIT_NOFILE, &few, nil); err != nil {
		s.t.Fatal(err)
	}
	defer func() {
		if err := unix.Prlimit(s.PID(), unix.RLIMIT_NOFILE, &was, nil); err != nil {
			s.t.Error(err)
		}
	}()
	conns := s.dial(s.Portal(), 60)
	const said = "cannot accept connections now"
	s.WaitLog(s.t.Context(), said)
	s.Works()
	for _, c := range conns {
		_ = c.Close()
	}
	s.honest("t", nil)
	if got := s.logged(said); got != 1 {
		s.t.Errorf("the log says %d times that connections cannot be accepted", got)
	}
}

// wrongSecrets logs in a thousand times with a wrong secret. Each login is answered, an initiator with the
// right secret can log in meanwhile, and nothing is left.
func (s *storm) wrongSecrets() {
	const n = 1000
	right := &initiator.Credentials{Name: "honest", Secret: []byte("secret-of-the-honest")}
	wrong := &initiator.Credentials{Name: "honest", Secret: []byte("secret-of-the-other1")}
	s.honest("chap", right)
	before, resident, failures := s.daemon.descriptors(), s.resident(), s.status().Counters.LoginFailures
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := next.Add(1); i <= n; i = next.Add(1) {
				_, err := s.login("chap", wrong)
				if e, ok := errors.AsType[*initiator.LoginError](err); !ok || e.Status != pdu.LoginAuthenticationFailure {
					s.t.Errorf("a wrong secret: %v", err)
					return
				}
				if i%100 == 0 {
					s.honest("chap", right)
				}
			}
		})
	}
	wg.Wait()
	if got := s.status().Counters.LoginFailures - failures; got != n {
		s.t.Errorf("%d failures were counted", got)
	}
	if got := s.logged("login refused"); got == 0 || got > s.mostLines() {
		s.t.Errorf("%d lines about logins that were refused", got)
	}
	s.until("descriptors are back", func() bool { return s.daemon.descriptors() <= before })
	// Allocations make the collector free garbage; only memory that is still in use stays.
	s.until("the memory is back", func() bool {
		s.honest("chap", right)
		return s.resident()-resident <= n*perConnection/2
	})
}

// peersThatDoNotRead opens sessions that request 128 MiB each, with a full command window, and take none
// of it. Each gets at most limits.memory_per_connection, which is freed with its connection.
func (s *storm) peersThatDoNotRead() {
	const peers, reads, each, share = 6, 128, 1 << 20, 4 << 20
	var conns []net.Conn
	for i := range peers {
		c, err := net.Dial("tcp", s.Portal())
		if err != nil {
			s.t.Fatal(err)
		}
		_ = c.(*net.TCPConn).SetReadBuffer(4096)
		conns = append(conns, c)
		b := loginRequest(string(rune('a' + i)))
		for k := range reads {
			cdb := []byte{0: 0x88, 12: each / 512 >> 8, 13: each / 512 & 0xff, 15: 0} // READ(16)
			f := pdu.SCSICommandFields{
				Final: true, Read: true, Attr: pdu.AttrSimple, LUN: uint64(i%2) << 48, ITT: uint32(k), EDTL: each,
				CmdSN: serial.SN(1 + k), CDB: cdb,
			}
			b = f.AppendTo(b)
		}
		if _, err := c.Write(b); err != nil {
			s.t.Fatal(err)
		}
	}
	mine := func() (held []int) {
		list, err := s.admin.Sessions(s.t.Context())
		if err != nil {
			s.t.Fatal(err)
		}
		for _, x := range list.Sessions {
			if strings.HasPrefix(x.Initiator, rawName) {
				held = append(held, x.Buffers)
			}
		}
		return held
	}
	s.until("the file's readers have their share, and no more", func() bool {
		full, most := 0, 0
		for _, n := range mine() {
			most = max(most, n)
			if n > share-each {
				full++
			}
		}
		if most > share {
			s.t.Fatalf("a peer holds %d bytes", most)
		}
		return full == peers/2
	})
	s.Works()
	if got, limit := s.status().Buffers.InUse, int64(peers+2)*share; got > limit {
		s.t.Errorf("%d bytes of I/O memory, want at most %d", got, limit)
	}
	s.honest("t", nil)
	for _, c := range conns {
		_ = c.Close()
	}
	s.until("nothing is left of them", func() bool { return len(mine()) == 0 && s.status().Buffers.InUse < share })
}
