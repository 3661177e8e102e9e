// Package mgmt is the management API of a target that serves, a client for it, and its
// metrics. It does not import the target: the server implements the interface Target.
//
// API.md documents the API, which is HTTP with JSON over a unix socket.
package mgmt

import (
	"context"
	"time"
)

// Target is what is managed. Its methods may be called from any goroutine, and return values
// that are the caller's.
type Target interface {
	Status() Status
	Sessions() []Session
	// DropSession ends a session and reports whether there was one.
	DropSession(id uint16) bool
	// Controllers lists the controllers that hosts of NVMe have made, by their numbers.
	Controllers() []Controller
	// DropController ends a controller and reports whether there was one.
	DropController(id uint64) bool
	// Access returns the access states, sorted by target, LUN and group, then by subsystem, namespace and group.
	Access() []Access
	// What SetAccess and Reload do waits until other changes are over. If its context ends before, nothing is done.
	//
	// SetAccess changes access states, and returns those of all groups of the LUNs or namespaces concerned. On a
	// *NotFoundError or *RequestError, and any other error that does not say otherwise, nothing has changed.
	SetAccess(context.Context, AccessChange) ([]Access, error)
	// Reload reads the configuration again and applies the difference. On an error, whose text
	// may have several lines, nothing has changed.
	Reload(context.Context) (Reload, error)
	// Health returns nil, or why the target does not work as it should.
	Health() error
	Partitioner
	Clusterer
	Mirrorer
}

// Status is the answer to GET /v1/status.
type Status struct {
	Version   string     `json:"version"` // of the daemon
	PID       int        `json:"pid"`
	Started   time.Time  `json:"started"`
	Time      time.Time  `json:"time"` // of this answer
	Config    string     `json:"config"`
	Loaded    time.Time  `json:"loaded"` // when the configuration came into force
	Targets   []Node     `json:"targets"`
	Portals   []Portal   `json:"portals"`
	Counters  Counters   `json:"counters"`
	NVMe      *NVMe      `json:"nvme,omitempty"` // nil: nothing is served over NVMe
	Devices   []Device   `json:"rdma_devices,omitempty"`
	Cluster   *Cluster   `json:"cluster,omitempty"`
	Objects   []Objects  `json:"objects,omitempty"`
	Programs  []Programs `json:"programs,omitempty"` // of each local portal, in the order of the configuration
	Buffers   Buffers    `json:"buffers"`
	BoundsNS  []int64    `json:"latency_bounds_ns"` // of all histograms: nanoseconds below which a bucket lies
	Connected int        `json:"sessions"`          // discovery sessions included
}

// Node is a target with its LUNs.
type Node struct {
	Name     string `json:"name"`
	Alias    string `json:"alias,omitempty"`
	Sessions int    `json:"sessions"`
	LUNs     []LUN  `json:"luns"`
}

// LUN is a logical unit of a target, and what was done with it there since the target exists.
type LUN struct {
	Number    uint16 `json:"lun"`
	Store     string `json:"store"`
	StoreType string `json:"store_type"`
	Serial    string `json:"serial"`
	Bytes     int64  `json:"bytes"` // capacity
	BlockSize int    `json:"block_size"`
	ReadOnly  bool   `json:"readonly"`
	IO        IO     `json:"io"`
}

// NVMe is what is served over NVMe.
type NVMe struct {
	Counters   NVMeCounters `json:"counters"`
	Connected  int          `json:"controllers"` // those of discovery included
	Subsystems []Subsystem  `json:"subsystems"`
}

// NVMeCounters count since the daemon started.
type NVMeCounters struct {
	Connections     uint64 `json:"connections"`
	Refused         uint64 `json:"connections_refused"` // over the limit
	Connects        uint64 `json:"connects"`            // controllers that were made
	ConnectFailures uint64 `json:"connect_failures"`
	AuthFailures    uint64 `json:"authentication_failures"`
	ProtocolErrors  uint64 `json:"protocol_errors"` // connections dropped for them
	DigestErrors    uint64 `json:"digest_errors"`
}

// Subsystem is an NVM subsystem with its namespaces.
type Subsystem struct {
	NQN         string      `json:"nqn"`
	Serial      string      `json:"serial"`
	Controllers int         `json:"controllers"`
	Namespaces  []Namespace `json:"namespaces"`
}

// Namespace is a namespace of a subsystem, and what was done with it there since the subsystem exists.
type Namespace struct {
	NSID      uint32 `json:"nsid"`
	Store     string `json:"store"`
	StoreType string `json:"store_type"`
	UUID      string `json:"uuid"`
	Bytes     int64  `json:"bytes"` // capacity
	BlockSize int    `json:"block_size"`
	ReadOnly  bool   `json:"readonly"`
	IO        IO     `json:"io"`
}

// Portal is an address at which initiators connect.
type Portal struct {
	Transport string `json:"transport"`
	Address   string `json:"address"`
}

// Device is an RDMA device that portals use, and what has crossed it since it was opened, by kind.
type Device struct {
	Transport string            `json:"transport"`
	Name      string            `json:"name"`
	Counters  map[string]uint64 `json:"counters"`
}

// Counters count since the daemon started.
type Counters struct {
	Connections     uint64 `json:"connections"`
	Refused         uint64 `json:"connections_refused"` // over the limit
	Logins          uint64 `json:"logins"`
	LoginFailures   uint64 `json:"login_failures"`
	Redirects       uint64 `json:"redirects"`       // logins that were sent elsewhere
	ProtocolErrors  uint64 `json:"protocol_errors"` // connections dropped for them
	Rejects         uint64 `json:"rejects"`
	IgnoredCommands uint64 `json:"ignored_commands"` // outside the command window
	DigestErrors    uint64 `json:"digest_errors"`

	Moderation Moderation `json:"moderation"`
}

// Moderation counts the pauses that connections over TCP make so that commands come together.
type Moderation struct {
	Censuses uint64 `json:"censuses"` // counts of the commands that an initiator keeps outstanding
	Pauses   uint64 `json:"pauses"`
	PausedNS uint64 `json:"paused_ns"`
}

// Buffers is the I/O memory, in bytes.
type Buffers struct {
	Limit  int64 `json:"limit"`
	InUse  int64 `json:"in_use"`
	Mapped int64 `json:"mapped"` // address space
	Leases int   `json:"leases"` // pieces in use
}

// Session is a session of an initiator, and what it did.
type Session struct {
	ID          uint16       `json:"id"` // the TSIH
	Initiator   string       `json:"initiator"`
	ISID        string       `json:"isid"`
	Target      string       `json:"target,omitempty"` // empty: a discovery session
	Connection               // the oldest of Connections
	Connections []Connection `json:"connections"`
	Since       time.Time    `json:"since"`
	Buffers     int          `json:"buffers"` // bytes of I/O memory in use
	IO          IO           `json:"io"`
}

// Connection is a connection of a session.
type Connection struct {
	CID          uint16 `json:"cid"`
	Peer         string `json:"peer"`
	Local        string `json:"local"`
	Transport    string `json:"transport"`
	HeaderDigest bool   `json:"header_digest"`
	DataDigest   bool   `json:"data_digest"`
}

// Controller is a controller that a host of NVMe has made, and what the host did with it.
type Controller struct {
	ID             uint64    `json:"id"`     // names it in this life of the daemon
	CNTLID         uint16    `json:"cntlid"` // names it in its subsystem
	Host           string    `json:"host"`   // its NQN
	HostID         string    `json:"hostid"`
	Subsystem      string    `json:"subsystem,omitempty"` // empty: that of discovery
	Since          time.Time `json:"since"`
	KeepAliveMS    int64     `json:"keep_alive_ms"`  // the timeout; 0: none
	Authentication string    `json:"authentication"` // what has been proved: none, host, or mutual
	Buffers        int       `json:"buffers"`        // bytes of I/O memory in use
	Queues         []Queue   `json:"queues"`         // the first is the admin queue
	IO             IO        `json:"io"`             // of its I/O queues
}

// Queue is a queue of a controller, a connection each.
type Queue struct {
	QID          uint16 `json:"qid"`
	Entries      int    `json:"entries"`
	Peer         string `json:"peer"`
	Local        string `json:"local"`
	Transport    string `json:"transport"`
	HeaderDigest bool   `json:"header_digest"`
	DataDigest   bool   `json:"data_digest"`
}

// Sessions is the answer to GET /v1/sessions.
type Sessions struct {
	Time        time.Time    `json:"time"` // of this answer
	BoundsNS    []int64      `json:"latency_bounds_ns"`
	Sessions    []Session    `json:"sessions"`
	Controllers []Controller `json:"controllers"`
}

// IO counts commands.
type IO struct {
	Read     Class             `json:"read"`
	Write    Class             `json:"write"`
	Other    Class             `json:"other"` // flushes, unmaps, inquiries and the like
	InFlight int64             `json:"in_flight"`
	Failed   map[string]uint64 `json:"failed,omitempty"` // by kind, those that happened

	// Attentions are unit attentions, which are news rather than failures: each login brings one.
	Attentions uint64 `json:"unit_attentions,omitempty"`
}

// Class counts the commands of one class.
type Class struct {
	Bytes   uint64   `json:"bytes"`          // of commands that ended well
	SumNS   uint64   `json:"latency_sum_ns"` // from the arrival of a command to the departure of its answer
	Latency []uint64 `json:"latency"`        // commands in each bucket; one more than there are bounds
}

// Access is the asymmetric access state of a LUN (ALUA), or of a namespace (ANA), through the portals of a group, which are
// a target port group for SCSI.
type Access struct {
	Target    string   `json:"target"`         // of a namespace: the NQN of the subsystem
	LUN       uint16   `json:"lun"`            // of a namespace: 0
	NSID      uint32   `json:"nsid,omitempty"` // of a LUN: 0
	Group     uint16   `json:"group"`
	Portals   []Portal `json:"portals"`
	State     string   `json:"state"` // active/optimized, active/non-optimized, standby, unavailable, offline, transitioning
	Preferred bool     `json:"preferred"`
	ALUA      string   `json:"alua"` // by whom it may be changed, as the configuration says: none, implicit, explicit, both
}

// AccessStates is the answer to GET and PATCH /v1/access.
type AccessStates struct {
	Time   time.Time `json:"time"` // of this answer
	Access []Access  `json:"access"`
}

// AccessChange is the body of PATCH /v1/access.
type AccessChange struct {
	Target    string   `json:"target"` // or the NQN of a subsystem
	Group     uint16   `json:"group"`
	LUNs      []uint16 `json:"luns,omitempty"`      // empty: all of the target
	NSIDs     []uint32 `json:"nsids,omitempty"`     // empty: all of the subsystem
	State     string   `json:"state,omitempty"`     // empty: as it is
	Preferred *bool    `json:"preferred,omitempty"` // nil: as it is
}

// NotFoundError says that what was asked for does not exist.
type NotFoundError struct{ What string }

func (e *NotFoundError) Error() string { return e.What }

// RequestError says why a request makes no sense, whatever the target has.
type RequestError struct{ Why string }

func (e *RequestError) Error() string { return e.Why }

// Reload is the answer to POST /v1/reload.
type Reload struct {
	Done    []string `json:"done"`    // what changed, in words
	Pending []string `json:"pending"` // what takes effect at the next start only
}

// Problem is the answer to a request that failed.
type Problem struct {
	Error string `json:"error"` // may have several lines
}
