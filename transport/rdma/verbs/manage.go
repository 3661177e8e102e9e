//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// manager receives the events of the kernel's connection manager and hands them to the owners of the
// identifiers. Go keeps no pointers in C memory: identifiers carry numbers.
type manager struct {
	log     *slog.Logger
	channel *C.struct_rdma_event_channel
	poller  *poller
	work    sync.WaitGroup // run

	delivering sync.Mutex // held while events are handed on, so that they stay in order; taken before mu
	reading    sync.Mutex // held while an event is read; taken before mu
	closed     bool       // guarded by reading; the channel is gone

	mu     sync.Mutex
	owners map[uintptr]owner // guarded by mu
	last   uintptr           // guarded by mu
	ids    int               // guarded by mu; number of identifiers that are not destroyed
	ended  bool              // guarded by mu; destroying the last identifier ends run
	queue  []*event          // guarded by mu; events that were read and not handed on yet
}

// owner is the owner of an identifier: a connection or a listener. happened is called by the manager's
// goroutine, or by a goroutine that asks for events early (catchUp). It must not block.
type owner interface{ happened(e *event) }

// event is one of the connection manager.
type event struct {
	kind             int
	status           int
	handle           uintptr // of its owner
	id               *C.struct_rdma_cm_id
	depth, resources int // Reads that this end may have outstanding, and that it has to serve
	data             []byte
}

func (e *event) String() string {
	name := C.GoString(C.os_cm_event_name(C.int(e.kind)))
	switch {
	case e.status < 0:
		return fmt.Sprintf("%s: %v", name, syscall.Errno(-e.status))
	case e.status > 0:
		return fmt.Sprintf("%s, reason %d", name, e.status)
	}
	return name
}

func newManager(log *slog.Logger) (*manager, error) {
	m := &manager{log: log, owners: make(map[uintptr]owner)}
	var err error
	if m.channel, err = C.os_cm_channel(); m.channel == nil {
		return nil, fmt.Errorf("verbs: connection manager: %w; is the module rdma_ucm loaded (modprobe rdma_ucm), and is there /dev/infiniband/rdma_cm?", err)
	}
	if m.poller, err = newPoller(int(C.os_cm_fd(m.channel)), "rdma_cm"); err != nil {
		C.os_cm_destroy_channel(m.channel)
		return nil, err
	}
	m.work.Go(m.run)
	return m, nil
}

func (m *manager) run() {
	var e C.struct_os_event
	for m.poller.wait(func(uintptr) bool { return m.read(&e) }) {
		m.deliver()
	}
	m.deliver()
	m.reading.Lock()
	defer m.reading.Unlock()
	m.closed = true
	C.os_cm_destroy_channel(m.channel)
}

// catchUp hands on events that have happened and that run has not read yet.
func (m *manager) catchUp() {
	var e C.struct_os_event
	for m.read(&e) {
	}
	m.deliver()
}

// read moves an event to the queue. False: there is none. e is memory for the call.
func (m *manager) read(e *C.struct_os_event) bool {
	m.reading.Lock()
	defer m.reading.Unlock()
	if m.closed || C.os_cm_event(m.channel, e) != 0 {
		return false
	}
	ev := &event{
		kind: int(e._type), status: int(e.status), id: e.id, handle: uintptr(e.handle),
		depth: int(e.initiator_depth), resources: int(e.responder_resources),
		data: C.GoBytes(unsafe.Pointer(&e.private_data[0]), C.int(e.private_len)),
	}
	if ev.kind == C.RDMA_CM_EVENT_CONNECT_REQUEST {
		ev.handle = uintptr(e.listen_handle)
	}
	m.mu.Lock()
	m.queue = append(m.queue, ev)
	m.mu.Unlock()
	return true
}

// deliver hands on the events of the queue. When it returns, all events that were read before have been handed on.
func (m *manager) deliver() {
	m.delivering.Lock()
	defer m.delivering.Unlock()
	for {
		m.mu.Lock()
		if len(m.queue) == 0 {
			m.queue = nil
			m.mu.Unlock()
			return
		}
		ev := m.queue[0]
		m.queue = m.queue[1:]
		o := m.owners[ev.handle]
		m.mu.Unlock()
		m.log.Debug("rdma_cm", "event", ev, "handle", ev.handle)
		switch {
		case o != nil:
			o.happened(ev)
		case ev.kind == C.RDMA_CM_EVENT_CONNECT_REQUEST: // its listener is closed
			_ = refuse(ev.id, nil)
		}
	}
}

// refuse rejects a request and forgets it.
func refuse(id *C.struct_rdma_cm_id, data []byte) error {
	data = bytes.Clone(data) // see params.pin
	err := errno(C.os_cm_reject(id, unsafe.Pointer(unsafe.SliceData(data)), C.uint32_t(len(data))))
	C.os_cm_destroy(id)
	return err
}

// enter registers o and returns its number.
func (m *manager) enter(o owner) uintptr {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ids++
	m.last++
	m.owners[m.last] = o
	return m.last
}

// remove undoes enter, after the identifier was destroyed.
func (m *manager) remove(handle uintptr) {
	m.mu.Lock()
	delete(m.owners, handle)
	m.ids--
	last := m.ended && m.ids == 0
	m.mu.Unlock()
	if last {
		_ = m.poller.close()
	}
}

// destroy destroys an identifier of newID.
func (m *manager) destroy(id *C.struct_rdma_cm_id, handle uintptr) {
	C.os_cm_destroy(id)
	m.remove(handle)
}

// newID makes an identifier with the owner o.
func (m *manager) newID(o owner) (*C.struct_rdma_cm_id, uintptr, error) {
	handle := m.enter(o)
	id, err := C.os_cm_id(m.channel, C.uintptr_t(handle))
	if id == nil {
		m.remove(handle)
		return nil, 0, fmt.Errorf("verbs: connection manager: %w", err)
	}
	return id, handle, nil
}

// end makes run end when the last identifier is destroyed. It is called once.
func (m *manager) end() {
	m.mu.Lock()
	m.ended = true
	last := m.ids == 0
	m.mu.Unlock()
	if last {
		_ = m.poller.close()
	}
}

// sockaddr converts a to a sockaddr_in or sockaddr_in6.
func sockaddr(a *net.TCPAddr) (b [unix.SizeofSockaddrInet6]byte) {
	port := [2]byte{byte(a.Port >> 8), byte(a.Port)}
	if ip := a.IP.To4(); ip != nil {
		s := (*unix.RawSockaddrInet4)(unsafe.Pointer(&b))
		s.Family = unix.AF_INET
		s.Port = *(*uint16)(unsafe.Pointer(&port))
		copy(s.Addr[:], ip)
		return b
	}
	s := (*unix.RawSockaddrInet6)(unsafe.Pointer(&b))
	s.Family = unix.AF_INET6
	s.Port = *(*uint16)(unsafe.Pointer(&port))
	copy(s.Addr[:], a.IP.To16()) // zero if there is none
	if i, err := net.InterfaceByName(a.Zone); err == nil {
		s.Scope_id = uint32(i.Index)
	}
	return b
}

// addr returns the local or the peer's address of id.
func addr(id *C.struct_rdma_cm_id, peer bool) *net.TCPAddr {
	var b [unix.SizeofSockaddrInet6]byte
	which := C.int(0)
	if peer {
		which = 1
	}
	n := C.os_cm_addr(id, which, unsafe.Pointer(&b), C.int(len(b)))
	port := int(b[2])<<8 | int(b[3])
	if n == unix.SizeofSockaddrInet4 {
		return &net.TCPAddr{IP: net.IP(append([]byte(nil), b[4:8]...)), Port: port}
	}
	return &net.TCPAddr{IP: net.IP(append([]byte(nil), b[8:24]...)), Port: port}
}
