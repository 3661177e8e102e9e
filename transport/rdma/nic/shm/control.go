package shm

import "encoding/binary"

// Sizes of the rings of a driver.
const (
	Hints       = 4096
	Completions = 4096
	Commands    = 256

	hintLen       = 4
	completionLen = 32
	hintsAt       = 2 * PageSize
	completionsAt = hintsAt + Hints*hintLen
	commandsAt    = completionsAt + Completions*completionLen
	ControlLen    = commandsAt + Commands*SlotLen // octets of the segment
	cacheLine     = 64
	firstQueue    = 1
	CommandQueue  = 0                  // number of the queue of commands
	MaxQueues     = Hints - firstQueue // a hint for each fits
)

// Control is the segment of a driver.
type Control struct {
	seg *Segment

	// The driver's words.
	HintTail, CompletionHead, CommandTail *Word
	// The card's words. Stalled is 1 while the card has completions for which there is no room.
	HintHead, CompletionTail, Stalled *Word

	// Driver and Card say who sleeps.
	Driver, Card Sleep
}

// NewControl lays out a segment of ControlLen octets, which it owns from then on.
func NewControl(s *Segment) *Control {
	b := s.Bytes()
	return &Control{
		seg:      s,
		HintTail: word(b, 0), CompletionHead: word(b, cacheLine), CommandTail: word(b, 2*cacheLine),
		HintHead: word(b, PageSize), CompletionTail: word(b, PageSize+cacheLine), Stalled: word(b, PageSize+2*cacheLine),
		Driver: Sleep{word: word(b, 3*cacheLine)}, Card: Sleep{word: word(b, PageSize+3*cacheLine)},
	}
}

// Hint returns the word of a hint.
func (c *Control) Hint(pos uint32) *Word { return word(c.seg.b, hintsAt+int(pos%Hints)*hintLen) }

// Command returns the slot of a command.
func (c *Control) Command(pos uint32) []byte {
	return c.seg.b[commandsAt+int(pos%Commands)*SlotLen:][:SlotLen:SlotLen]
}

// Close unmaps the segment.
func (c *Control) Close() error { return c.seg.Close() }

// Sleep is the sleep of one side, in a word of its own, which is odd while that side sleeps. One goroutine of that side at
// a time calls Begin and End, one of the other side Wakes.
type Sleep struct {
	word  *Word
	woken uint32 // the sleep from which the other side was woken last
}

// Begin says that this side sleeps, after one more look. Called again, it begins another sleep, of which the other side
// has woken nobody yet: what it was woken for may have been taken by somebody else.
func (s *Sleep) Begin() { s.word.Store((s.word.Load() + 1) | 1) }

// End says that it is awake.
func (s *Sleep) End() { s.word.Store((s.word.Load() | 1) + 1) }

// Wakes reports whether the other side has to be woken: once for each of its sleeps.
func (s *Sleep) Wakes() bool {
	w := s.word.Load()
	if w&1 == 0 || w == s.woken {
		return false
	}
	s.woken = w
	return true
}

// Kind says what an entry of the ring of completions is.
type Kind uint8

const (
	KindCompletion Kind = iota + 1 // of a request or receive
	KindAnswer                     // to a command
	KindRevoked                    // nothing refers any more to the memory of an STag that was revoked
)

// Completion is an entry of the ring of completions.
//
//	0  kind, operation, status, flags
//	4  queue pair
//	8  position of the request, token of the receive, tag of the command
//	16 STag
//	20 octets
//	24 zero
type Completion struct {
	Kind      Kind
	Op        uint8
	Status    uint8
	Flags     uint8
	QueuePair uint32
	Token     uint64
	STag      uint32
	Bytes     uint32
}

// Put writes the completion at pos.
func (c *Control) Put(pos uint32, x *Completion) {
	b := c.completion(pos)
	b[0], b[1], b[2], b[3] = byte(x.Kind), x.Op, x.Status, x.Flags
	binary.NativeEndian.PutUint32(b[4:], x.QueuePair)
	binary.NativeEndian.PutUint64(b[8:], x.Token)
	binary.NativeEndian.PutUint32(b[16:], x.STag)
	binary.NativeEndian.PutUint32(b[20:], x.Bytes)
	binary.NativeEndian.PutUint64(b[24:], 0)
}

// Get reads the completion at pos.
func (c *Control) Get(pos uint32, x *Completion) {
	var b [completionLen]byte
	copy(b[:], c.completion(pos))
	*x = Completion{
		Kind: Kind(b[0]), Op: b[1], Status: b[2], Flags: b[3],
		QueuePair: binary.NativeEndian.Uint32(b[4:]), Token: binary.NativeEndian.Uint64(b[8:]),
		STag: binary.NativeEndian.Uint32(b[16:]), Bytes: binary.NativeEndian.Uint32(b[20:]),
	}
}

func (c *Control) completion(pos uint32) []byte {
	return c.seg.b[completionsAt+int(pos%Completions)*completionLen:][:completionLen:completionLen]
}
