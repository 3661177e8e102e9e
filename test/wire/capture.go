// Package wire checks the target's traffic with an independent program: it
// captures sessions of a scripted initiator and of libiscsi's tools on the
// loopback interface, and decodes them with tshark. tshark must find nothing
// malformed, and the values of the fields must be consistent.
package wire

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A capture is a running dumpcap on the loopback interface. Its beginning and
// its end are marked by UDP datagrams to the portal's port: what the kernel
// captured between the two is in the file when the second has been read.
type capture struct {
	port string
	cmd  *exec.Cmd

	mu      sync.Mutex
	data    bytes.Buffer  // guarded by mu; pcapng
	changed chan struct{} // guarded by mu; closed and replaced when data grows
	ended   chan struct{} // closed when dumpcap has ended
	stderr  bytes.Buffer  // read after ended
}

const (
	markBegin = "oneshot test/wire: begin"
	markEnd   = "oneshot test/wire: end"
	// The interval at which a mark is sent again until it is seen: the first
	// ones are sent before dumpcap listens.
	markInterval = 50 * time.Millisecond
	// bufferMiB is what the kernel keeps while dumpcap waits for a processor: a test's whole traffic, if need be.
	bufferMiB = "64"
)

// startCapture returns when traffic of the port is being captured.
func startCapture(ctx context.Context, port string) (*capture, error) {
	args := []string{"dumpcap", "-q", "-B", bufferMiB, "-i", "lo", "-f", "port " + port, "-w", "-"}
	if os.Geteuid() != 0 {
		args = append([]string{"sudo", "-n"}, args...) // dumpcap needs CAP_NET_RAW
	}
	c := &capture{port: port, changed: make(chan struct{}), ended: make(chan struct{})}
	c.cmd = exec.Command(args[0], args[1:]...)
	c.cmd.Stdout, c.cmd.Stderr = c, &c.stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("wire: %w (Debian package tshark; `make deps` installs it)", err)
	}
	go func() { // ends with dumpcap, for which stop waits
		_ = c.cmd.Wait() // it ends by our signal; what it wrote is judged
		close(c.ended)
	}()
	if err := c.mark(ctx, markBegin); err != nil {
		c.end()
		return nil, err
	}
	return c, nil
}

// dropped finds how many packets dumpcap says that it did not get: "…: 1234/5 (pcap:…".
var dropped = regexp.MustCompile(`received/dropped on interface .*: \d+/(\d+) `)

// stop returns the capture as pcapng when everything up to now is in it.
func (c *capture) stop(ctx context.Context) ([]byte, error) {
	err := c.mark(ctx, markEnd)
	c.end()
	if err != nil {
		return nil, err
	}
	switch m := dropped.FindStringSubmatch(c.stderr.String()); {
	case m == nil:
		return nil, fmt.Errorf("wire: dumpcap does not say how many packets it got: %s", strings.TrimSpace(c.stderr.String()))
	case m[1] != "0":
		return nil, fmt.Errorf("wire: the capture lacks %s packets: dumpcap was too slow for a buffer of %s MiB", m[1], bufferMiB)
	}
	return c.data.Bytes(), nil
}

func (c *capture) end() {
	// It may have ended by itself; mark has said so then.
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	<-c.ended
}

// Write takes the output of dumpcap.
func (c *capture) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.changed)
	c.changed = make(chan struct{})
	return c.data.Write(b)
}

// mark sends text until it is seen in the capture.
func (c *capture) mark(ctx context.Context, text string) error {
	conn, err := net.Dial("udp", "127.0.0.1:"+c.port)
	if err != nil {
		return fmt.Errorf("wire: %w", err)
	}
	defer conn.Close()
	tick := time.NewTicker(markInterval)
	defer tick.Stop()
	for {
		// Nobody listens: the answer to one datagram is the error of the next.
		_, _ = io.WriteString(conn, text)
		c.mu.Lock()
		seen, changed := bytes.Contains(c.data.Bytes(), []byte(text)), c.changed
		c.mu.Unlock()
		if seen {
			return nil
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-c.ended:
			return fmt.Errorf("wire: dumpcap ended: %s", strings.TrimSpace(c.stderr.String()))
		case <-ctx.Done():
			return fmt.Errorf("wire: mark the capture: %w", ctx.Err())
		}
	}
}

// keep stores the capture of a test that fails, if go test runs with -artifacts.
func keep(t *testing.T, pcapng []byte) {
	path := filepath.Join(t.ArtifactDir(), "capture.pcapng")
	if err := os.WriteFile(path, pcapng, 0o600); err != nil {
		t.Error(err)
	}
	t.Log("the capture, kept with -artifacts: ", path)
}
