// Command guest is the first process of the virtual machines in test/vm: it brings the
// system up and runs the commands that the host sends. In a system that is up already (packaging) it is a
// service and does the latter only.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/test/vm/agent"
)

func main() {
	if os.Getpid() == 1 {
		defer func() { _ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) }()
		if err := boot(); err != nil {
			fmt.Println("guest:", err)
		}
	}
	port, err := openPort()
	if err != nil {
		fmt.Println("guest:", err)
		return
	}
	serve(port)
}

// mounts of a system without a root disk.
var mounts = []struct{ fs, dir string }{
	{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/run"}, {"tmpfs", "/tmp"}, {"tmpfs", "/mnt"},
}

func boot() error {
	for _, m := range mounts {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.fs, m.dir, m.fs, 0, ""); err != nil && err != unix.EBUSY {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	for _, d := range []string{"/run/lock/iscsi", "/run/lock", "/var/lib", "/etc/iscsi"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := os.Setenv("PATH", "/sbin:/usr/sbin:/bin:/usr/bin"); err != nil {
		return err
	}
	// Small libraries in the place of large ones that no test uses, if the image has any.
	if err := os.Setenv("LD_LIBRARY_PATH", "/lib/standin"); err != nil {
		return err
	}
	if err := loadModules(); err != nil {
		return err
	}
	// From here on the console takes warnings only: each octet of it costs the emulation.
	const setLevel, warnings = 8, 5
	if _, err := unix.Klogctl(setLevel, make([]byte, warnings)); err != nil {
		return fmt.Errorf("level of the console: %w", err)
	}
	// RDMA devices pin memory, and hold root to the limit as well.
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}); err != nil {
		return err
	}
	for _, c := range []string{
		"ip link set dev lo up", "ip link set dev eth0 up", "ip addr add 10.0.2.15/24 dev eth0",
		"ip route add default via 10.0.2.2 dev eth0",
	} {
		if out, err := exec.Command("ip", strings.Fields(c)[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", c, err, out)
		}
	}
	return nil
}

// loadModules loads what the host listed, in its order.
func loadModules() error {
	list, err := os.ReadFile("/modules/list")
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(list)) {
		f, err := os.Open(filepath.Join("/modules", name))
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && err != unix.EEXIST && err != unix.ENODEV {
			return fmt.Errorf("module %s: %w", name, err)
		}
	}
	return nil
}

// openPort opens the virtio serial port called agent.
func openPort() (*os.File, error) {
	for range 100 {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, n := range names {
			if b, _ := os.ReadFile(n); strings.TrimSpace(string(b)) == "agent" {
				return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(n)), os.O_RDWR, 0)
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil, fmt.Errorf("no virtio serial port called agent")
}

// output sends messages to the host.
type output struct {
	mu  sync.Mutex
	enc *json.Encoder
}

func (o *output) send(m agent.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_ = o.enc.Encode(m)
}

func serve(port *os.File) {
	o := &output{enc: json.NewEncoder(port)}
	o.send(agent.Message{Line: "ready"})
	dec := json.NewDecoder(bufio.NewReader(port))
	for {
		var r agent.Request
		if err := dec.Decode(&r); err != nil {
			fmt.Println("guest:", err)
			return
		}
		go run(o, r)
	}
}

func run(o *output, r agent.Request) {
	say := func(line string) { o.send(agent.Message{ID: r.ID, Line: line}) }
	exit := 0
	if own, ok := commands[r.Argv[0]]; ok {
		if err := own(say, r.Argv[1:]); err != nil {
			say(err.Error())
			exit = 1
		}
	} else {
		exit = runForeign(say, r.Argv)
	}
	o.send(agent.Message{ID: r.ID, Done: true, Exit: exit})
}

// runForeign runs a program, and says all that it has written when it ends. What a daemon that it leaves behind writes later is dropped.
func runForeign(say func(string), argv []string) int {
	cmd := exec.Command(argv[0], argv[1:]...)
	pr, pw, err := os.Pipe()
	if err != nil {
		say(err.Error())
		return 127
	}
	defer pw.Close()
	cmd.Stdout, cmd.Stderr = pw, pw
	if err = cmd.Start(); err != nil {
		pr.Close()
		say(err.Error())
		return 127
	}
	const end = "\x00end" // of a line: a daemon keeps the pipe open
	said := make(chan struct{})
	go func() {
		defer pr.Close()
		s := bufio.NewScanner(pr)
		for last := false; !last && s.Scan(); {
			var line string
			if line, last = strings.CutSuffix(s.Text(), end); line != "" || !last {
				say(line)
			}
		}
		close(said)
		_, _ = io.Copy(io.Discard, pr) // nobody wants it
	}()
	err = cmd.Wait()
	_, _ = pw.WriteString(end + "\n") // cannot fail: it is being read
	<-said
	if err != nil {
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			return e.ExitCode()
		}
		say(err.Error())
		return 127
	}
	return 0
}
