package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
)

// A Capture is a capture of one port of the loopback interface, for tests elsewhere.
type Capture struct {
	c    *capture
	port string
}

// StartCapture returns when traffic of addr's port is being captured.
func StartCapture(t *testing.T, addr string) *Capture {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	c, err := startCapture(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	return &Capture{c, port}
}

// JudgeISER ends the capture, which is of connections that speak iSER over iWARP, and fails
// the test for all that is wrong with it: frames that tshark finds malformed, iSER headers,
// and the iSCSI PDUs behind these, which it is given as if they had gone over TCP.
func (c *Capture) JudgeISER(t *testing.T) {
	t.Helper()
	pcapng, err := c.c.stop(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	packets, err := decodeIWARP(t.Context(), pcapng)
	if err != nil {
		keep(t, pcapng)
		t.Fatal(err)
	}
	complain(t, packets)
	defer keepFailed(t, pcapng)
	frames := fpdus(packets, c.port)
	messages := checkISERFrames(t, frames)
	sends, err := sends(packets, c.port)
	if err != nil {
		t.Fatal(err)
	}
	if len(sends) != messages {
		t.Errorf("%d messages in the streams, and %d Sends that end", len(sends), messages)
		for _, f := range frames {
			t.Log("packet ", f.frame, ", from the target: ", f.fromTarget, ", ends a Send: ", f.endsSend())
		}
		for _, s := range sends {
			t.Logf("stream %d, from the target: %v: % x", s.stream, s.fromTarget, s.b[:min(len(s.b), iserLen+8)])
		}
	}
	var plain pcapFile
	for _, s := range sends {
		if err := s.checkHeader(); err != nil {
			t.Errorf("%v: % x", err, s.b[:min(len(s.b), iserLen)])
			continue
		}
		plain.add(s, c.port)
	}
	if packets, err = decode(t.Context(), plain.Bytes(), c.port); err != nil {
		t.Fatal(err)
	}
	complain(t, packets)
	all := pdus(packets, c.port)
	t.Logf("%d Sends, %d PDUs", len(sends), len(all))
	if len(all) != len(sends) {
		t.Errorf("%d PDUs in %d messages", len(all), len(sends))
	}
	checkNumbers(t, all)
}

// keepFailed keeps the capture of a test that has failed.
func keepFailed(t *testing.T, pcapng []byte) {
	if t.Failed() {
		keep(t, pcapng)
	}
}

func complain(t *testing.T, packets []packet) {
	t.Helper()
	for n, p := range packets {
		for _, complaint := range p.complaints() {
			t.Errorf("packet %d: %s", n+1, complaint)
		}
	}
}

// Opcodes of RDMAP, RFC 5040 §4.3.
const (
	opWrite          = 0
	opReadRequest    = 1
	opReadResponse   = 2
	opSend           = 3
	opSendInvalidate = 4
	opSendSE         = 5
	opTerminate      = 7
)

// endsSend reports whether f is the last of a message for a receive.
func (f *fpdu) endsSend() bool {
	op, ok := number(f.fields, "iwarp_rdma.opcode")
	last, _ := number(f.fields, "iwarp_ddp.last_flag")
	return ok && last == 1 && (op == opSend || op == opSendInvalidate)
}

// checkISERFrames looks for each kind of message from the side that sends it, and returns how
// many messages there are for receives.
func checkISERFrames(t *testing.T, all []fpdu) (messages int) {
	t.Helper()
	count := map[bool]map[uint64]int{false: {}, true: {}}
	for _, f := range all {
		op, ok := number(f.fields, "iwarp_rdma.opcode")
		if !ok {
			continue // of the startup
		}
		count[f.fromTarget][op]++
		if f.endsSend() {
			messages++
		}
	}
	for fromTarget, ops := range map[bool][]uint64{
		false: {opSend, opReadResponse},
		true:  {opSend, opSendInvalidate, opWrite, opReadRequest},
	} {
		for op := range uint64(16) {
			if want, got := slices.Contains(ops, op), count[fromTarget][op] > 0; want != got {
				t.Errorf("opcode %d, from the target: %v: %d messages", op, fromTarget, count[fromTarget][op])
			}
		}
	}
	return messages
}

// iserLen is the length of the iSER header, RFC 7145 §9.2.
const iserLen = 28

// A send is a message for a receive.
type send struct {
	fromTarget bool
	stream     int
	b          []byte
}

// checkHeader: a control-type PDU, reserved fields zero, and no STag that is not valid. What
// the target sends advertises nothing.
func (s *send) checkHeader() error {
	const wsv, rsv = 0x08, 0x04
	zero := func(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }
	switch b := s.b; {
	case len(b) < iserLen+headerLen:
		return errors.New("no room for headers")
	case b[0]>>4 != 1 || b[0]&3 != 0 || !zero(b[1:4]):
		return errors.New("not the header of a control-type PDU")
	case s.fromTarget && (b[0] != 0x10 || !zero(b[1:iserLen])),
		b[0]&wsv == 0 && !zero(b[4:16]), b[0]&rsv == 0 && !zero(b[16:iserLen]):
		return errors.New("an STag that is not valid")
	}
	return nil
}

// sends cuts the messages out of the connections' octets, in the order in which they ended. It puts segments in order
// itself: what tshark follows ends now and then before the last of them.
func sends(packets []packet, port string) (all []send, err error) {
	type end struct {
		stream     uint64
		fromTarget bool
	}
	sides := make(map[end]*side)
	for n, p := range packets {
		tcp := flatten(p.proto("tcp"))
		payload, err := hex.DecodeString(value(tcp, "tcp.payload"))
		if err != nil {
			return nil, fmt.Errorf("wire: packet %d: %w", n+1, err)
		}
		if len(payload) == 0 {
			continue
		}
		stream, _ := number(tcp, "tcp.stream")
		from, _ := show(tcp, "tcp.srcport")
		seq, _ := number(tcp, "tcp.seq_raw")
		e := end{stream, from == port}
		if sides[e] == nil {
			sides[e] = &side{next: uint32(seq)}
		}
		for _, m := range sides[e].arrive(octets{uint32(seq), payload}) {
			all = append(all, send{fromTarget: e.fromTarget, stream: int(stream), b: m})
		}
	}
	for e, s := range sides {
		if len(s.early) > 0 {
			return nil, fmt.Errorf("wire: stream %d, from the target: %v: the capture has no octet %d", e.stream, e.fromTarget, s.next)
		}
	}
	return all, nil
}

func value(fields []field, name string) string {
	for _, f := range fields {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// octets are those of a TCP segment.
type octets struct {
	seq uint32
	b   []byte
}

// side is one direction of a connection.
type side struct {
	next    uint32 // sequence number of the octet that is due
	early   []octets
	started bool
	in      []byte
	message []byte
}

// arrive takes a segment, which may come early or again, and returns the messages that end with what is in order.
func (s *side) arrive(g octets) (messages [][]byte) {
	s.early = append(s.early, g)
	for again := true; again; {
		again = false
		for i, g := range s.early {
			old := int(int32(s.next - g.seq))
			if old < 0 {
				continue
			}
			s.early = slices.Delete(s.early, i, i+1)
			if old < len(g.b) {
				s.next += uint32(len(g.b) - old)
				messages = append(messages, s.take(g.b[old:])...)
			}
			again = true
			break
		}
	}
	return messages
}

// take takes octets and returns the messages that end with them.
func (s *side) take(b []byte) (messages [][]byte) {
	s.in = append(s.in, b...)
	for {
		n := s.frameLen()
		if n == 0 || len(s.in) < n {
			return messages
		}
		frame := s.in[:n]
		s.in = s.in[n:]
		if !s.started {
			s.started = true
			continue
		}
		const tagged, last = 0x80, 0x40
		if op := frame[3] & 0xf; frame[2]&tagged != 0 || op != opSend && op != opSendInvalidate {
			continue
		}
		s.message = append(s.message, frame[2+untaggedLen:2+binary.BigEndian.Uint16(frame)]...)
		if frame[2]&last != 0 {
			messages = append(messages, s.message)
			s.message = nil
		}
	}
}

// Lengths of the headers of DDP and RDMAP, RFC 5041 §4.
const (
	taggedLen   = 14
	untaggedLen = 18
)

// frameLen is the length of the frame that s.in begins with, 0: unknown yet.
func (s *side) frameLen() int {
	const startLen, crcLen = 20, 4
	switch {
	case !s.started && len(s.in) >= startLen:
		return startLen + int(binary.BigEndian.Uint16(s.in[18:]))
	case s.started && len(s.in) >= 2:
		n := 2 + int(binary.BigEndian.Uint16(s.in))
		return n + -n&3 + crcLen
	}
	return 0
}

func flag(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// pcapFile is a capture that is made up, of IP packets.
type pcapFile struct {
	bytes.Buffer
	seq map[[2]uint64]uint32 // by stream and direction
}

// add appends a segment with the PDU of s, padded as it would be over TCP.
func (f *pcapFile) add(s send, port string) {
	if f.Len() == 0 {
		f.seq = make(map[[2]uint64]uint32)
		f.Write(binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4))
		f.Write([]byte{2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 101, 0, 0, 0}) // version 2.4, 256 KiB, LINKTYPE_RAW
	}
	pdu := s.b[iserLen:]
	pdu = append(pdu[:len(pdu):len(pdu)], make([]byte, -len(pdu)&3)...)
	here, there := [2]uint64{uint64(s.stream), flag(s.fromTarget)}, [2]uint64{uint64(s.stream), flag(!s.fromTarget)}
	portal, err := net.LookupPort("tcp", port)
	if err != nil {
		panic(err) // it is the portal's
	}
	const firstPort, headers = 1024, 40 // the initiators', of IPv4 and TCP
	ports := [2]int{firstPort + s.stream, portal}
	b := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1}
	binary.BigEndian.PutUint16(b[2:], uint16(headers+len(pdu)))
	b = binary.BigEndian.AppendUint16(b, uint16(ports[here[1]]))
	b = binary.BigEndian.AppendUint16(b, uint16(ports[there[1]]))
	b = binary.BigEndian.AppendUint32(b, f.seq[here])
	b = binary.BigEndian.AppendUint32(b, f.seq[there])
	b = append(b, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0) // PSH, ACK
	b = append(b, pdu...)
	f.seq[here] += uint32(len(pdu))
	record := make([]byte, 16) // the time is 0
	binary.LittleEndian.PutUint32(record[8:], uint32(len(b)))
	binary.LittleEndian.PutUint32(record[12:], uint32(len(b)))
	f.Write(record)
	f.Write(b)
}
