package initiator

import (
	"fmt"
	"strconv"

	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
	"oneshot/iscsi/text"
)

// What is offered.
const (
	tcpSegment  = 256 << 10 // the longest data segment taken over TCP
	rdmaSegment = 8 << 10   // and over RDMA: control PDUs
	maxBurst    = 16776192
	firstBurst  = 256 << 10
	maxR2T      = 8
)

// operational offers the keys of the operational stage, once.
func (l *login) operational() {
	if l.sent {
		return
	}
	l.sent = true
	rdma := l.url.Transport != TCP
	segment := tcpSegment
	if rdma {
		segment = rdmaSegment
	}
	l.put("MaxRecvDataSegmentLength", strconv.Itoa(segment))
	l.put("ErrorRecoveryLevel", "0")
	l.put("DefaultTime2Wait", "0")
	l.put("DefaultTime2Retain", "0")
	if l.discovery {
		return
	}
	l.put("HeaderDigest", digest(l.url.HeaderDigest))
	l.put("DataDigest", digest(l.url.DataDigest))
	l.put("InitialR2T", text.FormatBool(rdma))
	l.put("ImmediateData", text.FormatBool(l.opt.Immediate > 0))
	l.put("MaxBurstLength", strconv.Itoa(maxBurst))
	l.put("FirstBurstLength", strconv.Itoa(firstBurst))
	l.put("MaxOutstandingR2T", strconv.Itoa(maxR2T))
	l.put("MaxConnections", "1")
	l.put("DataPDUInOrder", "Yes")
	l.put("DataSequenceInOrder", "Yes")
	if l.url.Transport == ISER || l.url.Transport == ISERVerbs {
		l.put("RDMAExtensions", "Yes")
		l.put("InitiatorRecvDataSegmentLength", strconv.Itoa(rdmaSegment))
		l.put("TargetRecvDataSegmentLength", strconv.Itoa(max(l.opt.Immediate, 512)))
		l.put("MaxOutstandingUnexpectedPDUs", strconv.Itoa(spareReceives))
	}
}

func digest(on bool) string {
	if on {
		return "CRC32C"
	}
	return "None"
}

// negotiated takes the target's word for a key. What is outside of what was offered is the
// target's mistake.
func (l *login) negotiated(key, v string) error {
	p := &l.p
	switch key {
	case "MaxRecvDataSegmentLength":
		return number(key, v, 512, 1<<24-1, &l.segment)
	case "MaxBurstLength":
		return number(key, v, 512, maxBurst, &p.MaxBurstLength)
	case "FirstBurstLength":
		return number(key, v, 512, firstBurst, &p.FirstBurstLength)
	case "MaxOutstandingR2T":
		return number(key, v, 1, maxR2T, &p.MaxOutstandingR2T)
	case "InitiatorRecvDataSegmentLength":
		return number(key, v, 512, rdmaSegment, &p.InitiatorRecvDataSegmentLength)
	case "TargetRecvDataSegmentLength":
		return number(key, v, 512, uint32(max(l.opt.Immediate, 512)), &p.TargetRecvDataSegmentLength)
	case "ErrorRecoveryLevel":
		return number(key, v, 0, 0, &p.ErrorRecoveryLevel)
	case "InitialR2T":
		return boolean(key, v, &p.InitialR2T)
	case "ImmediateData":
		return boolean(key, v, &p.ImmediateData)
	case "RDMAExtensions":
		if err := boolean(key, v, &p.RDMAExtensions); err != nil || p.RDMAExtensions {
			return err
		}
		return fmt.Errorf("login: the target answers RDMAExtensions=No")
	case "HeaderDigest":
		return chosen(key, v, l.url.HeaderDigest, &p.HeaderDigest)
	case "DataDigest":
		return chosen(key, v, l.url.DataDigest, &p.DataDigest)
	case "DataPDUInOrder", "DataSequenceInOrder":
		return chosenBool(key, v)
	}
	if v == text.Reject {
		return fmt.Errorf("login: the target rejects our value of %s", clip(key))
	}
	return nil
}

// agreed checks that the target has agreed to what there is no session without: a key that it has not answered has its default.
func (l *login) agreed() error {
	for _, k := range []struct {
		key        string
		asked, has bool
	}{
		{"HeaderDigest", l.url.HeaderDigest, l.p.HeaderDigest},
		{"DataDigest", l.url.DataDigest, l.p.DataDigest},
		{"RDMAExtensions", l.url.Transport == ISER || l.url.Transport == ISERVerbs, l.p.RDMAExtensions},
	} {
		if k.asked && !k.has && !l.discovery {
			return fmt.Errorf("login: the target has not answered %s", k.key)
		}
	}
	return nil
}

func chosenBool(key, v string) error {
	if v != "Yes" {
		return fmt.Errorf("login: the target answers %s=%s to Yes", key, clip(v))
	}
	return nil
}

func chosen(key, v string, offered bool, into *bool) error {
	if v != digest(offered) {
		return fmt.Errorf("login: the target does not agree to %s=%s (it says %s)", key, digest(offered), clip(v))
	}
	*into = offered
	return nil
}

func boolean(key, v string, into *bool) error {
	b, ok := text.Bool(v)
	if !ok {
		return fmt.Errorf("login: the target answers %s=%s", key, clip(v))
	}
	*into = b
	return nil
}

func number(key, v string, least, most uint32, into *uint32) error {
	n, ok := text.Number(v)
	if !ok || n < least || n > most {
		return fmt.Errorf("login: the target answers %s=%s, which is not from %d to %d", key, clip(v), least, most)
	}
	*into = n
	return nil
}

// immediate is how many bytes of data a command may take along.
func (l *login) immediate() int {
	if !l.p.ImmediateData {
		return 0
	}
	n := min(l.opt.Immediate, int(l.p.FirstBurstLength), int(l.segment))
	if l.p.RDMAExtensions {
		n = min(n, int(l.p.TargetRecvDataSegmentLength))
	}
	return n
}

// request makes a login request of data.
func (l *login) request(data []byte, transit bool, cmdSN, expStatSN serial.SN) pdu.LoginRequestFields {
	nsg := pdu.StageLoginOperationalNegotiation
	if l.stage == pdu.StageLoginOperationalNegotiation {
		nsg = pdu.StageFullFeaturePhase
	}
	f := pdu.LoginRequestFields{
		Transit: transit, CSG: l.stage, ISID: l.isid, TSIH: l.tsih, ITT: loginITT,
		DataSegmentLength: len(data), CmdSN: cmdSN, ExpStatSN: expStatSN,
	}
	if transit {
		f.NSG = nsg
	}
	return f
}
