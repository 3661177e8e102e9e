package config

import (
	"fmt"
	"time"
)

// Limits bound what peers can make the daemon hold. When a limit is reached, the
// peer is told by means of the protocol, and nobody else is disturbed.
type Limits struct {
	Connections int // TCP connections, logged in or not, of all portals
	Sessions    int // sessions of all targets
	Commands    int // the command window (MaxCmdSN) of a session

	ConnectionsPerSession int // the most that a session over TCP may have (MaxConnections)

	Memory              int64 // bytes of I/O buffers in all
	MemoryPerConnection int64 // bytes of I/O buffers of one connection

	LoginTimeout time.Duration // from connection to full feature phase
	NopInterval  time.Duration // how long a connection is silent before it is pinged; 0 means never
	NopTimeout   time.Duration // how long the answer to a ping may take
	ReadTimeout  time.Duration // how long an initiator may leave data unsent that it was asked for
}

// DefaultLimits returns the limits that hold where the configuration has none.
func DefaultLimits() Limits {
	return Limits{
		Connections: 4096,
		Sessions:    4096,
		Commands:    128,

		ConnectionsPerSession: 8,

		Memory:              1 << 30,
		MemoryPerConnection: 16 << 20,
		LoginTimeout:        15 * time.Second,
		NopInterval:         30 * time.Second,
		NopTimeout:          30 * time.Second,
		ReadTimeout:         60 * time.Second,
	}
}

// minConnectionBytes is enough for a connection with one burst in flight and
// another on its way.
const minConnectionBytes = 1 << 20

// Bounds of the counts. They come from the file descriptors of a process, from TSIHs (16 bits,
// RFC 7143 §11.12.6), and from the memory for a task per command of the window.
const (
	maxConnections = 1 << 20
	maxSessions    = 1<<16 - 1
	maxCommands    = 1 << 14

	maxConnectionsPerSession = 64
)

func (d *decoder) limits(v value, l *Limits) {
	if !v.given() {
		return
	}
	o := d.object(v.node, "limits")
	if o == nil {
		return
	}
	count := func(key string, dst *int, high int) {
		set(o.take(key), dst, "a number", within(parseInteger, 1, high))
	}
	count("connections", &l.Connections, maxConnections)
	count("sessions", &l.Sessions, maxSessions)
	count("commands", &l.Commands, maxCommands)
	count("connections_per_session", &l.ConnectionsPerSession, maxConnectionsPerSession)
	d.memoryLimits(o, l)
	set(o.take("login_timeout"), &l.LoginTimeout, "a duration such as 15s", positiveDuration)
	o.duration("nop_interval", &l.NopInterval)
	set(o.take("nop_timeout"), &l.NopTimeout, "a duration such as 30s", positiveDuration)
	set(o.take("read_timeout"), &l.ReadTimeout, "a duration such as 60s", positiveDuration)
	o.done()
}

func (d *decoder) memoryLimits(o *object, l *Limits) {
	memory, perConnection := o.take("memory"), o.take("memory_per_connection")
	d.memory = memory
	set(memory, &l.Memory, "a size such as 1GiB", atLeast(minConnectionBytes))
	set(perConnection, &l.MemoryPerConnection, "a size such as 16MiB", atLeast(minConnectionBytes))
	if l.MemoryPerConnection <= l.Memory {
		return
	}
	if perConnection.given() {
		perConnection.errorf("memory_per_connection, %s, is more than memory, %s: lower the one or raise the other", FormatSize(l.MemoryPerConnection), FormatSize(l.Memory))
		return
	}
	l.MemoryPerConnection = l.Memory // the default gives way
}

// RDMADeviceMemory is the part of limits.memory, in bytes, that each RDMA device takes for messages of iSER before anybody has
// logged in: 1,024 receives of 9 KiB that its connections share, and 64 answers, in leases whose sizes are powers of two.
// NVMeDeviceMemory is what it takes for those of NVMe: receives of 4,160 bytes.
const (
	RDMADeviceMemory = 11 << 20
	NVMeDeviceMemory = 5 << 20
)

// checkRDMAMemory refuses a limit that the RDMA devices of the portals use up. How many devices "any" stands for is only
// known when the target runs; here it counts as one.
func (d *decoder) checkRDMAMemory(c *Config) {
	type device struct {
		transport Transport
		name      string
	}
	devices := make(map[device]int64) // what each takes
	var first *Portal
	for i := range c.Portals {
		p := &c.Portals[i]
		switch {
		case p.Transport == TransportNVMeRDMA:
			devices[device{p.Transport, p.Device}] = NVMeDeviceMemory
		case p.Transport == TransportTCP || p.Serve != ServeLUNs:
			continue
		default:
			devices[device{p.Transport, p.Device}] = RDMADeviceMemory
		}
		if first == nil {
			first = p
		}
	}
	var messages int64
	for _, n := range devices {
		messages += n
	}
	need := 2 * messages // mem.Pool.Keep
	if first == nil || c.Limits.Memory >= need {
		return
	}
	const format = "memory, %s, is too little: the RDMA devices of the portals take %s for messages (%s for each of iSER, %s for each of NVMe), and messages have no more than half: raise limits.memory to at least %s"
	args := []any{FormatSize(c.Limits.Memory), FormatSize(messages), FormatSize(RDMADeviceMemory), FormatSize(NVMeDeviceMemory), FormatSize(need)}
	if d.memory.given() {
		d.memory.errorf(format, args...)
		return
	}
	d.errorf(first.Pos, format, args...)
}

func atLeast(low int64) func(string) (int64, error) {
	return func(text string) (int64, error) {
		n, err := ParseSize(text)
		if err == nil && n < low {
			err = fmt.Errorf("%s is too little to work with: write at least %s", FormatSize(n), FormatSize(low))
		}
		return n, err
	}
}

func positiveDuration(text string) (time.Duration, error) {
	t, err := parseDuration(text)
	if err == nil && t == 0 {
		err = fmt.Errorf("a time of 0 would end every connection at once: write a longer one")
	}
	return t, err
}
