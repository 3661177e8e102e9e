package blktests

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"oneshot/initiator/host"
	"oneshot/nvme"
	"oneshot/nvme/auth"
	"oneshot/test/targettest"
)

func TestMain(m *testing.M) { targettest.Main(m) }

// script is scripts/blktests-target with a daemon, and a directory in place of the configfs of Linux's own target.
type script struct {
	t     *testing.T
	state string
	nvmet string
	port  string
}

func newScript(t *testing.T) *script {
	t.Helper()
	at, release, err := targettest.Reserve(netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	dir, err := os.MkdirTemp("", "blk") // a short path, for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &script{t: t, state: dir + "/state", nvmet: dir + "/nvmet", port: strconv.Itoa(int(at.Port()))}
	t.Cleanup(func() { s.run("stop") })
	return s
}

// run calls the script, which has to succeed.
func (s *script) run(args ...string) string {
	s.t.Helper()
	c := exec.Command("bash", append([]string{"../../scripts/blktests-target"}, args...)...)
	c.Env = append(os.Environ(), "TARGET="+targettest.Binary(s.t), "STATE="+s.state, "NVMET="+s.nvmet, "SIZE=1MiB", "PORT="+s.port)
	out, err := c.Output() // what it starts has the other end of stderr for good
	if err != nil {
		s.t.Fatalf("%v: %v", args, err)
	}
	return strings.TrimSpace(string(out))
}

// TestScriptOver: the script's daemon is configured for the transport, the address and the time that the environment names.
func TestScriptOver(t *testing.T) {
	dir := t.TempDir()
	nothing := filepath.Join(dir, "nothing") // a daemon that takes every configuration
	if err := os.WriteFile(nothing, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		c := exec.Command("bash", append([]string{"../../scripts/blktests-target"}, args...)...)
		c.Env = append(os.Environ(), "TARGET="+nothing, "STATE="+dir, "NVMET="+dir+"/nvmet", "TRTYPE=rdma", "ADDRESS=192.0.2.9", "LOGIN_TIMEOUT=1h")
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	for what, want := range map[string]string{"trtype": "rdma", "traddr": "192.0.2.9", "host-traddr": "192.0.2.9"} {
		if got := run("config", "--show-"+what); got != want {
			t.Errorf("%s is %q, want %q", what, got, want)
		}
	}
	run("setup", "--subsysnqn", subNQN)
	out, err := exec.Command(targettest.Binary(t), "check", "--config", filepath.Join(dir, "target.yaml")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"nvme-rdma  192.0.2.9:4420 ", "device any", "login        within 1h0m0s"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the configuration does not have %q:\n%s", want, out)
		}
	}
}

const (
	subNQN  = "nqn.2026-11.example.oneshot:script"
	subUUID = "91fdba0d-f87b-4c25-b80f-db7be1418b9e"
	key     = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:"
	other   = "DHHC-1:01:PzfkoanINrAhrdmD2w8017ocgDjIM3mYnMSVsfozJr8hBCGo:"
)

// connect connects as the host that the script names. Secrets may be empty.
func (s *script) connect(secret, controller string) (*host.Controller, error) {
	s.t.Helper()
	o := host.Options{HostNQN: s.run("config", "--show-hostnqn")}
	for text, p := range map[string]**auth.Secret{secret: &o.Secret, controller: &o.ControllerSecret} {
		if text == "" {
			continue
		}
		x, err := auth.ParseSecret(text)
		if err != nil {
			s.t.Fatal(err)
		}
		*p = &x
	}
	return host.Dial(s.t.Context(), host.URL{Address: "127.0.0.1:" + s.port, Subsystem: subNQN}, o)
}

// lets wants the host to be let in, or not.
func (s *script) lets(in bool, secret, controller string) {
	s.t.Helper()
	c, err := s.connect(secret, controller)
	if (err == nil) != in {
		s.t.Errorf("with %q and %q: %v", secret, controller, err)
	}
	if err == nil {
		_ = c.Close()
	}
}

// TestScript: what blktests asks for is served: a subsystem that shows its namespace to its host, which has to prove what setup was
// told, or what a test has written into configfs, until cleanup.
func TestScript(t *testing.T) {
	s := newScript(t)
	for what, want := range map[string]string{"trtype": "tcp", "blkdev-type": "file", "traddr": "127.0.0.1", "trsvid": s.port} {
		if got := s.run("config", "--show-"+what); got != want {
			t.Errorf("%s is %q, want %q", what, got, want)
		}
	}
	s.run("sync") // there is nothing yet
	s.run("setup", "--subsysnqn", subNQN, "--subsys-uuid", subUUID)
	c, err := s.connect("", "")
	if err != nil {
		t.Fatal(err)
	}
	n, err := c.Namespace(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%x", n.UUID); got != strings.ReplaceAll(subUUID, "-", "") {
		t.Errorf("the namespace is %s", got)
	}
	s.run("cleanup", "--subsysnqn", subNQN)
	for deadline := time.Now().Add(time.Minute); c.Admin(t.Context(), &host.Command{Opcode: nvme.AdminKeepAlive}) == nil; {
		if time.Now().After(deadline) {
			t.Fatal("the controller has outlived its subsystem")
		}
	}
	_ = c.Close()
	// Nobody is there, as when Linux's own target closes its port.
	if _, err := s.connect("", ""); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("without a subsystem: %v", err)
	}

	s.run("setup", "--subsysnqn", subNQN, "--hostkey", key, "--ctrkey", other)
	s.lets(false, "", "")
	s.lets(false, other, "")
	s.lets(true, key, "")
	s.lets(true, key, other)
	s.lets(false, key, key)

	at := filepath.Join(s.nvmet, "hosts", s.run("config", "--show-hostnqn"))
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(attribute, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(at, attribute), []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("dhchap_key", other)
	write("dhchap_ctrl_key", "")
	write("dhchap_hash", "hmac(sha384)")
	write("dhchap_dhgroup", "ffdhe2048")
	s.lets(true, key, other) // nobody has told the daemon
	s.run("sync")
	s.lets(false, key, "")
	s.lets(true, other, "")
	log, err := os.ReadFile(s.state + "/log")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(log), `by="sha384 ffdhe2048"`) {
		t.Errorf("the daemon proves otherwise than configfs says:\n%s", log)
	}
	write("dhchap_key", "")
	s.run("sync")
	s.lets(true, "", "")
}
