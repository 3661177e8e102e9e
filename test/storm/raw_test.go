package storm

import "oneshot/iscsi/pdu"

// rawName begins the names of initiators that send what loginRequest returns.
const rawName = "iqn.2026-11.example.storm:"

// loginRequest is a login to target t in one PDU; the first command afterwards has the CmdSN 1.
func loginRequest(name string) []byte {
	text := "InitiatorName=" + rawName + name + "\x00TargetName=" + iqn + "t\x00SessionType=Normal\x00ImmediateData=Yes\x00MaxRecvDataSegmentLength=262144\x00"
	f := pdu.LoginRequestFields{
		Transit: true, CSG: pdu.StageLoginOperationalNegotiation, NSG: pdu.StageFullFeaturePhase,
		ISID: pdu.ISID{0x80}, ITT: 1, CmdSN: 1, DataSegmentLength: len(text),
	}
	return append(append(f.AppendTo(nil), text...), make([]byte, pdu.PaddedLen(len(text))-len(text))...)
}
