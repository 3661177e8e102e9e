package wire

// RequestLen and ResponseLen are octets.
const (
	RequestLen  = 64
	ResponseLen = 32
)

// MaxInline is how many octets may follow a request.
const MaxInline = 16 << 10

// Flags modify a request.
type Flags uint16

// The flags.
const (
	Fence   Flags = 1 << 0
	Barrier Flags = 1 << 1
	Durable Flags = 1 << 2
	Inline  Flags = 1 << 3 // the octets follow
	Relaxed Flags = 1 << 4 // need not wait for those before it on a strict handle
	Again   Flags = 1 << 5 // sent before, with this tag, on an earlier connection of the session: it is done once. New requests come behind those
)

// may are the flags of an operation.
var may = [...]Flags{
	List: 0, Info: Inline,
	Read: Fence | Barrier | Relaxed, Write: Fence | Barrier | Durable | Inline | Relaxed | Again, Flush: Fence | Barrier | Relaxed,
	Swap: Fence | Barrier | Durable | Relaxed | Again, Add: Fence | Barrier | Durable | Relaxed | Again,
	Discard: Fence | Barrier | Durable | Relaxed | Again, Detach: 0,
}

// Request is a request: LIST and later operations.
//
//	0   b1, operation, flags (2)
//	4   tag (4): the client's, unique while it waits. Who repeats requests (Again) does not come back to a tag within 2^25 requests
//	8   handle (4)
//	c   length (4)
//	10  offset in the partition (8)
//	18  STag of the buffer (4): 0 if it is in the header of the DDP message, or there is no buffer
//	1c  0 (4)
//	20  tagged offset of the buffer (8)
//	28  operands (8, 8): what is compared or added; what replaces it
//	38  0 (8)
type Request struct {
	Op           Op
	Flags        Flags
	Tag          uint32
	Handle       uint32
	Length       uint32
	Offset       uint64 // LIST: how many partitions to skip
	STag         uint32
	TO           uint64
	Compare, New uint64 // ADD: New is what is added, and is sent as the first operand
}

// AppendTo appends the 64 octets.
func (r *Request) AppendTo(b []byte) []byte {
	b = append(b, Magic, byte(r.Op))
	b = be.AppendUint16(b, uint16(r.Flags))
	b = be.AppendUint32(b, r.Tag)
	b = be.AppendUint32(b, r.Handle)
	b = be.AppendUint32(b, r.Length)
	b = be.AppendUint64(b, r.Offset)
	b = be.AppendUint32(b, r.STag)
	b = be.AppendUint32(b, 0)
	b = be.AppendUint64(b, r.TO)
	first, second := r.Compare, r.New
	if r.Op == Add {
		first, second = r.New, 0
	}
	b = be.AppendUint64(b, first)
	b = be.AppendUint64(b, second)
	return be.AppendUint64(b, 0)
}

// ParseRequest reads a request and checks all that can be seen of it alone. data is what follows it, a part of b.
func ParseRequest(b []byte) (r Request, data []byte, err error) {
	if len(b) < RequestLen {
		return r, nil, errShort
	}
	o, isAnswer, err := Kind(b)
	switch {
	case err != nil:
		return r, nil, err
	case isAnswer || o < List:
		return r, nil, errOp
	}
	r = Request{
		Op: o, Flags: Flags(be.Uint16(b[2:])), Tag: be.Uint32(b[4:]), Handle: be.Uint32(b[8:]), Length: be.Uint32(b[12:]),
		Offset: be.Uint64(b[16:]), STag: be.Uint32(b[24:]), TO: be.Uint64(b[32:]),
		Compare: be.Uint64(b[40:]), New: be.Uint64(b[48:]),
	}
	data = b[RequestLen:]
	if o == Add {
		r.Compare, r.New = r.New, r.Compare
	}
	want := 0
	if r.Flags&Inline != 0 {
		want = int(min(r.Length, MaxInline+1))
	}
	switch {
	case r.Flags&^may[o] != 0:
		return r, nil, errFlags
	case be.Uint32(b[28:]) != 0 || be.Uint64(b[56:]) != 0:
		return r, nil, errReserved
	case len(data) != want || want > MaxInline:
		return r, nil, errLength
	case o != Swap && r.Compare != 0 || o != Swap && o != Add && r.New != 0:
		return r, nil, errReserved
	case (o != Read && o != Write || want > 0) && (r.STag != 0 || r.TO != 0):
		return r, nil, errReserved
	case r.STag == 0 && r.TO != 0:
		return r, nil, errReserved
	case (o == Swap || o == Add) && r.Length != 8 || (o == List || o == Detach) && r.Length != 0:
		return r, nil, errLength
	case (o == Info || o == Detach) && r.Offset != 0 || (o == List || o == Info) && r.Handle != 0:
		return r, nil, errReserved
	}
	return r, data, nil
}

// Response answers a request.
//
//	0   b1, operation + 80, status (2)
//	4   tag (4)
//	8   octets done (4)
//	c   credits from now on (4)
//	10  number of the write, old value, or offset of the fault (8)
//	18  watermark (8)
type Response struct {
	Op      Op
	Status  Status
	Tag     uint32
	Done    uint32 // LIST, INFO: octets that follow
	Credits uint32 // how many requests may be without a response
	Value   uint64 // LIST: how many partitions there are
	Durable uint64
}

// AppendTo appends the 32 octets.
func (r *Response) AppendTo(b []byte) []byte {
	b = append(b, Magic, byte(r.Op)|answer)
	b = be.AppendUint16(b, uint16(r.Status))
	b = be.AppendUint32(b, r.Tag)
	b = be.AppendUint32(b, r.Done)
	b = be.AppendUint32(b, r.Credits)
	b = be.AppendUint64(b, r.Value)
	return be.AppendUint64(b, r.Durable)
}

// ParseResponse reads a response. data is what follows it, a part of b.
func ParseResponse(b []byte) (r Response, data []byte, err error) {
	if len(b) < ResponseLen {
		return r, nil, errShort
	}
	o, isAnswer, err := Kind(b)
	switch {
	case err != nil:
		return r, nil, err
	case !isAnswer || o < List:
		return r, nil, errOp
	}
	r = Response{
		Op: o, Status: Status(be.Uint16(b[2:])), Tag: be.Uint32(b[4:]), Done: be.Uint32(b[8:]), Credits: be.Uint32(b[12:]),
		Value: be.Uint64(b[16:]), Durable: be.Uint64(b[24:]),
	}
	data = b[ResponseLen:]
	switch {
	case r.Status >= statuses:
		return r, nil, errStatus
	case (o == List || o == Info) && uint64(len(data)) != uint64(r.Done) || o != List && o != Info && len(data) > 0:
		return r, nil, errLength
	}
	return r, data, nil
}
