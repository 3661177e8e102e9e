// Package targettest runs the daemon of this checkout for tests that need the
// real thing: a process with a portal, a log and an exit status.
//
//	func TestMain(m *testing.M) { targettest.Main(m) }
//
//	tg := targettest.Start(t, `
//	stores:  {disk: {type: file, path: $DIR/disk.img, size: 1GiB}}
//	targets: [{iqn: iqn.2026-11.example.oneshot:t, luns: {0: disk}}]
//	portals: [{transport: tcp, listen: $PORTAL}]
//	`)
//	url := tg.URL("iqn.2026-11.example.oneshot:t", 0)
//
// The daemon is built once per test process, or once for all that share ONESHOT_BUILT, with the race detector or the
// invariants tag when the test itself was built with them. When the test ends,
// it is stopped by SIGTERM and must then exit with status 0, and its log must
// be free of panics and data races; the log is shown when the test failed.
package targettest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	startTimeout = 30 * time.Second // a race build on a busy machine
	tryTimeout   = 5 * time.Second  // a portal of this machine accepts or refuses at once
	stopTimeout  = 60 * time.Second // the daemon finishes its commands and syncs its stores
	pollInterval = 5 * time.Millisecond
)

// A Target is one configured daemon, which may be stopped and started again. One
// goroutine at a time may call its methods, except PID, Log and WaitLog.
type Target struct {
	// Dir is the directory $DIR stands for; it lives until the test ends.
	Dir string
	// Portals are the addresses $PORTAL, $PORTAL2 … stand for. They stay
	// reserved until the test ends, also while the daemon is down.
	Portals []string

	tb     testing.TB
	config string // path of the configuration file
	log    *logBuffer

	mu   sync.Mutex
	proc *process // guarded by mu; nil when the daemon is down
}

// Start writes config to a file, starts `target serve --config FILE` and
// returns when every portal accepts connections. In config, $DIR stands for a
// temporary directory and $PORTAL, $PORTAL2 … $PORTAL9 for loopback addresses
// with ports of their own.
func Start(tb testing.TB, config string) *Target {
	tb.Helper()
	t := New(tb, config)
	t.Start()
	return t
}

// New is Start, but does not start the daemon: for a test that first makes files in Dir.
func New(tb testing.TB, config string) *Target {
	tb.Helper()
	t := &Target{Dir: tb.TempDir(), tb: tb, log: newLogBuffer()}
	text, err := t.expand(config)
	if err != nil {
		tb.Fatal(err)
	}
	t.config = filepath.Join(t.Dir, "target.yaml")
	if err := os.WriteFile(t.config, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(t.finish)
	return t
}

// expand replaces $DIR and $PORTALn, reserving a port for each portal named.
func (t *Target) expand(config string) (string, error) {
	portals := map[string]string{}
	for _, name := range portalNames {
		if !namesVariable(config, name) {
			continue
		}
		addr, err := t.reserve()
		if err != nil {
			return "", err
		}
		portals[name] = addr
		t.Portals = append(t.Portals, addr)
	}
	var unknown error
	text := os.Expand(config, func(name string) string {
		if name == "DIR" {
			return t.Dir
		}
		addr, ok := portals[name]
		if !ok {
			unknown = fmt.Errorf("targettest: the configuration names $%s; known are $DIR, $PORTAL, $PORTAL2 … $PORTAL9", name)
		}
		return addr
	})
	return text, unknown
}

var portalNames = []string{
	"PORTAL", "PORTAL2", "PORTAL3", "PORTAL4", "PORTAL5", "PORTAL6", "PORTAL7", "PORTAL8", "PORTAL9",
}

func namesVariable(config, name string) bool {
	found := false
	os.Expand(config, func(n string) string { found = found || n == name; return "" })
	return found
}

// reserve reserves a port until the end of the test.
func (t *Target) reserve() (string, error) {
	addr, release, err := Reserve(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	if err != nil {
		return "", err
	}
	t.tb.Cleanup(release)
	return addr.String(), nil
}

// Reserve reserves a free port of a loopback address until release is called, with a
// socket that is bound but does not listen. The kernel gives the port to nobody else,
// but the daemon, whose listener sets SO_REUSEADDR as this socket does, may listen on it.
func Reserve(ip netip.Addr) (addr netip.AddrPort, release func(), err error) {
	domain, at := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: ip.As16()})
	if ip.Is4() {
		domain, at = unix.AF_INET, &unix.SockaddrInet4{Addr: ip.As4()}
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return addr, nil, fmt.Errorf("targettest: reserve a port: %w", err)
	}
	port, err := bind(fd, at)
	if err != nil {
		unix.Close(fd)
		return addr, nil, fmt.Errorf("targettest: reserve a port of %v: %w", ip, err)
	}
	return netip.AddrPortFrom(ip, port), func() { unix.Close(fd) }, nil
}

// bind binds a socket to a port that the kernel chooses.
func bind(fd int, at unix.Sockaddr) (port uint16, err error) {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return 0, err
	}
	if err := unix.Bind(fd, at); err != nil {
		return 0, err
	}
	sa, err := unix.Getsockname(fd)
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return uint16(sa.Port), err
	case *unix.SockaddrInet6:
		return uint16(sa.Port), err
	}
	return 0, err
}

// Start starts the daemon, which must be down, with the configuration and the
// ports it had before.
func (t *Target) Start() {
	t.tb.Helper()
	if t.running() != nil {
		t.tb.Fatal("targettest: Start of a target that runs")
	}
	p, err := startProcess(Binary(t.tb), t.log, "serve", "--config", t.config)
	if err != nil {
		t.tb.Fatal(err)
	}
	t.setRunning(p)
	for _, addr := range t.Portals {
		if err := p.await("tcp", addr); err != nil {
			t.tb.Fatal(err)
		}
	}
	text, err := os.ReadFile(t.config)
	if err != nil {
		t.tb.Fatal(err)
	}
	if socket := managementSocket.FindSubmatch(text); socket != nil { // it comes behind the portals
		if err := p.await("unix", string(socket[1])); err != nil {
			t.tb.Fatal(err)
		}
	}
}

// managementSocket finds the socket of mgmt, as configurations of tests have it.
var managementSocket = regexp.MustCompile(`management: *\{socket: *([^ ,}]+)`)

// Stop ends the daemon with SIGTERM. The test fails if its exit status is not 0.
func (t *Target) Stop() {
	t.tb.Helper()
	p := t.setRunning(nil)
	if p == nil {
		t.tb.Fatal("targettest: Stop of a target that is down")
	}
	if err := p.stop(); err != nil {
		t.tb.Error(err)
	}
}

// Kill ends the daemon with SIGKILL and returns when it is gone.
func (t *Target) Kill() {
	t.tb.Helper()
	p := t.setRunning(nil)
	if p == nil {
		t.tb.Fatal("targettest: Kill of a target that is down")
	}
	p.signal(syscall.SIGKILL)
	<-p.exited
}

// Restart is Stop and Start.
func (t *Target) Restart() {
	t.tb.Helper()
	t.Stop()
	t.Start()
}

// Edit replaces old by new in the configuration file, which has addresses in the place of $PORTAL. The
// daemon reads the file only at a reload or at its next start.
func (t *Target) Edit(old, new string) {
	t.tb.Helper()
	text, err := os.ReadFile(t.config)
	if err != nil {
		t.tb.Fatal(err)
	}
	if !bytes.Contains(text, []byte(old)) {
		t.tb.Fatalf("targettest: the configuration does not have %q\n%s", old, text)
	}
	if err := os.WriteFile(t.config, bytes.ReplaceAll(text, []byte(old), []byte(new)), 0o600); err != nil {
		t.tb.Fatal(err)
	}
}

// Exited returns a channel that is closed when the daemon that now runs has ended,
// by itself or by Stop or Kill; nil, which blocks for ever, if it is down.
func (t *Target) Exited() <-chan struct{} {
	if p := t.running(); p != nil {
		return p.exited
	}
	return nil
}

// PID returns the process ID of the running daemon, or 0 if it is down.
func (t *Target) PID() int {
	if p := t.running(); p != nil {
		return p.cmd.Process.Pid
	}
	return 0
}

// Portal returns the address of the first portal, host:port.
func (t *Target) Portal() string { return t.Portals[0] }

// Port returns the port of the first portal.
func (t *Target) Port() string {
	_, port, err := net.SplitHostPort(t.Portal())
	if err != nil {
		t.tb.Fatal(err)
	}
	return port
}

// URL returns the URL of a logical unit through the first portal, in the form of
// libiscsi and QEMU.
func (t *Target) URL(iqn string, lun int) string {
	return fmt.Sprintf("iscsi://%s/%s/%d", t.Portal(), iqn, lun)
}

// CHAPURL returns URL with the name and secret of the initiator.
func (t *Target) CHAPURL(user, secret, iqn string, lun int) string {
	return fmt.Sprintf("iscsi://%s%%%s@%s/%s/%d", user, secret, t.Portal(), iqn, lun)
}

// Log returns what the daemon has written to standard output and standard error so
// far, in all its runs.
func (t *Target) Log() string { return t.log.String() }

// logTimeout is how long a line may take to come: a test that waits for one that does not come says so, instead of using up
// the time of all.
const logTimeout = 5 * time.Minute

// WaitLog returns when the log contains text. It fails the test if ctx ends
// before, or after five minutes.
func (t *Target) WaitLog(ctx context.Context, text string) {
	t.tb.Helper()
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	if err := t.log.wait(ctx, text); err != nil {
		t.tb.Fatalf("targettest: the log does not say %q: %v", text, err)
	}
}

func (t *Target) running() *process {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.proc
}

func (t *Target) setRunning(p *process) (was *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was, t.proc = t.proc, p
	return was
}

// finish checks the daemon at the end of a test: its exit status and its log.
func (t *Target) finish() {
	if p := t.setRunning(nil); p != nil {
		if err := p.stop(); err != nil {
			t.tb.Error(err)
		}
	}
	log := t.Log()
	for _, sign := range []string{"WARNING: DATA RACE", "panic:", "fatal error:", "SIGSEGV"} {
		if strings.Contains(log, sign) {
			t.tb.Errorf("targettest: the daemon's log says %q", sign)
		}
	}
	if t.tb.Failed() {
		t.tb.Logf("log of the daemon:\n%s", log)
	}
}

// A process is one run of the daemon.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed after err is set
	err    error         // of cmd.Wait
}

func startProcess(binary string, log *logBuffer, args ...string) (*process, error) {
	cmd := exec.Command(binary, args...)
	cmd.Stdout, cmd.Stderr = log, log
	// The daemon must not outlive a test process that is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("targettest: start the daemon: %w", err)
	}
	p := &process{cmd: cmd, exited: make(chan struct{})}
	go func() { // ends with the daemon, for which every test waits
		p.err = cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// await returns when addr accepts a connection, and none is left. Only a try that begins behind the deadline says that it is over: a
// process that did not run for that long, or a try that hung, is no daemon that does not listen.
func (p *process) await(network, addr string) error {
	dialer := net.Dialer{Timeout: tryTimeout}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	start := time.Now()
	var longest time.Duration // a try and the pause behind it
	for tries := 1; ; tries++ {
		began := time.Now()
		conn, err := dialer.Dial(network, addr)
		if err == nil {
			if err := letGo(conn); err != nil {
				return fmt.Errorf("targettest: a connection to %s that has ended: %w", addr, err)
			}
			return nil
		}
		if began.Sub(start) > startTimeout {
			return fmt.Errorf("targettest: the daemon does not listen on %s (%d tries in %v, the longest took %v): %w",
				addr, tries, time.Since(start), longest, err)
		}
		select {
		case <-p.exited:
			return fmt.Errorf("targettest: the daemon ended (%v) before it listened on %s", p.cmd.ProcessState, addr)
		case <-tick.C:
		}
		longest = max(longest, time.Since(began))
	}
}

// stop asks the daemon to end. It returns an error if the daemon did not end in an orderly way.
func (p *process) stop() error {
	select {
	case <-p.exited:
		return fmt.Errorf("targettest: the daemon ended (%v) before it was stopped", p.cmd.ProcessState)
	default:
	}
	p.signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(stopTimeout):
		// SIGQUIT makes the runtime print where every goroutine stands.
		p.signal(syscall.SIGQUIT)
		<-p.exited
		return fmt.Errorf("targettest: the daemon still ran %v after SIGTERM", stopTimeout)
	}
	if p.err != nil {
		return fmt.Errorf("targettest: the daemon did not exit cleanly after SIGTERM: %w", p.err)
	}
	return nil
}

func (p *process) signal(s syscall.Signal) {
	// The process may have ended in between; exited and err tell that.
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		panic(err)
	}
}

// A logBuffer collects the output of the daemon, and wakes goroutines that wait for a text.
type logBuffer struct {
	mu      sync.Mutex
	text    bytes.Buffer  // guarded by mu
	changed chan struct{} // guarded by mu; closed and replaced by every Write
}

func newLogBuffer() *logBuffer { return &logBuffer{changed: make(chan struct{})} }

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.changed)
	l.changed = make(chan struct{})
	return l.text.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logBuffer) wait(ctx context.Context, text string) error {
	for {
		l.mu.Lock()
		found, changed := bytes.Contains(l.text.Bytes(), []byte(text)), l.changed
		l.mu.Unlock()
		if found {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// letGo ends a connection, and returns when the daemon has closed it, too: tests count the daemon's descriptors.
func letGo(c net.Conn) error {
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(startTimeout)); err != nil {
		return err
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	return nil
}
