// Package isnsd runs open-isns' iSNS server for tests.
package isnsd

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Node is the name under which List asks the server. It has to be registered there.
const Node = "iqn.2026-11.example.oneshot:a"

// Server is an iSNS server.
type Server struct {
	Addr string // host:port

	t   testing.TB
	dir string
}

// New reserves an address for a server, which Start starts.
func New(t testing.TB) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		err = l.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return &Server{Addr: l.Addr().String(), t: t, dir: t.TempDir()}
}

func (s *Server) file(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// Start runs the server until the test ends.
func (s *Server) Start() {
	s.t.Helper()
	config := s.file("isnsd.conf", fmt.Sprintf("SourceName = iqn.2026-11.example:isnsd\nBindAddress = %s\nDatabase = %s/db\n"+
		"PIDFile = %[2]s/pid\nSecurity = 0\nDefaultDiscoveryDomain = 1\n", s.Addr, s.dir))
	cmd := exec.Command("isnsd", "-f", "-c", config)
	if err := cmd.Start(); err != nil {
		s.t.Fatalf("%v; run make deps", err)
	}
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for try := 0; ; try++ {
		c, err := net.Dial("tcp", s.Addr)
		if err == nil {
			_ = c.Close()
			return
		}
		if try == 200 {
			s.t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // the server does not report when it listens
	}
}

// List makes isnsadm list one kind of the server's objects: nodes, portals, portal-groups or entities.
func (s *Server) List(what string) string {
	s.t.Helper()
	config := s.file("admin.conf", fmt.Sprintf("SourceName = %s\nServerAddress = %s\nSecurity = 0\n", Node, s.Addr))
	out, _ := exec.Command("isnsadm", "-c", config, "--list", what).CombinedOutput() // it fails before Node is known
	return string(out)
}

// Until waits until the server lists something, or does not list it any more.
func (s *Server) Until(what, text string, there bool) {
	s.t.Helper()
	last := ""
	for range 250 {
		if last = s.List(what); strings.Contains(last, text) == there {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	s.t.Fatalf("%s: %q there: want %v\n%s", what, text, there, last)
}
