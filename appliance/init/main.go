// Command init is the first process of the appliance, a machine that only runs target serve.
// It loads drivers for the hardware, sets up the network and soft-RoCE, finds the
// configuration, and keeps the target running.
//
// The kernel's command line may say
//
//	oneshot.ip=dhcp                    or ADDRESS/LENGTH[,GATEWAY]; default dhcp
//	oneshot.nic=eth0                   default: the first network interface
//	oneshot.mtu=9000                   default: unchanged
//	oneshot.rxe=no                     no soft-RoCE; default: a device rxe0 on the interface
//	oneshot.advertise=HOST             the address that discovery tells initiators, with the default
//	                                   configuration, if they cannot reach the machine's own address
//	oneshot.config=/dev/vda1:/a.yaml   the configuration on a disk
//	oneshot.yaml=BASE64                the configuration itself
//
// The power button and Ctrl-Alt-Del stop the target in an orderly way.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	say("starting")
	halt := make(chan int, 1)
	if err := prepare(); err != nil {
		say("%v", err)
	}
	go watchPower(halt)
	path, err := configure(cmdline())
	if err != nil {
		say("%v; serving the default", err)
		path = defaultPath
	}
	end(supervise(path, halt))
}

func say(format string, args ...any) { fmt.Printf("appliance: "+format+"\n", args...) }

// mounts lists the file systems of a machine without a root disk.
var mounts = []struct{ fs, dir string }{
	{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/run"}, {"tmpfs", "/tmp"},
}

// prepare makes the system ready for programs. It goes on after a failure, and returns all of them.
func prepare() error {
	for _, m := range mounts {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.fs, m.dir, m.fs, 0, ""); err != nil && err != unix.EBUSY {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	if err := os.Setenv("PATH", "/bin:/sbin"); err != nil {
		return err
	}
	// RDMA devices pin memory, and the limit on pinned memory holds even for root.
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}); err != nil {
		return err
	}
	if err := allowDescriptors(descriptors); err != nil {
		say("descriptors: %v", err)
	}
	loadModules()
	return network(cmdline())
}

// descriptors is the number of file descriptors that the target may need: each connection takes one, and limits.connections is
// 4,096 by default. The kernel allows its first process only 4,096 in all.
const descriptors = 1 << 16

// allowDescriptors allows this process, and those that it starts, n descriptors.
func allowDescriptors(n uint64) error {
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n})
}

// Pauses before a target that has ended by itself is started again.
const (
	pauseFirst = time.Second
	pauseMost  = 30 * time.Second
	healthy    = time.Minute // a target that has run this long is started again at once
)

// supervise runs the target until halt asks to stop it, and returns what the machine has to do then.
func supervise(path string, halt <-chan int) (how int) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM) // Ctrl-Alt-Del is SIGINT
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF); err != nil {
		say("Ctrl-Alt-Del: %v", err)
	}
	how = unix.LINUX_REBOOT_CMD_POWER_OFF
	pause := pauseFirst
	for {
		begun := time.Now()
		cmd := exec.Command("/bin/target", "serve", "--config", path)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Start(); err != nil {
			say("%v", err)
			return how
		}
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		var err error
		select {
		case err = <-done:
			if err == nil {
				return how
			}
		case <-halt:
			return stop(cmd, done, how)
		case s := <-signals:
			if s == unix.SIGINT {
				how = unix.LINUX_REBOOT_CMD_RESTART
			}
			return stop(cmd, done, how)
		}
		if time.Since(begun) > healthy {
			pause = pauseFirst
		}
		say("the target has ended (%v); starting it again in %v", err, pause)
		time.Sleep(pause)
		pause = min(2*pause, pauseMost)
	}
}

// stopTime is how long the target may take to stop, as under systemd: it gives commands under way 60 s, and its stores 20 s more.
const stopTime = 90 * time.Second

func stop(cmd *exec.Cmd, done <-chan error, how int) int {
	say("stopping")
	_ = cmd.Process.Signal(unix.SIGTERM)
	select {
	case err := <-done:
		if err != nil {
			say("the target ended: %v", err)
		}
	case <-time.After(stopTime):
		_ = cmd.Process.Kill()
	}
	return how
}

// end powers off or restarts the machine. It does not return.
func end(how int) {
	unix.Sync()
	say("the end")
	if err := unix.Reboot(how); err != nil {
		say("%v", err)
	}
	select {}
}
