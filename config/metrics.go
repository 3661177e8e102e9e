package config

import (
	"fmt"
	"net/netip"
)

// Metrics says where figures for Prometheus, and a health check, are served over HTTP.
type Metrics struct {
	// Listen is an address and a port; if it is the zero AddrPort, no metrics are served. A zero Addr
	// with a port stands for all addresses. There is no login: everybody who reaches it may read the figures.
	Listen netip.AddrPort
	Given  bool     // metrics are served
	Pos    Position // of the address

	// Pprof serves Go's profiles as well, below /debug/pprof/. They show the inside of the
	// process, and taking one costs processor time.
	Pprof bool
}

// Address returns the address for net.Listen.
func (m Metrics) Address() string { return Portal{Listen: m.Listen}.Address() }

// Shown returns the address as a configuration has it.
func (m Metrics) Shown() string { return Portal{Listen: m.Listen}.Shown() }

// Network returns the network for net.Listen.
func (m Metrics) Network() string { return Portal{Listen: m.Listen}.Network() }

// checkMetrics asks whether a portal listens where the metrics are to be.
func (d *decoder) checkMetrics(c *Config) {
	for _, p := range c.Portals {
		if c.Metrics.Given && p.Overlaps(Portal{Listen: c.Metrics.Listen}) {
			d.errorf(c.Metrics.Pos, "the portal in line %d already listens at %s: choose another port", p.Pos.Line, p.Shown())
			return
		}
	}
}

func (d *decoder) metrics(v value, m *Metrics) {
	if !v.given() {
		return
	}
	o := d.object(v.node, "metrics")
	if o == nil {
		return
	}
	listen := o.take("listen")
	if set(listen, &m.Listen, "an address such as 127.0.0.1:9327", parseMetricsListen) {
		m.Given, m.Pos = true, listen.pos()
	} else if !o.has("listen") {
		d.errorf(v.at, "metrics have no address: add listen: \"127.0.0.1:9327\"")
	}
	o.bool("pprof", &m.Pprof)
	o.done()
	if m.Pprof && m.Given && !m.Listen.Addr().IsLoopback() {
		d.warnf(m.Pos, "everybody who reaches %s can take profiles of this process: listen at 127.0.0.1, or remove pprof", m.Shown())
	}
}

// parseMetricsListen is parseListen without its default port, 3260.
func parseMetricsListen(text string) (netip.AddrPort, error) {
	addr, err := parseListen(text)
	if err == nil && addr.Port() == defaultPort {
		err = fmt.Errorf("%q is iSCSI's port, or none: write one for the metrics, such as 127.0.0.1:9327", text)
	}
	return addr, err
}

// Management says where target status and other commands reach the daemon.
type Management struct {
	Socket string   // path of a unix socket, which only the user of the daemon may use; empty: none
	Pos    Position // of the path
}

// DefaultSocket is the path of the management socket of a daemon from the Debian package. The
// commands look for a daemon there.
const DefaultSocket = "/run/oneshot/target.sock"

// maxSocketPath is the length of a path, in bytes, that fits Linux' sockaddr_un (unix(7)), less what the
// daemon appends to it while it makes the socket.
const maxSocketPath = 100

func (d *decoder) management(v value, m *Management) {
	if !v.given() {
		return
	}
	o := d.object(v.node, "management")
	if o == nil {
		return
	}
	socket := o.take("socket")
	if d.socketPath(socket, &m.Socket, DefaultSocket) {
		m.Pos = socket.pos()
	} else if !o.has("socket") {
		d.errorf(v.at, "management has no socket: add socket: %s", DefaultSocket)
	}
	o.done()
}

// socketPath reads the path of a unix socket, and says whether there is a good one. usual is one.
func (d *decoder) socketPath(v value, path *string, usual string) bool {
	if !set(v, path, "the path of a socket", parsePath) {
		return false
	}
	if _, err := parseListen(*path); err == nil {
		v.errorf("%q is an address of the network, and this is a unix socket: write a path such as %s", *path, usual)
		return false
	}
	*path = resolvePath(d.src.file, *path)
	if len(*path) > maxSocketPath {
		v.errorf("the path %s has %d bytes: that of a unix socket has at most %d", *path, len(*path), maxSocketPath)
		return false
	}
	return true
}
