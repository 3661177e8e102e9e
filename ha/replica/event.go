package replica

import "time"

// Event is what happens to a node.
type Event interface{ event() }

type (
	// Tick comes several times per Heartbeat.
	Tick struct{}
	// Up: there is a connection with Peer, on which Sends arrive once and in order.
	Up struct{ Peer ID }
	// Down: the connection has ended. What was on its way may be lost, and Posts may have been placed in part.
	Down struct{ Peer ID }
	// Message came over the connection.
	Message struct {
		From ID
		Msg  Msg
	}
	// Rang: a Post has been placed, in the memory that was granted to From.
	Rang struct {
		From   ID
		Stream uint64
		Recs   []Record
		Bell   Bell
	}
	// BeatFrom and EchoFrom are datagrams: they may be lost, late, doubled and out of order.
	BeatFrom struct {
		From ID
		Beat Beat
	}
	EchoFrom struct {
		From ID
		Echo Echo
	}
	// There: the machine of Peer has taken or brought something of its connections Ago before now, though perhaps nothing whole. It comes
	// for those of Core.Doubted, if at all.
	There struct {
		Peer ID
		Ago  time.Duration
	}
	// Agreed: consensus has this view. It may come late and more than once.
	Agreed struct{ View View }

	// Reserve asks for Len bytes of the heap, at most half of it. The answer has Addr. When the data is there, Write or Swap follows with
	// the same ID, or Cancel. If the answer Moved comes instead of one to these, the memory is gone.
	Reserve struct {
		ID  uint64
		Len int64
	}
	// Cancel gives reserved memory back, and ends any other request of a host that waits. It has no answer, and most often the request has
	// none either. What has its place in the order is done.
	Cancel struct{ ID uint64 }
	// Write is answered when W members hold it.
	Write struct {
		ID       uint64
		Off, Len int64
		Addr     int64
		Sum      uint32
		Key      uint64 // of a COMPARE AND WRITE that the edge does, see [Core.Did]; 0: it is none
		Atomic   bool
		Durable  bool // a Flush follows: all have it durable as soon as they can
	}
	// Zero makes a range read as zeroes.
	Zero struct {
		ID       uint64
		Off, Len int64
		Durable  bool // the same
	}
	// Grow makes the store at Off Size bytes large. It is answered when all of S have done that; the host may use what
	// is new from then on.
	Grow struct {
		ID        uint64
		Off, Size int64
	}
	// Read is answered when the bytes have been read, by the work Read, and were the newest at some moment since.
	Read struct {
		ID       uint64
		Off, Len int64
	}
	// Flush is answered when W disks have everything that was answered before, durably and marked, or all disks of S have it.
	Flush struct{ ID uint64 }
	// Swap is COMPARE AND WRITE. The comparison is the work Compare, the data for it are the edge's.
	Swap struct {
		ID       uint64
		Key      uint64
		Off, Len int64
		Sum      uint32
	}
	// Verify compares the members of S. Found tells of each range that differs, and Answer comes at the end. With Repair
	// a range is repaired where it is known who is right: those that Trust names, otherwise the majority, or the only
	// ones whose disks can read it.
	Verify struct {
		ID     uint64
		Repair bool
		Trust  Nodes
	}
	// StopVerify has a verification under way end: what it has begun is done, and nothing more.
	StopVerify struct{}
	// Switch asks the primary to hand over. It is answered when To is primary: Good; Refused: To is this node, not in
	// sync or drained, or another Switch is under way; Failed: To has not got all in time, and this node goes on.
	Switch struct {
		ID uint64
		To ID
	}
	// Drained are the nodes that are to serve nothing: they do not stand while another member of S may, and hand over.
	Drained struct{ Nodes Nodes }
	// Pace says how fast copies are brought level, and compared, while this node is the primary: Rate is the most, in bytes a second, and 0 is
	// no bound; Min is the least, though hosts be busy. With Min 0, and before the first Pace, nothing gives way to hosts.
	Pace struct{ Rate, Min int64 }

	// Done: a work has ended. Failed: the disk has refused it. Equal is the result of a Compare, Sum that of a Load
	// or Pull, Digest that of a Hash.
	Done struct {
		ID     uint64
		Failed bool
		Equal  bool
		Sum    uint32
		Digest Digest
	}
)

func (Tick) event()       {}
func (Up) event()         {}
func (Down) event()       {}
func (There) event()      {}
func (Message) event()    {}
func (Rang) event()       {}
func (BeatFrom) event()   {}
func (EchoFrom) event()   {}
func (Agreed) event()     {}
func (Reserve) event()    {}
func (Cancel) event()     {}
func (Write) event()      {}
func (Zero) event()       {}
func (Grow) event()       {}
func (Read) event()       {}
func (Flush) event()      {}
func (Swap) event()       {}
func (Verify) event()     {}
func (StopVerify) event() {}
func (Switch) event()     {}
func (Drained) event()    {}
func (Pace) event()       {}
func (Done) event()       {}

// Action is what is to be done. Actions are done in their order. Those of each I/O (Post, SendAck, SendBeat, SendEcho, Answer,
// Apply, ReadFor) are pointers, and valid until the next Step.
type Action interface{ action() }

type (
	// Post writes data and records into To's memory, then rings Bell. It is lost if To has not granted Stream. Recs are
	// valid until the next Step.
	Post struct {
		To     ID
		Stream uint64
		Recs   []Record
		Bell   Bell
	}
	// Send is a message over the connection.
	Send struct {
		To  ID
		Msg Msg
	}
	// SendAck is a Send of an Ack.
	SendAck struct {
		To  ID
		Ack Ack
	}
	// SendBeat and SendEcho are datagrams.
	SendBeat struct {
		To   ID
		Beat Beat
	}
	SendEcho struct {
		To   ID
		Echo Echo
	}
	// Grant lets To write into this node's memory, as Stream. It replaces what To had.
	Grant struct {
		To     ID
		Stream uint64
	}
	// Cut takes a grant away. Once it is done nothing of To is placed any more.
	Cut struct{ To ID }
	// Drop ends the connection, and makes another: whatever the peer believes, it begins anew.
	Drop struct{ Peer ID }
	// Propose asks consensus for a view. Nothing tells of a refusal but another view.
	Propose struct{ View View }
	// Answer ends a host's request, or says where its memory is.
	Answer struct {
		ID     uint64
		Status Status
		Addr   int64  // of a Reserve
		Seq    uint64 // of what writes: the record's
	}

	// Apply writes a record to the disk: the data at Addr, or zeroes. Of KindGrow and KindFit: the store ends with the
	// record's range from now on, which reads as zeroes, both durably.
	Apply struct {
		ID  uint64
		Rec Record
	}
	// ReadFor reads what the request Req wants, from the disk into the host's memory.
	ReadFor struct {
		ID, Req  uint64
		Off, Len int64
	}
	// Deliver copies what is at Addr to where the request Req wants that range: the disk refuses to read all of what it wants.
	// At the end of that the request is answered, or a Compare follows.
	Deliver struct {
		Req            uint64
		Off, Len, Addr int64
	}
	// Compare compares the disk with what the request Req expects; if the range was Delivered, what came with that.
	Compare struct {
		ID, Req   uint64
		Off, Len  int64
		Delivered bool
	}
	// Load reads from the disk into the heap. Of Len the last Behind bytes lie behind the end of the store: they are zeroes, and not
	// read.
	Load struct {
		ID                     uint64
		Off, Len, Addr, Behind int64
	}
	// Pull reads the other node's memory into this node's, at the same address.
	Pull struct {
		ID        uint64
		From      ID
		Addr, Len int64
	}
	// Hash reads from the disk, and hashes.
	Hash struct {
		ID       uint64
		Off, Len int64
	}
	// Lost tells of a range that this primary cannot read, and that no other member can: To, which is brought level, goes without it.
	Lost struct {
		To       ID
		Off, Len int64
	}
	// Found tells of a range in which Odd differ from the others; if it is not Known who is right, Odd are all. The disks
	// of Unreadable refuse to read it. Repair: the range is repaired.
	Found struct {
		ID              uint64
		Off, Len        int64
		Odd, Unreadable Nodes
		Known, Repair   bool
	}
	// Sync makes durable what was applied.
	Sync struct{ ID uint64 }
	// Save changes the metadata. It is durable when it is done: first what it sets, then what it clears.
	Save struct {
		ID      uint64
		Mark    uint64
		Set     []int     // regions
		Clear   []int     // regions
		Bitmaps *[16]Bits // nil: as they are, and View as well
		View    View
		Missing *Bits // nil: as they are
		Known   bool  // Saved.Unknown ends: a primary has begun to bring the copy level, and Regions have all of it
	}
)

func (Post) action()     {}
func (Send) action()     {}
func (SendAck) action()  {}
func (SendBeat) action() {}
func (SendEcho) action() {}
func (Grant) action()    {}
func (Cut) action()      {}
func (Drop) action()     {}
func (Propose) action()  {}
func (Answer) action()   {}
func (Apply) action()    {}
func (ReadFor) action()  {}
func (Deliver) action()  {}
func (Compare) action()  {}
func (Load) action()     {}
func (Pull) action()     {}
func (Hash) action()     {}
func (Found) action()    {}
func (Lost) action()     {}
func (Sync) action()     {}
func (Save) action()     {}

// Status is how a request has ended.
type Status uint8

const (
	Good       Status = iota
	Moved             // this node is not the primary (any more); what the request wrote may have been done, or not
	Miscompare        // of a Swap
	Failed            // no disk of S can read it; of a Switch: it was given up
	Refused           // a store cannot have that size; copies are being compared already; a Switch to nobody who can
)

// Bell follows the records of a Post.
type Bell struct {
	View  View
	First uint64 // sequence number of the first record, if there are any
	Trim  uint64 // all members of S have the records up to it durable
	Freed uint64 // all have applied the records up to it: their memory is used again
	Sync  uint64 // make durable what is up to it
	// Synced says that Ack.Synced is looked at: the mark may wait.
	Synced bool
	Start  *Start // the first bell to a copy outside S
}

// Start is what a copy outside S has to know when its stream of records begins, for the day when it is a primary.
type Start struct {
	Last    uint64 // the stream begins behind it
	Results []Result
	Bitmaps [16]Bits // of the copies outside S
	Early   Bits     // granules of records up to Last that may not be durable on all of S
}

// Beat says that the primary lives. No grows.
type Beat struct {
	No   uint64
	View View
}

// Echo answers a Beat. OK: its sender follows the primary, and has given no promise to another.
type Echo struct {
	No   uint64
	View View
	OK   bool
}

// Msg is a message between nodes.
type Msg interface{ msg() }

type (
	// Hello is a member's, or another copy's: from here on it takes records of the primary.
	Hello struct {
		Version  uint64
		Stream   uint64
		Memory   bool   // the log is as it was: a member that lacks it is none any more
		Last     uint64 // of a member: the newest record that it has
		Applied  uint64
		Durable  uint64
		Suspects Bits // of a copy outside S: granules in which it may differ by its own doing
		Sizes    []int64
	}
	// Ack says how far a stream has come.
	Ack struct {
		Stream                     uint64
		Received, Applied, Durable uint64
		Synced                     uint64 // the disk has it durable, and the mark may not; 0: not told
		Failed                     bool   // the disk refuses, or hangs
	}
	// Ask asks for a promise, Promise gives it, and Deny has a newer view instead.
	Ask     struct{ Version uint64 }
	Promise struct {
		Version uint64
		Stream  uint64 // the candidate may write
		Memory  bool
		Last    uint64 // of a node without memory: what is durable on its disk
		Applied uint64
		Durable uint64
	}
	Deny struct{ View View }
	// Lend asks a member to read a range into its memory at Addr, and Lent says that it has.
	Lend struct {
		Stream, Job    uint64
		Off, Len, Addr int64
	}
	Lent struct {
		Stream, Job uint64
		Sum         uint32
		Failed      bool
	}
	// Hashed is a member's answer to a record of KindCheck.
	Hashed struct {
		Seq    uint64
		Digest Digest
		Failed bool
	}
	// Fetch asks a member for its records from First on.
	Fetch struct {
		Version, Stream, First uint64
	}
)

func (Hello) msg()   {}
func (Ack) msg()     {}
func (Ask) msg()     {}
func (Promise) msg() {}
func (Deny) msg()    {}
func (Fetch) msg()   {}
func (Lend) msg()    {}
func (Lent) msg()    {}
func (Hashed) msg()  {}
