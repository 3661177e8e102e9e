package vm

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"oneshot/test/vm/agent"
)

// bootTime and runTime are limits that only a hung machine reaches.
const (
	bootTime = 2 * time.Minute
	runTime  = 3 * time.Minute
)

// machine is a running guest.
type machine struct {
	qemu    *exec.Cmd
	exited  chan struct{}
	console string
	conn    net.Conn

	mu      sync.Mutex
	enc     *json.Encoder // guarded by mu
	lastID  int
	running map[int]*command
}

// command is one that runs in the guest.
type command struct {
	argv  []string
	lines chan string // closed when it has ended
	exit  int
}

// boot starts a guest with more of qemu's arguments, and waits until it takes commands.
func boot(img *image, dir string, more ...string) (*machine, error) {
	m := &machine{exited: make(chan struct{}), console: filepath.Join(dir, "console"), running: make(map[int]*command)}
	socket := filepath.Join(dir, "agent")
	m.qemu = exec.Command("qemu-system-x86_64", append([]string{
		"-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2048", // libiscsi 1.19 gives nothing back
		"-nodefaults", "-display", "none", "-no-reboot",
		"-kernel", img.kernel, "-initrd", img.initramfs,
		"-append", "console=ttyS0 mitigations=off tsc=reliable nowatchdog quiet net.ifnames=0 panic=-1",
		"-serial", "file:" + m.console,
		"-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net",
		"-device", "virtio-serial-pci", "-chardev", "socket,id=agent,server=on,wait=off,path=" + socket,
		"-device", "virtserialport,chardev=agent,name=agent",
	}, more...)...)
	m.qemu.Stderr = os.Stderr
	// The machine must not outlive a test process that is killed or panics.
	m.qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.qemu.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = m.qemu.Wait()
		close(m.exited)
	}()
	if err := m.connect(socket); err != nil {
		m.stop()
		return nil, fmt.Errorf("%w\n%s", err, m.log())
	}
	return m, nil
}

// connect waits for the guest to say that it is ready.
func (m *machine) connect(socket string) error {
	deadline := time.Now().Add(bootTime)
	for m.conn == nil {
		c, err := net.Dial("unix", socket)
		switch {
		case err == nil:
			m.conn = c
		case time.Now().After(deadline):
			return err
		default:
			select {
			case <-m.exited:
				return errors.New("qemu ended")
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	_ = m.conn.SetReadDeadline(deadline)
	dec := json.NewDecoder(bufio.NewReader(m.conn))
	var hello agent.Message
	if err := dec.Decode(&hello); err != nil {
		return fmt.Errorf("the guest did not boot: %w", err)
	}
	_ = m.conn.SetReadDeadline(time.Time{})
	m.enc = json.NewEncoder(m.conn)
	go m.receive(dec)
	return nil
}

// receive hands messages to the commands that they are of.
func (m *machine) receive(dec *json.Decoder) {
	for {
		var msg agent.Message
		err := dec.Decode(&msg)
		m.mu.Lock()
		if err != nil {
			for id, c := range m.running {
				c.exit = -1
				close(c.lines)
				delete(m.running, id)
			}
			m.mu.Unlock()
			return
		}
		c := m.running[msg.ID]
		if msg.Done {
			delete(m.running, msg.ID)
		}
		m.mu.Unlock()
		switch {
		case c == nil:
		case msg.Done:
			c.exit = msg.Exit
			close(c.lines)
		default:
			c.lines <- msg.Line
		}
	}
}

// start begins a command in the guest.
func (m *machine) start(t *testing.T, argv ...string) *command {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastID++
	c := &command{argv: argv, lines: make(chan string, 1<<16)}
	m.running[m.lastID] = c
	if err := m.enc.Encode(agent.Request{ID: m.lastID, Argv: argv}); err != nil {
		t.Fatalf("the guest is gone: %v\n%s", err, m.log())
	}
	return c
}

// wait returns the rest of the output, and the exit status.
func (c *command) wait(t *testing.T, m *machine) (string, int) {
	t.Helper()
	var out strings.Builder
	limit := time.After(runTime)
	for {
		select {
		case line, more := <-c.lines:
			if !more {
				return out.String(), c.exit
			}
			out.WriteString(line + "\n")
		case <-limit:
			t.Fatalf("%s does not end\n%s\n%s", strings.Join(c.argv, " "), out.String(), m.log())
		}
	}
}

// run runs a command in the guest that has to succeed.
func (m *machine) run(t *testing.T, argv ...string) string {
	t.Helper()
	out, exit := m.start(t, argv...).wait(t, m)
	if exit != 0 {
		t.Fatalf("%s: exit %d\n%s\n%s", strings.Join(argv, " "), exit, out, m.log())
	}
	return out
}

// fails runs a command in the guest that must not succeed.
func (m *machine) fails(t *testing.T, argv ...string) string {
	t.Helper()
	out, exit := m.start(t, argv...).wait(t, m)
	if exit == 0 {
		t.Fatalf("%s succeeded\n%s", strings.Join(argv, " "), out)
	}
	return out
}

// log is the end of what the guest's kernel said.
func (m *machine) log() string {
	b, _ := os.ReadFile(m.console)
	return "console: " + string(b[max(0, len(b)-4096):])
}

func (m *machine) stop() {
	_ = m.qemu.Process.Kill()
	<-m.exited
	if m.conn != nil {
		_ = m.conn.Close()
	}
}
