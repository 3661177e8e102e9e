package wire

import "context"

// decodeIWARP has tshark read the capture as iWARP, which it finds by the MPA Request. It
// guesses what Sends carry, and takes short ones for RPC over RDMA that is malformed.
func decodeIWARP(ctx context.Context, pcapng []byte) ([]packet, error) {
	return tshark(ctx, pcapng, "-o", "tcp.try_heuristic_first:TRUE", "--disable-heuristic", "rpcrdma_iwarp", "--disable-heuristic", "smb_direct_iwarp")
}

// An fpdu is a frame of MPA's, of either kind, in a capture.
type fpdu struct {
	frame      string
	fromTarget bool
	fields     []field // of MPA, DDP and RDMAP, flattened
}

// fpdus lists the frames in the order in which they were sent, those of the startup first.
func fpdus(packets []packet, port string) []fpdu {
	var all []fpdu
	for _, p := range packets {
		from, _ := show(flatten(p.proto("tcp")), "tcp.srcport")
		frame, _ := show(flatten(p.proto("frame")), "frame.number")
		for _, proto := range p.Protos {
			switch proto.Name {
			case "iwarp_mpa":
				all = append(all, fpdu{frame: frame, fromTarget: from == port, fields: flatten(proto.Fields)})
			case "iwarp_ddp_rdmap":
				last := &all[len(all)-1]
				last.fields = append(last.fields, flatten(proto.Fields)...)
			}
		}
	}
	return all
}
