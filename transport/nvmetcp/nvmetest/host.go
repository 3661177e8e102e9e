// Package nvmetest is a host of NVMe over TCP for tests: it sends what it is told, right or wrong, and checks what comes.
package nvmetest

import (
	"bufio"
	"io"
	"net"
	"testing"
	"time"

	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
)

// HostNQN is the name of the host.
const HostNQN = "nqn.2026-11.com.example:host"

// HostID is its identifier.
var HostID = [16]byte{1, 2, 3}

// patience is how long a test waits for anything.
const patience = time.Minute

// Host is one queue of a host.
type Host struct {
	C   net.Conn
	IC  pdu.IC // what was asked for
	CID uint16 // of the last command
	Cap int    // bytes of data that a capsule may have
	ID  uint16 // of the controller; of an I/O queue: its own
	// Subsystem is that of an admin queue.
	Subsystem string

	t    testing.TB
	r    *bufio.Reader
	addr string
}

// DialRaw opens a connection, which ends with the test.
func DialRaw(t testing.TB, addr string) *Host {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return &Host{t: t, C: c, r: bufio.NewReader(c), Cap: 8192, addr: addr}
}

// Dial opens a connection, and exchanges ICReq and ICResp.
func Dial(t testing.TB, addr string, ic pdu.IC) *Host {
	t.Helper()
	h := DialRaw(t, addr)
	h.IC = ic
	h.Send(ic.AppendTo(nil, pdu.ICReq))
	b, _ := h.PDU()
	if pdu.Header(b).Type() != pdu.ICResp {
		t.Fatalf("% x in answer to ICReq", b[:24])
	}
	return h
}

// Admin connects an admin queue, and has the controller ready.
func Admin(t testing.TB, addr string, ic pdu.IC, subsystem string) *Host {
	t.Helper()
	h := Dial(t, addr, ic)
	e, _ := h.Must(ConnectCommand(0, 31, 0, 0), ConnectData(subsystem, nvme.DynamicController), 0)
	h.ID, h.Subsystem = uint16(e.DW0), subsystem
	h.Must(PropertySet(nvme.PropCC, 0x460001), nil, 0)
	if e, _ := h.Must(PropertyGet(nvme.PropCSTS, 0), nil, 0); e.DW0 != nvme.CSTSReady {
		t.Fatalf("CSTS is %#x", e.DW0)
	}
	return h
}

// Queue connects an I/O queue of the controller whose admin queue h is. cattr are the attributes of Connect.
func (h *Host) Queue(qid uint16, cattr uint8) *Host {
	h.t.Helper()
	q := Dial(h.t, h.addr, h.IC)
	q.Must(ConnectCommand(qid, 127, cattr, 0), ConnectData(h.Subsystem, h.ID), 0)
	q.Cap, q.ID = 16<<10, qid
	return q
}

// Send sends octets.
func (h *Host) Send(b []byte) {
	h.t.Helper()
	if _, err := h.C.Write(b); err != nil {
		h.t.Fatal(err)
	}
}

// PDU reads a PDU, and checks its digests. It returns the header and the data.
func (h *Host) PDU() (header, data []byte) {
	h.t.Helper()
	b := make([]byte, pdu.CommonLen)
	if _, err := io.ReadFull(h.r, b); err != nil {
		h.t.Fatal(err)
	}
	b = append(b, make([]byte, int(pdu.Header(b).Len())-len(b))...)
	if _, err := io.ReadFull(h.r, b[pdu.CommonLen:]); err != nil {
		h.t.Fatal(err)
	}
	head := pdu.Header(b)
	n, end := head.HLen(), len(b)
	bare := head.Type() == pdu.ICResp || head.Type() == pdu.C2HTermReq
	if bare {
		return b[:n], b[n:]
	}
	if (head.Flags()&pdu.FlagHeaderDigest != 0) != h.IC.HeaderDigest {
		h.t.Fatalf("flags %#x", head.Flags())
	}
	if h.IC.HeaderDigest && !pdu.Digest(0).Update(b[:n]).Matches(b[n:]) {
		h.t.Fatal("a header digest does not match")
	}
	at := head.DataOffset()
	if at == 0 {
		return b[:n], nil
	}
	if at%(4*(int(h.IC.Align)+1)) != 0 {
		h.t.Fatalf("data at %d, and HPDA is %d", at, h.IC.Align)
	}
	if (head.Flags()&pdu.FlagDataDigest != 0) != h.IC.DataDigest {
		h.t.Fatalf("flags %#x of data", head.Flags())
	}
	if h.IC.DataDigest {
		end -= pdu.DigestLen
		if !pdu.Digest(0).Update(b[at:end]).Matches(b[end:]) {
			h.t.Fatal("a data digest does not match")
		}
	}
	return b[:n], b[at:end]
}

// WithData appends digests and data to a header.
func (h *Host) WithData(header, data []byte) []byte {
	b := header
	if h.IC.HeaderDigest {
		b = pdu.Digest(0).Update(b).AppendTo(b)
	}
	if len(data) == 0 {
		return b
	}
	b = append(b, data...)
	if h.IC.DataDigest {
		b = pdu.Digest(0).Update(data).AppendTo(b)
	}
	return b
}

// Flags are those of a PDU, with data or without.
func (h *Host) Flags(data bool) (f uint8) {
	if h.IC.HeaderDigest {
		f |= pdu.FlagHeaderDigest
	}
	if data && h.IC.DataDigest {
		f |= pdu.FlagDataDigest
	}
	return f
}

// Capsule is a CapsuleCmd with data in it, or none.
func (h *Host) Capsule(c *nvme.Command, data []byte) []byte {
	pdo := 0
	if len(data) > 0 {
		pdo = pdu.DataStart(pdu.CapsuleCmdLen, h.IC.HeaderDigest, 0)
	}
	return h.WithData(pdu.AppendCommand(nil, h.Flags(len(data) > 0), c, pdo, len(data)), data)
}

// Start sends a command with out bytes of data, or room for in bytes, and returns its CID.
func (h *Host) Start(c nvme.Command, out []byte, in int) uint16 {
	h.t.Helper()
	h.CID++
	c.CID = h.CID
	c.SGL = nvme.SGL{Length: uint32(max(len(out), in)), Type: nvme.SGLTransport}
	if len(out) > 0 && len(out) <= h.Cap {
		c.SGL.Type = nvme.SGLInCapsule
		h.Send(h.Capsule(&c, out))
	} else {
		h.Send(h.Capsule(&c, nil))
	}
	return c.CID
}

// SendData answers an R2T with PDUs of at most piece bytes.
func (h *Host) SendData(r pdu.Ready, out []byte, piece int) {
	h.t.Helper()
	part := out[r.Offset : r.Offset+r.Len]
	for off := 0; off < len(part); off += piece {
		b := part[off:min(len(part), off+piece)]
		d := pdu.Data{CID: r.CID, Tag: r.Tag, Offset: r.Offset + uint32(off), Len: uint32(len(b))}
		flags := h.Flags(true)
		if off+len(b) == len(part) {
			flags |= pdu.FlagLast
		}
		h.Send(h.WithData(d.AppendTo(nil, pdu.H2CData, flags, pdu.DataStart(pdu.DataLen, h.IC.HeaderDigest, 0)), b))
	}
}

// Finish waits for the completion of the only command under way, and gives and takes its data.
func (h *Host) Finish(cid uint16, out []byte, in int) (nvme.CQE, []byte) {
	h.t.Helper()
	var data []byte
	for {
		b, d := h.PDU()
		switch pdu.Header(b).Type() {
		case pdu.R2T:
			r := pdu.ParseReady(b)
			if r.CID != cid || len(out) <= h.Cap {
				h.t.Fatalf("%+v", r)
			}
			h.SendData(r, out, max(len(out)/3&^511, 512))
		case pdu.C2HData:
			p := pdu.ParseData(b)
			if p.CID != cid || int(p.Offset) != len(data) || int(p.Len) != len(d) {
				h.t.Fatalf("%+v with %d bytes", p, len(d))
			}
			data = append(data, d...)
			if pdu.Header(b).Flags()&pdu.FlagSuccess != 0 {
				return nvme.CQE{CID: cid}, data
			}
		case pdu.CapsuleResp:
			e := nvme.ParseCQE(b[pdu.CommonLen:])
			if e.CID != cid || e.Status == nvme.Success && len(data) != in {
				h.t.Fatalf("%+v after %d bytes, want %d", e, len(data), in)
			}
			return e, data
		default:
			f, info := pdu.ParseTerm(b)
			h.t.Fatalf("%#x: %v %d", b[0], f, info)
		}
	}
}

// Do sends a command and waits for its completion: it is the only one under way.
func (h *Host) Do(c nvme.Command, out []byte, in int) (nvme.CQE, []byte) {
	h.t.Helper()
	return h.Finish(h.Start(c, out, in), out, in)
}

// Must is Do for a command that succeeds.
func (h *Host) Must(c nvme.Command, out []byte, in int) (nvme.CQE, []byte) {
	h.t.Helper()
	e, data := h.Do(c, out, in)
	if e.Status != nvme.Success {
		h.t.Fatalf("%+v: %v", c, e.Status)
	}
	return e, data
}

// Ended waits until the target has ended the connection.
func (h *Host) Ended() {
	h.t.Helper()
	if b, err := h.r.ReadByte(); err == nil {
		h.t.Fatalf("%#x instead of the end", b)
	}
}

// ConnectCommand is a Connect.
func ConnectCommand(qid, sqsize uint16, cattr uint8, kato uint32) nvme.Command {
	return nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.Connect), DWords: [6]uint32{uint32(qid) << 16, uint32(cattr)<<16 | uint32(sqsize), kato}}
}

// ConnectData is its data.
func ConnectData(sub string, cntlid uint16) []byte {
	f := nvme.ConnectFields{HostID: HostID, CNTLID: cntlid, SubNQN: sub, HostNQN: HostNQN}
	return f.AppendTo(nil)
}

// PropertySet writes a property of 4 bytes.
func PropertySet(p nvme.Property, v uint32) nvme.Command {
	return nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.PropertySet), DWords: [6]uint32{0, uint32(p), v}}
}

// PropertyGet reads a property; wide is 1 if it has 8 bytes.
func PropertyGet(p nvme.Property, wide uint32) nvme.Command {
	return nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.PropertyGet), DWords: [6]uint32{wide, uint32(p)}}
}

// RW is a command about blocks of namespace 1.
func RW(op nvme.Opcode, lba uint64, blocks uint32) nvme.Command {
	return nvme.Command{Opcode: op, NSID: 1, DWords: [6]uint32{uint32(lba), uint32(lba >> 32), blocks - 1}}
}
