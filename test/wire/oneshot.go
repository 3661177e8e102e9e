package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// No dissector knows one-shot RDMA. The code below decodes it as docs/protocols/one-shot.md describes it, and
// shares no code with the implementation. tshark finds the TCP streams.

// A direction is the octets that one end of a TCP connection has sent.
type direction struct {
	stream     string
	fromTarget bool
	octets     []byte
}

// directions puts the segments of a capture in order.
func directions(ctx context.Context, pcapng []byte, port string) ([]direction, error) {
	cmd := exec.CommandContext(ctx, "tshark", "-r", "-", "-Y", "tcp.port=="+port+" && tcp.len>0", "-T", "fields", "-o", "tcp.relative_sequence_numbers:TRUE",
		"--disable-protocol", "iwarp_mpa", "-e", "tcp.stream", "-e", "tcp.srcport", "-e", "tcp.seq", "-e", "tcp.payload")
	cmd.Stdin = bytes.NewReader(pcapng)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("wire: tshark: %w: %s", err, &stderr)
	}
	var all []direction
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) != 4 {
			return nil, fmt.Errorf("wire: tshark says %q", line)
		}
		seq, err := strconv.Atoi(f[2])
		if err != nil {
			return nil, err
		}
		payload := make([]byte, len(f[3])/2)
		if _, err := fmt.Sscanf(f[3], "%x", &payload); err != nil {
			return nil, fmt.Errorf("wire: tshark says %q: %w", f[3][:min(len(f[3]), 40)], err)
		}
		fromTarget := f[1] == port
		i := slices.IndexFunc(all, func(s direction) bool { return s.stream == f[0] && s.fromTarget == fromTarget })
		if i < 0 {
			all = append(all, direction{stream: f[0], fromTarget: fromTarget})
			i = len(all) - 1
		}
		at := seq - 1
		if end := at + len(payload); end > len(all[i].octets) {
			all[i].octets = append(all[i].octets, make([]byte, end-len(all[i].octets))...)
		}
		copy(all[i].octets[at:], payload)
	}
	return all, nil
}

// What is agreed in the MPA frames.
const (
	byOpcodes = 0x01
	byFlags   = 0x02
	every     = 0x04
	validated = 0x08
	advertise = 0x10
	closing   = 0x20
)

// startFrame reads an MPA frame of revision 2 and the container in it, whose flags it returns.
func startFrame(b []byte, key string) (flags uint16, rest []byte, err error) {
	if len(b) < 20 || string(b[:16]) != key {
		return 0, nil, fmt.Errorf("no %s", key)
	}
	n := int(binary.BigEndian.Uint16(b[18:]))
	if len(b) < 20+n || b[16]&0x50 != 0x50 || b[17] != 2 {
		return 0, nil, fmt.Errorf("flags %#x, revision %d, %d octets of private data", b[16], b[17], n)
	}
	c := b[20:][:n]
	if len(c) < 24 || string(c[8:12]) != "OSR1" || c[12] != 1 || c[13] != 4 {
		return 0, nil, fmt.Errorf("no container of one-shot in % x", c)
	}
	if crc32.Checksum(c[8:20], castagnoli) != binary.LittleEndian.Uint32(c[20:]) {
		return 0, nil, errors.New("the CRC of the container is wrong")
	}
	return binary.BigEndian.Uint16(c[14:]), b[20+n:], nil
}

// A message is what an RDMAP message says of one-shot.
type message struct {
	fromTarget         bool
	opcode             byte
	tagged             bool
	stag               uint32
	advertises, closes bool
	to                 uint64 // tagged: of the first segment
	readFrom           uint32 // Read Request
	payload            []byte // all of it
	next               uint64 // tagged: the offset behind the last segment
}

// messages reads the FPDUs of one direction.
func messages(b []byte, flags uint16, fromTarget bool) (all []message, err error) {
	var open *message
	for len(b) > 0 {
		if len(b) < 2 {
			return all, errors.New("half an FPDU at the end")
		}
		n := int(binary.BigEndian.Uint16(b))
		total := (2+n+3)&^3 + 4
		if len(b) < total {
			return all, errors.New("half an FPDU at the end")
		}
		if crc32.Checksum(b[:total-4], castagnoli) != binary.LittleEndian.Uint32(b[total-4:total]) {
			return all, fmt.Errorf("the CRC of an FPDU of %d octets is wrong", n)
		}
		m, last, err := segment(b[2:2+n], flags)
		if err != nil {
			return all, err
		}
		b = b[total:]
		m.fromTarget = fromTarget
		switch {
		case open == nil:
			all = append(all, m)
			open = &all[len(all)-1]
		case open.opcode != m.opcode || open.stag != m.stag || open.advertises != m.advertises || open.closes != m.closes:
			return all, fmt.Errorf("segments of one message differ: %+v, %+v", open, m)
		case m.tagged && m.to != open.next:
			return all, fmt.Errorf("a tagged message goes on at %d, after %d", m.to, open.next)
		default:
			open.payload = append(open.payload, m.payload...)
			open.next = m.next
		}
		if last {
			open = nil
		}
	}
	if open != nil {
		return all, errors.New("a message has no last segment")
	}
	return all, nil
}

// segment reads a DDP segment.
func segment(b []byte, flags uint16) (m message, last bool, err error) {
	if len(b) < 14 {
		return m, false, fmt.Errorf("a segment of %d octets", len(b))
	}
	control := binary.BigEndian.Uint16(b)
	m.opcode, m.tagged = byte(control&0xf), control&0x8000 != 0
	if control>>8&3 != 1 || control>>6&3 != 1 {
		return m, false, fmt.Errorf("control word %04x: versions", control)
	}
	last = control&0x4000 != 0
	if m.tagged {
		m.stag, m.to, m.payload = binary.BigEndian.Uint32(b[2:]), binary.BigEndian.Uint64(b[6:]), slices.Clone(b[14:])
		m.next = m.to + uint64(len(m.payload))
		if control&0x3000 != 0 {
			err = fmt.Errorf("control word %04x: a tagged message is marked", control)
		}
		return m, last, err
	}
	switch {
	case flags&byFlags != 0:
		m.advertises, m.closes = control&0x1000 != 0, control&0x2000 != 0
	case flags&byOpcodes != 0:
		m.advertises, m.closes = m.opcode == 0x8, m.opcode == 0xc
	}
	marked := m.advertises || m.closes
	if m.advertises && m.closes || control&0x3000 != 0 && flags&byFlags == 0 || marked && flags&byFlags != 0 && m.opcode != 3 && m.opcode != 5 {
		return m, last, fmt.Errorf("control word %04x: markings", control)
	}
	header := 18
	if flags&validated != 0 && !marked && (m.opcode == 3 || m.opcode == 5) {
		header = 14 // the STag field is left out
	}
	if len(b) < header {
		return m, last, fmt.Errorf("a segment of %d octets", len(b))
	}
	if header == 18 {
		m.stag = binary.BigEndian.Uint32(b[2:])
	}
	if queue := binary.BigEndian.Uint32(b[header-12:]); queue != map[byte]uint32{1: 1, 7: 2}[m.opcode] {
		return m, last, fmt.Errorf("opcode %x in queue %d", m.opcode, queue)
	}
	if !marked && m.stag != 0 && m.opcode != 4 && m.opcode != 6 {
		return m, last, fmt.Errorf("an STag field of %08x without a meaning", m.stag)
	}
	m.payload = slices.Clone(b[header:])
	if m.opcode == 1 {
		if len(m.payload) != 28 {
			return m, last, fmt.Errorf("a Read Request of %d octets", len(m.payload))
		}
		m.readFrom = binary.BigEndian.Uint32(m.payload[16:])
	}
	return m, last, nil
}
