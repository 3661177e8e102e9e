package rdma

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
	Binds         uint64
	Invalidations uint64 // local and remote
	Advertises    uint64 // sent and received
	Closes        uint64 // sent and received

	Doorbells   uint64 // times that the provider was set to work: system calls that send
	MessagesOut uint64
	MessagesIn  uint64
	BytesOut    uint64 // payload
	BytesIn     uint64
	Reads       uint64 // Read Requests sent
	Terminates  uint64 // Terminate messages sent and received
}

// Sub returns what has been added to c since o.
func (c Counters) Sub(o Counters) Counters {
	c.Posts -= o.Posts
	c.Works -= o.Works
	c.ReceivePosts -= o.ReceivePosts
	c.Receives -= o.Receives
	c.Polls -= o.Polls
	c.Completions -= o.Completions
	c.Events -= o.Events
	c.Registrations -= o.Registrations
	c.Binds -= o.Binds
	c.Invalidations -= o.Invalidations
	c.Advertises -= o.Advertises
	c.Closes -= o.Closes
	c.Doorbells -= o.Doorbells
	c.MessagesOut -= o.MessagesOut
	c.MessagesIn -= o.MessagesIn
	c.BytesOut -= o.BytesOut
	c.BytesIn -= o.BytesIn
	c.Reads -= o.Reads
	c.Terminates -= o.Terminates
	return c
}
