package mgmt

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// Programs are those of this machine that use partitions through a portal (transport local). What is counted counts since the portal
// was opened.
type Programs struct {
	Portal             string        `json:"portal"` // the path of its socket
	Connected          int           `json:"connected"`
	Refused            uint64        `json:"programs_refused"`    // too many, of all or of one user
	Silent             uint64        `json:"programs_silent"`     // they have said no hello, and are turned out
	MemoryRefused      uint64        `json:"memory_refused"`      // requests to share more than a program, a user or all may
	Connections        int           `json:"connections"`         // of queue pairs of programs with the daemon
	ConnectionsRefused uint64        `json:"connections_refused"` // too many, of all or of one user, or no memory for them
	Users              []ProgramUser `json:"users"`               // those who have programs, by their numbers
}

// ProgramUser is a user of this machine who has programs at a portal. His IO counts operations of stores since his first program came.
type ProgramUser struct {
	UID        uint32 `json:"uid"`
	Programs   int    `json:"programs"`
	QueuePairs int    `json:"queue_pairs"`
	Shared     int64  `json:"shared_bytes"` // memory that his programs share with the daemon: what they have registered, and rings
	IO         IO     `json:"io"`
}

var (
	descProgramsRefused    = desc("programs_refused_total", "Programs of this machine that found no place at a local portal.", "portal")
	descProgramsSilent     = desc("programs_silent_total", "Programs of this machine that were turned out because they said no hello.", "portal")
	descProgramMemory      = desc("program_memory_refused_total", "Requests of programs to share more memory than they may.", "portal")
	descProgramConns       = desc("program_connections", "Connections of programs for partitions.", "portal")
	descProgramConnsRefuse = desc("program_connections_refused_total", "Connections of programs over the limit, or the share of their user.", "portal")

	descPrograms         = desc("programs", "Programs of this machine at a local portal, by user.", "portal", "uid")
	descProgramPairs     = desc("program_queue_pairs", "Queue pairs of programs.", "portal", "uid")
	descProgramShared    = desc("program_shared_bytes", "Memory that programs share with the daemon.", "portal", "uid")
	descProgramLatency   = desc("program_operation_duration_seconds", "From the submission of an operation of a user's endpoints to its completion.", "portal", "uid", "op")
	descProgramBytes     = desc("program_bytes_total", "Bytes read and written by programs of a user, since the first of them came.", "portal", "uid", "op")
	descProgramFailed    = desc("program_failures_total", "Operations of a user's endpoints that failed, by kind.", "portal", "uid", "kind")
	descProgramsInFlight = desc("program_operations_in_flight", "Operations of a user's endpoints that are not complete yet.", "portal", "uid")
)

var programDescs = []*prometheus.Desc{
	descProgramsRefused, descProgramsSilent, descProgramMemory, descProgramConns, descProgramConnsRefuse,
	descPrograms, descProgramPairs, descProgramShared, descProgramLatency, descProgramBytes, descProgramFailed, descProgramsInFlight,
}

func collectPrograms(ch chan<- prometheus.Metric, p *Programs, bounds []int64) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, append([]string{p.Portal}, labels...)...)
	}
	send(descProgramsRefused, prometheus.CounterValue, float64(p.Refused))
	send(descProgramsSilent, prometheus.CounterValue, float64(p.Silent))
	send(descProgramMemory, prometheus.CounterValue, float64(p.MemoryRefused))
	send(descProgramConns, prometheus.GaugeValue, float64(p.Connections))
	send(descProgramConnsRefuse, prometheus.CounterValue, float64(p.ConnectionsRefused))
	for i := range p.Users {
		u := &p.Users[i]
		uid := strconv.FormatUint(uint64(u.UID), 10)
		send(descPrograms, prometheus.GaugeValue, float64(u.Programs), uid)
		send(descProgramPairs, prometheus.GaugeValue, float64(u.QueuePairs), uid)
		send(descProgramShared, prometheus.GaugeValue, float64(u.Shared), uid)
		collectIO(ch, ioDescs{descProgramsInFlight, descProgramFailed, descProgramLatency, descProgramBytes}, &u.IO, bounds, p.Portal, uid)
	}
}
