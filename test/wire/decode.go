package wire

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
)

// A packet is one frame as tshark's PDML describes it.
type packet struct {
	Protos []proto `xml:"proto"`
}

type proto struct {
	Name   string  `xml:"name,attr"`
	Fields []field `xml:"field"`
}

type field struct {
	Name     string  `xml:"name,attr"`
	ShowName string  `xml:"showname,attr"`
	Show     string  `xml:"show,attr"`
	Value    string  `xml:"value,attr"`
	Fields   []field `xml:"field"`
}

// decode has tshark read the capture with the port as iSCSI.
func decode(ctx context.Context, pcapng []byte, port string) ([]packet, error) {
	return tshark(ctx, pcapng, "-d", "tcp.port=="+port+",iscsi")
}

// tshark returns what it says of the capture's TCP segments.
func tshark(ctx context.Context, pcapng []byte, options ...string) ([]packet, error) {
	args := []string{"-r", "-", "-Y", "tcp", "-T", "pdml", "-o", "tcp.check_checksum:FALSE"} // the loopback interface leaves checksums to nobody
	cmd := exec.CommandContext(ctx, "tshark", append(args, options...)...)
	cmd.Stdin = bytes.NewReader(pcapng)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("wire: tshark: %w: %s", err, &stderr)
	}
	return parsePDML(bytes.NewReader(out))
}

func parsePDML(r io.Reader) ([]packet, error) {
	var packets []packet
	for d := xml.NewDecoder(r); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return packets, nil
		}
		if err != nil {
			return nil, fmt.Errorf("wire: PDML: %w", err)
		}
		if start, ok := token.(xml.StartElement); ok && start.Name.Local == "packet" {
			var p packet
			if err := d.DecodeElement(&p, &start); err != nil {
				return nil, fmt.Errorf("wire: PDML: %w", err)
			}
			packets = append(packets, p)
		}
	}
}

// A pdu is one iSCSI PDU of a capture.
type pdu struct {
	frame      string
	stream     string // of TCP
	fromTarget bool
	opcode     uint64
	fields     []field // flattened
}

// pdus lists the PDUs in the order in which they were sent.
func pdus(packets []packet, port string) []pdu {
	var all []pdu
	for _, p := range packets {
		tcp := flatten(p.proto("tcp"))
		frame := flatten(p.proto("frame"))
		for _, proto := range p.Protos {
			if proto.Name != "iscsi" {
				continue
			}
			u := pdu{fields: flatten(proto.Fields)}
			u.frame, _ = show(frame, "frame.number")
			u.stream, _ = show(tcp, "tcp.stream")
			from, _ := show(tcp, "tcp.srcport")
			u.fromTarget = from == port
			op, _ := u.number("iscsi.opcode")
			u.opcode = op & 0x3f
			all = append(all, u)
		}
	}
	return all
}

func (p packet) proto(name string) []field {
	for _, proto := range p.Protos {
		if proto.Name == name {
			return proto.Fields
		}
	}
	return nil
}

// complaints lists what tshark found wrong with a packet: expert information
// about iSCSI, SCSI or iWARP of any severity, malformed data, bad digests and CRCs,
// and bytes on the port that are neither iSCSI nor iWARP.
func (p packet) complaints() []string {
	var found []string
	for _, proto := range p.Protos {
		if proto.Name == "_ws.malformed" || proto.Name == "data" {
			found = append(found, "protocol "+proto.Name)
		}
		for _, f := range flatten(proto.Fields) {
			switch {
			case strings.HasPrefix(f.Name, "_ws.malformed"), strings.HasPrefix(f.Name, "_ws.short"):
				found = append(found, f.ShowName)
			case f.Name == "_ws.expert" && judged[proto.Name] &&
				!strings.Contains(f.ShowName, "Undecoded"): // a mode page that tshark has no names for
				found = append(found, proto.Name+": "+f.ShowName)
			case (strings.HasSuffix(f.Name, "digest32") || f.Name == "iwarp_mpa.crc_check") && !strings.Contains(f.ShowName, "Good CRC32"):
				found = append(found, f.ShowName)
			case f.Name == "iscsi.keyvalue.invalid", f.Name == "iscsi.opcode.invalid":
				found = append(found, f.ShowName)
			}
		}
	}
	return found
}

// judged are the protocols that are ours.
var judged = map[string]bool{"iscsi": true, "scsi": true, "nvme": true, "nvme-tcp": true, "iwarp_mpa": true, "iwarp_ddp_rdmap": true}

// number is the value of a numeric field as the wire has it.
func (u pdu) number(name string) (uint64, bool) { return number(u.fields, name) }

func number(fields []field, name string) (uint64, bool) {
	s, ok := show(fields, name)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 0, 64)
	return n, err == nil
}

func show(fields []field, name string) (string, bool) {
	for _, f := range fields {
		if f.Name == name {
			return f.Show, true
		}
	}
	return "", false
}

func flatten(fields []field) []field {
	var all []field
	for _, f := range fields {
		all = append(all, f)
		all = append(all, flatten(f.Fields)...)
	}
	return all
}
