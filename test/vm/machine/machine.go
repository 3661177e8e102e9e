// Package machine boots virtual machines under software emulation. They run Debian's kernel with an
// initramfs that u-root's builder makes. Its first process, test/vm/guest, runs the commands that the
// host sends.
package machine

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
	"time"

	"oneshot/test/vm/agent"
)

// BootTime is a limit that only a machine that hangs reaches.
const BootTime = 5 * time.Minute

// silence is how long a machine may say nothing on its console before it is ready. Its kernel says what it does.
const silence = time.Minute

// Machine is a running guest. Its methods may be called by several goroutines at once.
type Machine struct {
	qemu    *exec.Cmd
	exited  chan struct{}
	console string
	conn    net.Conn

	mu      sync.Mutex
	enc     *json.Encoder // guarded by mu
	lastID  int
	running map[int]*Command
}

// Command is a command that runs in the guest.
type Command struct {
	Argv  []string
	Lines chan string // of its output; closed when it has ended
	Exit  int         // its exit status, or -1 if the guest went before it; read after Lines was closed
}

// CPU is the processor that QEMU emulates: all that it can, but what its emulation is slower with. With ERMS and
// FSRM Linux copies byte by byte (REP MOVSB), where it else copies eight at a time; AVX makes programs choose
// instructions that QEMU calls functions for. With SMAP the kernel says around each access to a program's memory
// that it is meant, for which QEMU leaves translated code, and looks up addresses in a table of their own. With LA57 each
// address is looked up in five tables instead of four.
const CPU = "max,erms=off,fsrm=off,avx=off,avx2=off,smap=off,la57=off"

// Boot starts a guest with more of qemu's arguments, and waits until it takes commands. dir
// holds its console and its socket, and has to be a short path. A machine that says nothing for long before it is ready, which was
// seen twice in hundreds under load, is emulation or firmware that hangs: it is told on stderr, and tried once more.
func Boot(img *Image, dir string, more ...string) (*Machine, error) { return boot(img, dir, nil, more) }

// boot is Boot for a qemu that gets files, too, as descriptors 3 and up.
func boot(img *Image, dir string, files []*os.File, more []string) (*Machine, error) {
	m, err := start(img, dir, files, more)
	if errors.Is(err, errSilent) {
		fmt.Fprintln(os.Stderr, "machine:", err, "- and it is started again")
		m, err = start(img, dir, files, more)
	}
	return m, err
}

var errSilent = fmt.Errorf("the guest has said nothing for %v, and is not ready", silence)

func start(img *Image, dir string, files []*os.File, more []string) (*Machine, error) {
	m := &Machine{exited: make(chan struct{}), console: filepath.Join(dir, "console"), running: make(map[int]*Command)}
	socket := filepath.Join(dir, "agent")
	m.qemu = exec.Command("qemu-system-x86_64", append([]string{
		"-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", CPU, "-smp", "2", "-m", "2048", // libiscsi 1.19 gives nothing back
		"-nodefaults", "-display", "none", "-no-reboot",
		"-kernel", img.Kernel, "-initrd", img.Initramfs,
		"-append", KernelArguments(),
		"-serial", "file:" + m.console,
		"-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net",
		"-device", "virtio-serial-pci", "-chardev", "socket,id=agent,server=on,wait=off,path=" + socket,
		"-device", "virtserialport,chardev=agent,name=agent",
	}, more...)...)
	m.qemu.Stderr, m.qemu.ExtraFiles = os.Stderr, files
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
		m.Stop()
		return nil, fmt.Errorf("%w\n%s", err, m.Log())
	}
	return m, nil
}

// connect waits for the guest to say that it is ready.
func (m *Machine) connect(socket string) error {
	deadline := time.Now().Add(BootTime)
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
	dec := json.NewDecoder(bufio.NewReader(m.conn))
	ready := make(chan error, 1)
	go func() {
		var hello agent.Message
		ready <- dec.Decode(&hello)
	}()
	_ = m.conn.SetReadDeadline(deadline)
	for said, heard := int64(0), time.Now(); ; {
		select {
		case err := <-ready:
			if err != nil {
				return fmt.Errorf("the guest did not boot: %w", err)
			}
		case <-time.After(time.Second):
			if now := m.said(); now != said {
				said, heard = now, time.Now()
			} else if time.Since(heard) > silence {
				return errSilent // whoever reads ends with the connection
			}
			continue
		}
		break
	}
	_ = m.conn.SetReadDeadline(time.Time{})
	m.enc = json.NewEncoder(m.conn)
	go m.receive(dec)
	return nil
}

// said returns how many bytes the console has.
func (m *Machine) said() int64 {
	i, err := os.Stat(m.console)
	if err != nil {
		return 0
	}
	return i.Size()
}

// receive hands each message to its command.
func (m *Machine) receive(dec *json.Decoder) {
	for {
		var msg agent.Message
		err := dec.Decode(&msg)
		m.mu.Lock()
		if err != nil {
			for id, c := range m.running {
				c.Exit = -1
				close(c.Lines)
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
			c.Exit = msg.Exit
			close(c.Lines)
		default:
			c.Lines <- msg.Line
		}
	}
}

// Start begins a command in the guest.
func (m *Machine) Start(argv ...string) (*Command, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastID++
	c := &Command{Argv: argv, Lines: make(chan string, 1<<16)}
	m.running[m.lastID] = c
	if err := m.enc.Encode(agent.Request{ID: m.lastID, Argv: argv}); err != nil {
		return nil, fmt.Errorf("the guest is gone: %w\n%s", err, m.Log())
	}
	return c, nil
}

// Wait returns the rest of the output, and an error if the command does not end within limit.
func (c *Command) Wait(limit time.Duration) (string, error) {
	var out strings.Builder
	late := time.After(limit)
	for {
		select {
		case line, more := <-c.Lines:
			if !more {
				return out.String(), nil
			}
			out.WriteString(line + "\n")
		case <-late:
			return out.String(), fmt.Errorf("%s does not end\n%s", strings.Join(c.Argv, " "), out.String())
		}
	}
}

// Log returns the last messages of the guest's kernel.
func (m *Machine) Log() string {
	b, _ := os.ReadFile(m.console)
	return "console: " + string(b[max(0, len(b)-4096):])
}

// Stop ends the guest as a power failure would.
func (m *Machine) Stop() {
	_ = m.qemu.Process.Kill()
	<-m.exited
	if m.conn != nil {
		_ = m.conn.Close()
	}
}

// Ended is closed when the guest has ended.
func (m *Machine) Ended() <-chan struct{} { return m.exited }

// PID returns the process ID of qemu.
func (m *Machine) PID() int { return m.qemu.Process.Pid }
