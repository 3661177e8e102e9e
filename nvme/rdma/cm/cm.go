// Package cm has the codecs of what hosts and controllers of NVMe over RDMA tell each other when a connection is made: the
// private data of the connection manager (NVMe RDMA Transport Specification 1.0 §3.5). It is a leaf.
package cm

import (
	"encoding/binary"
	"fmt"
)

var le = binary.LittleEndian

// Lengths of private data.
const (
	RequestLen = 32
	AcceptLen  = 32
	RejectLen  = 4
)

// Status says why a connection is refused (figure 15).
type Status uint16

// Reasons to refuse a connection.
const (
	InvalidLength  Status = 1 // of the private data
	InvalidFormat  Status = 2
	InvalidQID     Status = 3
	InvalidHSQSize Status = 4
	InvalidHRQSize Status = 5
	NoResources    Status = 6
)

func (s Status) String() string {
	switch s {
	case InvalidLength:
		return "the private data are too short"
	case InvalidFormat:
		return "the format of the private data is not known"
	case InvalidQID:
		return "the queue ID is not valid"
	case InvalidHSQSize:
		return "the submission queue is too small or too large"
	case InvalidHRQSize:
		return "the host has too few receives"
	case NoResources:
		return "there are no resources"
	}
	return fmt.Sprintf("status %d", uint16(s))
}

// Error implements error.
func (s Status) Error() string { return s.String() }

// Request is what a host says of the queue that it wants.
type Request struct {
	QID    uint16
	HRQ    uint16 // receives of the host: how many completions it can take
	HSQ    uint16 // one less than the entries of the submission queue
	CNTLID uint16 // of an I/O queue's controller; 0: the host does not say it here
}

// ParseRequest reads private data, behind which networks may add some. Its error is a Status.
func ParseRequest(b []byte) (Request, error) {
	switch {
	case len(b) < RequestLen:
		return Request{}, InvalidLength
	case le.Uint16(b) != 0:
		return Request{}, InvalidFormat
	}
	return Request{QID: le.Uint16(b[2:]), HRQ: le.Uint16(b[4:]), HSQ: le.Uint16(b[6:]), CNTLID: le.Uint16(b[8:])}, nil
}

// AppendTo appends the private data.
func (r Request) AppendTo(b []byte) []byte {
	b = append(b, 0, 0)
	for _, v := range []uint16{r.QID, r.HRQ, r.HSQ, r.CNTLID} {
		b = le.AppendUint16(b, v)
	}
	return append(b, make([]byte, RequestLen-10)...)
}

// AppendAccept appends the private data of a controller that has so many receives for a queue.
func AppendAccept(b []byte, receives uint16) []byte {
	b = le.AppendUint16(append(b, 0, 0), receives)
	return append(b, make([]byte, AcceptLen-4)...)
}

// ParseAccept returns the receives of the controller. False: the private data are not those of a controller.
func ParseAccept(b []byte) (receives uint16, ok bool) {
	if len(b) < AcceptLen || le.Uint16(b) != 0 {
		return 0, false
	}
	return le.Uint16(b[2:]), true
}

// AppendReject appends the private data of a refusal.
func AppendReject(b []byte, s Status) []byte { return le.AppendUint16(append(b, 0, 0), uint16(s)) }

// ParseReject returns why a connection was refused. False: the private data are not those of a controller.
func ParseReject(b []byte) (Status, bool) {
	if len(b) < RejectLen || le.Uint16(b) != 0 {
		return 0, false
	}
	return Status(le.Uint16(b[2:])), true
}
