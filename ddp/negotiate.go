package ddp

var (
	errMarkersWanted = &Error{MPAStartup, "peer wants markers, which this end does not send; markers must be off (M=0)"}
	errReplyFlags    = &Error{MPAStartup, "MPA Reply does not match the Request in revision, S or peer-to-peer model"}
	errRejected      = &Error{NoTerminate, "peer rejected the connection (R=1 in its MPA Reply)"}
	errIRD           = &Error{MPAInsufficientIRD, "peer wants more RDMA Reads outstanding than this end can serve"}
	errRTR           = &Error{MPANoRTR, "no ready-to-receive message that both ends know"}
)

// Answer returns the Reply of this end, the responder, to a valid Request (RFC 5044 §7.1,
// RFC 6581 §9). In local are the greatest IRD and ORD it can have and the RTR messages it
// takes; crc asks for CRCs though the peer may not. The private data is left to the caller.
//
// With an error the Reply is a rejection (R=1): send it, then close.
func Answer(req *StartFrame, local Enhanced, crc bool) (StartFrame, error) {
	reply := StartFrame{
		Reply:       true,
		CRC:         crc || req.CRC,
		Revision:    req.Revision,
		HasEnhanced: req.HasEnhanced, // RFC 6581 §10: S=1 is answered with S=1, S=0 with S=0
	}
	var err error
	if req.HasEnhanced {
		reply.Enhanced, err = answerEnhanced(req.Enhanced, local)
	}
	if req.Markers {
		err = errMarkersWanted
	}
	reply.Reject = err != nil
	return reply, err
}

func answerEnhanced(req, local Enhanced) (Enhanced, error) {
	// Each end's IRD is to be no less than the other's ORD (RFC 6581 §9.1); DepthUnknown is
	// echoed in the matching field.
	e := Enhanced{IRD: req.ORD, ORD: min(local.ORD, req.IRD)}
	if req.IRD == DepthUnknown {
		e.ORD = DepthUnknown
	}
	if req.PeerToPeer {
		e.PeerToPeer = true
		e.RTRSend = req.RTRSend && local.RTRSend
		e.RTRWrite = req.RTRWrite && local.RTRWrite
		e.RTRRead = req.RTRRead && local.RTRRead
		if !e.RTRSend && !e.RTRWrite && !e.RTRRead {
			// The initiator has to find that nothing fits, and says so with 2/0/07 (§9.2).
			e.RTRSend, e.RTRWrite, e.RTRRead = local.RTRSend, local.RTRWrite, local.RTRRead
		}
	}
	if req.ORD != DepthUnknown && req.ORD > local.IRD {
		e.IRD = local.IRD
		return e, errIRD
	}
	return e, nil
}

// Agreement is what an initiator may count on after the startup frames.
type Agreement struct {
	CRC bool
	IRD uint16 // as requested: what the responder may have outstanding towards this end
	ORD uint16 // what this end may have outstanding, DepthUnknown if left to the ULPs

	// RTR is the zero-length message to send first: [Send], [Write] or [ReadRequest] in the
	// peer-to-peer model, otherwise MessageInvalid.
	RTR Message
}

// Agree draws the conclusion of an initiator from its Request and the Reply. After an error
// with a cause the connection is in full operation as far as the peer knows, so that a
// Terminate can be sent.
func Agree(req, reply *StartFrame) (Agreement, error) {
	switch {
	case reply.Reject:
		return Agreement{}, errRejected
	case reply.Markers:
		return Agreement{}, errMarkersWanted
	case reply.HasEnhanced != req.HasEnhanced, reply.Revision != req.Revision:
		return Agreement{}, errReplyFlags
	}
	a := Agreement{CRC: req.CRC || reply.CRC}
	if !req.HasEnhanced {
		return a, nil
	}
	return a, a.enhance(req.Enhanced, reply.Enhanced)
}

func (a *Agreement) enhance(req, reply Enhanced) error {
	if reply.PeerToPeer != req.PeerToPeer {
		return errReplyFlags
	}
	// RFC 6581 §9.1: a responder that wants more than we serve cannot be satisfied; if it
	// serves less than we want, we want less, unless it serves nothing at all.
	if req.IRD != DepthUnknown && reply.ORD != DepthUnknown && reply.ORD > req.IRD {
		return errIRD
	}
	if reply.IRD == 0 && req.ORD != 0 && req.ORD != DepthUnknown {
		return errIRD
	}
	a.IRD, a.ORD = req.IRD, min(req.ORD, reply.IRD)
	if !req.PeerToPeer {
		return nil
	}
	switch {
	case req.RTRWrite && reply.RTRWrite: // costs the responder nothing
		a.RTR = Write
	case req.RTRRead && reply.RTRRead:
		a.RTR = ReadRequest
	case req.RTRSend && reply.RTRSend: // uses up a receive
		a.RTR = Send
	default:
		return errRTR
	}
	return nil
}
