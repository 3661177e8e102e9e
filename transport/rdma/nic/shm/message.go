package shm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"

	"oneshot/transport/rdma"
)

// Version is that of all that this package describes. The halves have to have the same.
const Version = 1

// Operations of messages. A request gets an answer with its ID; an event has ID 0 and gets none.
const (
	OpHello         = "hello"        // Version; answer: Limits, and three descriptors: control, the card's bell, the driver's
	OpArena         = "arena"        // Number, Size, a descriptor
	OpFreeArena     = "free arena"   // Number
	OpDomain        = "domain"       // Number
	OpCloseDomain   = "close domain" // Number
	OpReceives      = "receives"     // Number (of a queue), Domain, Depth; answer: a descriptor
	OpCloseReceives = "end receives" // Number
	OpQueuePair     = "queue pair"   // Number (of its send queue; its receive queue has the next), Domain, Depth, Receives, MaxSGE, Shared; answer: descriptors
	OpConnect       = "connect"      // Number, Address, Params; answer: Connected
	OpCancel        = "cancel"       // Number: ID of a connect; no answer
	OpListen        = "listen"       // Number, Address; answer: Address
	OpCloseListener = "close listen" // Number
	OpRequested     = "requested"    // event: Listener, Number of the request, Data, Local, Remote
	OpAccept        = "accept"       // Request, Number (queue pair), Params; answer: Connected
	OpReject        = "reject"       // Request, Data
	OpDisconnect    = "disconnect"   // Number
	OpAbort         = "abort"        // Number, Terminate
	OpClose         = "close"        // Number
	OpCounters      = "counters"     // Number; 0: of the device; answer: Counters, and of the device CPU
	OpSTags         = "stags"        // Number, Depth; answer: STags
	OpEnded         = "ended"        // event: Number, Error
)

// Error kinds, for errors that callers compare.
const (
	ErrorRejected     = "rejected"     // Data
	ErrorDisconnected = "disconnected" // rdma.ErrDisconnected
	ErrorUnsupported  = "unsupported"  // rdma.ErrUnsupported
	ErrorCancelled    = "cancelled"
)

// Message is a request, answer or event.
type Message struct {
	ID    uint64 `json:"id"`
	Op    string `json:"op"`
	Error string `json:"error,omitempty"`
	Kind  string `json:"kind,omitempty"` // of the error

	Version   int              `json:"version,omitempty"`
	Number    uint32           `json:"number,omitempty"`
	Domain    uint32           `json:"domain,omitempty"`
	Listener  uint32           `json:"listener,omitempty"`
	Request   uint32           `json:"request,omitempty"`
	Shared    uint32           `json:"shared,omitempty"` // number of a queue of receives; 0: none
	Token     uint64           `json:"token,omitempty"`  // of the completion that follows, besides the answer
	Size      int64            `json:"size,omitempty"`   // octets
	Depth     int              `json:"depth,omitempty"`
	Receives  int              `json:"receives,omitempty"`
	MaxSGE    int              `json:"max_sge,omitempty"`
	Address   string           `json:"address,omitempty"`
	Local     string           `json:"local,omitempty"`
	Remote    string           `json:"remote,omitempty"`
	Data      []byte           `json:"data,omitempty"` // private data
	Params    *rdma.ConnParams `json:"params,omitempty"`
	OneShot   *rdma.OneShot    `json:"one_shot,omitempty"`
	Reads     int              `json:"reads,omitempty"`
	Initiator bool             `json:"initiator,omitempty"`
	STags     []rdma.STag      `json:"stags,omitempty"`
	Terminate []uint8          `json:"terminate,omitempty"` // layer, type, code
	Counters  *rdma.Counters   `json:"counters,omitempty"`
	CPU       int64            `json:"cpu,omitempty"` // processor time of the card's process, ns
	Limits    *rdma.Limits     `json:"limits,omitempty"`
}

const (
	maxMessage = 64 << 10
	maxFDs     = 3
)

// Socket is a connection between driver and card. One goroutine at a time may call Receive, and one Send.
type Socket struct {
	*net.UnixConn
	in  []byte
	oob []byte
}

// NewSocket returns the socket of a connection of type "unixpacket".
func NewSocket(c *net.UnixConn) *Socket {
	return &Socket{UnixConn: c, in: make([]byte, maxMessage), oob: make([]byte, unix.CmsgSpace(4*maxFDs))}
}

// Send sends m and descriptors, which stay the caller's.
func (s *Socket) Send(m *Message, fds ...int) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) > maxMessage {
		return fmt.Errorf("nic: message %q of %d bytes", m.Op, len(b))
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err = s.WriteMsgUnix(b, oob, nil)
	return err
}

// Receive receives a message, and descriptors, which are the caller's.
func (s *Socket) Receive(m *Message) (fds []int, err error) {
	n, k, flags, _, err := s.ReadMsgUnix(s.in, s.oob)
	if err != nil {
		return nil, err
	}
	if n == 0 && k == 0 {
		return nil, io.EOF
	}
	cmsgs, err := unix.ParseSocketControlMessage(s.oob[:k])
	for i := range cmsgs {
		if got, err := unix.ParseUnixRights(&cmsgs[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	*m = Message{}
	switch {
	case err != nil:
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = errors.New("nic: message is too long")
	default:
		err = json.Unmarshal(s.in[:n], m)
	}
	if err != nil {
		CloseAll(fds)
		return nil, err
	}
	return fds, nil
}

// CloseAll closes descriptors.
func CloseAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
