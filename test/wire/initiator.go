package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"slices"
	"strings"
	"time"
)

// An initiator sends PDUs as a script asks, one command at a time. It is
// written from RFC 7143 alone and shares no code with the target, so that both
// do not err alike; where the answer is not what it has to be, the script ends
// with an error.
type initiator struct {
	conn      net.Conn
	target    string
	lun       byte
	digests   bool // header and data digest, in force after login
	cmdSN     uint32
	expStatSN uint32
	itt       uint32
}

// Opcodes, RFC 7143 §11.2.1.2.
const (
	opNOPOut = 0x00
	opSCSI   = 0x01
	opTMF    = 0x02
	opLogin  = 0x03
	opText   = 0x04
	opDOut   = 0x05
	opLogout = 0x06

	opNOPIn      = 0x20
	opSCSIResp   = 0x21
	opTMFResp    = 0x22
	opLoginResp  = 0x23
	opTextResp   = 0x24
	opDIn        = 0x25
	opLogoutResp = 0x26
	opR2T        = 0x31
	opAsync      = 0x32
	opReject     = 0x3f

	immediate = 0x40
	final     = 0x80

	headerLen   = 48
	noTag       = 0xffffffff
	maxSegment  = 8192 // the default MaxRecvDataSegmentLength, which the script leaves
	statusInPDU = 0x01 // S of Data-In, §11.7.4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// dial opens a connection and logs in; keys are further key=value pairs.
func dial(addr, target string, digests bool, keys ...string) (*initiator, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	// A target that does not answer must not hold the test for ever.
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		conn.Close()
		return nil, err
	}
	i := &initiator{conn: conn, target: target, cmdSN: 0xfffffffe} // CmdSN wraps soon
	if err := i.login(digests, keys); err != nil {
		conn.Close()
		return nil, err
	}
	return i, nil
}

// login goes straight to LoginOperationalNegotiation and on to the full feature phase, §6.3.
func (i *initiator) login(digests bool, keys []string) error {
	pairs := []string{"InitiatorName=iqn.2026-11.example.clients:wire"}
	if i.target == "" {
		pairs = append(pairs, "SessionType=Discovery")
	} else {
		pairs = append(pairs, "TargetName="+i.target, "SessionType=Normal")
	}
	digest := "None"
	if digests {
		digest = "CRC32C"
	}
	pairs = append(pairs, "HeaderDigest="+digest, "DataDigest="+digest)
	text := textSegment(append(pairs, keys...))
	h := header(opLogin|immediate, final|1<<2|3) // T, CSG 1, NSG 3
	copy(h[8:], []byte{0x80, 0, 0, 0, 0, 1})     // ISID, random format
	binary.BigEndian.PutUint32(h[24:], i.cmdSN)
	if err := i.send(h, text); err != nil {
		return err
	}
	h, answer, err := i.receive(opLoginResp)
	if err != nil {
		return err
	}
	for _, want := range []string{"HeaderDigest=" + digest, "DataDigest=" + digest} {
		if !bytes.Contains(append(answer, 0), []byte(want+"\x00")) {
			return fmt.Errorf("login: the answer %q lacks %s", answer, want)
		}
	}
	if status := binary.BigEndian.Uint16(h[36:]); status != 0 || h[1] != final|1<<2|3 {
		return fmt.Errorf("login: flags %#02x, status %#04x", h[1], status)
	}
	i.digests = digests
	return nil
}

// write sends a WRITE(10) at block lba of 512 bytes with immediate data, then
// unsolicited data if the login allowed it, then what R2Ts ask for.
func (i *initiator) write(lba uint32, data []byte, unsolicited int) error {
	first := min(len(data), maxSegment)
	flags := byte(0x20) // W
	if unsolicited <= first {
		flags |= final
	}
	itt, err := i.command(cdb10(0x2a, lba, len(data)/512), flags, len(data), data[:first])
	if err != nil {
		return err
	}
	if unsolicited > first {
		if err := i.dataOut(itt, noTag, data, first, unsolicited); err != nil {
			return err
		}
	}
	for {
		h, _, err := i.receive(opR2T, opSCSIResp)
		if err != nil {
			return err
		}
		if h[0] == opSCSIResp {
			return goodStatus(h)
		}
		ttt := binary.BigEndian.Uint32(h[20:])
		from := int(binary.BigEndian.Uint32(h[40:]))
		to := from + int(binary.BigEndian.Uint32(h[44:]))
		if to > len(data) {
			return fmt.Errorf("R2T for bytes up to %d of %d", to, len(data))
		}
		if err := i.dataOut(itt, ttt, data, from, to); err != nil {
			return err
		}
	}
}

// dataOut sends data[from:to] as one sequence, §11.7.
func (i *initiator) dataOut(itt, ttt uint32, data []byte, from, to int) error {
	for sn := uint32(0); from < to; sn++ {
		n := min(to-from, maxSegment)
		h := header(opDOut, 0)
		h[9] = i.lun
		if from+n == to {
			h[1] = final
		}
		binary.BigEndian.PutUint32(h[16:], itt)
		binary.BigEndian.PutUint32(h[20:], ttt)
		binary.BigEndian.PutUint32(h[28:], i.expStatSN)
		binary.BigEndian.PutUint32(h[36:], sn)
		binary.BigEndian.PutUint32(h[40:], uint32(from))
		if err := i.send(h, data[from:from+n]); err != nil {
			return err
		}
		from += n
	}
	return nil
}

// read sends a command that answers with up to n bytes, and returns them.
func (i *initiator) read(cdb []byte, n int) ([]byte, error) {
	if _, err := i.command(cdb, final|0x40, n, nil); err != nil { // R
		return nil, err
	}
	var got []byte
	for {
		h, data, err := i.receive(opDIn, opSCSIResp)
		if err != nil {
			return nil, err
		}
		if h[0] == opSCSIResp {
			return got, goodStatus(h)
		}
		if off := int(binary.BigEndian.Uint32(h[40:])); off != len(got) {
			return nil, fmt.Errorf("Data-In at offset %d after %d bytes", off, len(got))
		}
		got = append(got, data...)
		if h[1]&statusInPDU != 0 {
			return got, nil
		}
	}
}

func (i *initiator) command(cdb []byte, flags byte, edtl int, data []byte) (itt uint32, err error) {
	h := header(opSCSI, flags|1) // SIMPLE
	h[9] = i.lun                 // single level LUN, peripheral device addressing
	itt = i.newTask(h)
	binary.BigEndian.PutUint32(h[20:], uint32(edtl))
	i.sequence(h)
	copy(h[32:], cdb)
	return itt, i.send(h, data)
}

// ping is a NOP-Out that wants its data back, §11.18.
func (i *initiator) ping(data string) error {
	h := header(opNOPOut, final)
	i.newTask(h)
	binary.BigEndian.PutUint32(h[20:], noTag)
	i.sequence(h)
	if err := i.send(h, []byte(data)); err != nil {
		return err
	}
	_, back, err := i.receive(opNOPIn)
	if err == nil && string(back) != data {
		err = fmt.Errorf("ping %q came back as %q", data, back)
	}
	return err
}

// Task management functions, §11.5.1, and what the script expects of them, §11.6.1.
const (
	abortTask   = 1
	lunReset    = 5
	tmfComplete = 0
	tmfNoTask   = 1
)

// manage asks for a task management function on a task that never was.
func (i *initiator) manage(function, want byte) error {
	h := header(opTMF|immediate, final|function)
	h[9] = i.lun
	i.newTask(h)
	binary.BigEndian.PutUint32(h[20:], noTag) // Referenced Task Tag
	if function == abortTask {
		binary.BigEndian.PutUint32(h[20:], 0x7fffffff)
	}
	i.sequence(h)
	binary.BigEndian.PutUint32(h[32:], i.cmdSN) // RefCmdSN, not yet used
	if err := i.send(h, nil); err != nil {
		return err
	}
	h, _, err := i.receive(opTMFResp)
	if err == nil && h[2] != want {
		err = fmt.Errorf("task management function %d: response %d, want %d", function, h[2], want)
	}
	return err
}

// sendTargets returns the keys of the answer, appendix C.
func (i *initiator) sendTargets(which string) ([]string, error) {
	h := header(opText, final)
	i.newTask(h)
	binary.BigEndian.PutUint32(h[20:], noTag)
	i.sequence(h)
	if err := i.send(h, textSegment([]string{"SendTargets=" + which})); err != nil {
		return nil, err
	}
	_, data, err := i.receive(opTextResp)
	return strings.Split(strings.TrimRight(string(data), "\x00"), "\x00"), err
}

// logout closes the session, §11.14, and then the connection.
func (i *initiator) logout() error {
	defer i.conn.Close()
	h := header(opLogout|immediate, final)
	i.newTask(h)
	i.sequence(h)
	if err := i.send(h, nil); err != nil {
		return err
	}
	h, _, err := i.receive(opLogoutResp)
	if err != nil {
		return err
	}
	if h[2] != 0 {
		return fmt.Errorf("logout: response %d", h[2])
	}
	return nil
}

func header(opcode, flags byte) []byte {
	h := make([]byte, headerLen)
	h[0], h[1] = opcode, flags
	return h
}

func (i *initiator) newTask(h []byte) uint32 {
	i.itt++
	binary.BigEndian.PutUint32(h[16:], i.itt)
	return i.itt
}

// sequence writes CmdSN and ExpStatSN; an immediate PDU does not use up its CmdSN.
func (i *initiator) sequence(h []byte) {
	binary.BigEndian.PutUint32(h[24:], i.cmdSN)
	binary.BigEndian.PutUint32(h[28:], i.expStatSN)
	if h[0]&immediate == 0 {
		i.cmdSN++
	}
}

// send writes one PDU with its length, padding and digests.
func (i *initiator) send(h, data []byte) error {
	h[5], h[6], h[7] = byte(len(data)>>16), byte(len(data)>>8), byte(len(data))
	out := slices.Clone(h)
	out = i.appendDigest(out, h)
	if len(data) > 0 {
		padded := append(slices.Clone(data), make([]byte, -len(data)&3)...)
		out = append(out, padded...)
		out = i.appendDigest(out, padded)
	}
	_, err := i.conn.Write(out)
	return err
}

// appendDigest: CRC32C, least significant byte first, §11.2.2.
func (i *initiator) appendDigest(out, of []byte) []byte {
	if !i.digests {
		return out
	}
	return binary.LittleEndian.AppendUint32(out, crc32.Checksum(of, castagnoli))
}

// receive reads one PDU, which must be of one of the kinds, and keeps StatSN.
func (i *initiator) receive(kinds ...byte) (h, data []byte, err error) {
	if h, err = i.checked(headerLen); err != nil {
		return nil, nil, err
	}
	n := int(h[5])<<16 | int(h[6])<<8 | int(h[7])
	if n > 0 {
		if data, err = i.checked(n + (-n & 3)); err != nil {
			return nil, nil, err
		}
		data = data[:n]
	}
	if !bytes.Contains(kinds, h[:1]) {
		return nil, nil, fmt.Errorf("received opcode %#02x, want one of %#02x: header % x", h[0], kinds, h)
	}
	if h[0] != opR2T && (h[0] != opDIn || h[1]&statusInPDU != 0) {
		i.expStatSN = binary.BigEndian.Uint32(h[24:]) + 1
	}
	return h, data, nil
}

// checked reads n bytes and the digest behind them.
func (i *initiator) checked(n int) ([]byte, error) {
	b := make([]byte, n)
	if _, err := io.ReadFull(i.conn, b); err != nil {
		return nil, err
	}
	if !i.digests {
		return b, nil
	}
	var digest [4]byte
	if _, err := io.ReadFull(i.conn, digest[:]); err != nil {
		return nil, err
	}
	if got, want := binary.LittleEndian.Uint32(digest[:]), crc32.Checksum(b, castagnoli); got != want {
		return nil, fmt.Errorf("digest %#08x, want %#08x", got, want)
	}
	return b, nil
}

func goodStatus(h []byte) error {
	if h[2] != 0 || h[3] != 0 {
		return fmt.Errorf("SCSI Response: response %#02x, status %#02x", h[2], h[3])
	}
	return nil
}

func textSegment(pairs []string) []byte {
	return []byte(strings.Join(pairs, "\x00") + "\x00")
}

func cdb10(op byte, lba uint32, blocks int) []byte {
	b := make([]byte, 10)
	b[0] = op
	binary.BigEndian.PutUint32(b[2:], lba)
	binary.BigEndian.PutUint16(b[7:], uint16(blocks))
	return b
}
