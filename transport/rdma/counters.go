package rdma

import "iter"

// Counters are what has crossed a device or queue pair. A crossing is one hand-over between
// the owner and the provider, whatever the number of requests in it; the counts per I/O are
// what one-shot RDMA is about.
type Counters struct {
	Posts         uint64 // calls of Post
	Works         uint64 // work requests in them
	ReceivePosts  uint64 // calls of PostReceive
	Receives      uint64 // receives in them
	Polls         uint64 // calls of Poll that found something
	Completions   uint64 // completions taken
	Events        uint64 // calls of event
	Registrations uint64
	// Deregistrations are regions that were given back; windows that were bound are among the
	// Invalidations.
	Deregistrations uint64
	Binds           uint64
	Invalidations   uint64 // local and remote
	Advertises      uint64 // sent and received
	Closes          uint64 // sent and received

	Doorbells uint64 // times that the provider was set to work: system calls that send
	// MessagesOut are messages that have left. Of a kernel's device these are the ones that it has taken: of
	// those that are under way when a connection ends nobody knows. So are BytesOut, Reads and Closes counted.
	MessagesOut uint64
	MessagesIn  uint64
	BytesOut    uint64 // payload
	BytesIn     uint64
	Reads       uint64 // Read Requests sent
	Terminates  uint64 // Terminate messages sent and received

	// Of a provider that looks for completions for a while before it sleeps (verbs), or for what is posted (the card of nic):
	// how often that found some and how often it did not, and how often it slept.
	PollingFound  uint64
	PollingInVain uint64
	Sleeps        uint64

	// Copies are the times that the provider, or a store in memory behind it, has copied payload with the
	// processor, one for each work request at most; BytesCopied are the bytes. What the kernel copies is
	// not among them.
	Copies      uint64
	BytesCopied uint64
}

// field is a count with its name.
type field struct {
	name  string
	value *uint64
}

// fields lists the counts in the order of the struct.
func (c *Counters) fields() [25]field {
	return [...]field{
		{"posts", &c.Posts},
		{"works", &c.Works},
		{"receive_posts", &c.ReceivePosts},
		{"receives", &c.Receives},
		{"polls", &c.Polls},
		{"completions", &c.Completions},
		{"events", &c.Events},
		{"registrations", &c.Registrations},
		{"deregistrations", &c.Deregistrations},
		{"binds", &c.Binds},
		{"invalidations", &c.Invalidations},
		{"advertises", &c.Advertises},
		{"closes", &c.Closes},
		{"doorbells", &c.Doorbells},
		{"messages_out", &c.MessagesOut},
		{"messages_in", &c.MessagesIn},
		{"bytes_out", &c.BytesOut},
		{"bytes_in", &c.BytesIn},
		{"read_requests", &c.Reads}, // "reads" are the system calls of TCP
		{"terminates", &c.Terminates},
		{"polling_found", &c.PollingFound},
		{"polling_in_vain", &c.PollingInVain},
		{"sleeps", &c.Sleeps},
		{"copies", &c.Copies},
		{"bytes_copied", &c.BytesCopied},
	}
}

// All yields every count with its name.
func (c Counters) All() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for _, f := range c.fields() {
			if !yield(f.name, *f.value) {
				return
			}
		}
	}
}

// Add returns the sum of both.
func (c Counters) Add(o Counters) Counters {
	more := o.fields()
	for i, f := range c.fields() {
		*f.value += *more[i].value
	}
	return c
}

// Sub returns what has been added to c since o.
func (c Counters) Sub(o Counters) Counters {
	old := o.fields()
	for i, f := range c.fields() {
		*f.value -= *old[i].value
	}
	return c
}
