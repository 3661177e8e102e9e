// Package agent is what host and guest say to each other over a virtio serial port: one
// JSON value a line.
package agent

// Request asks the guest to run a command. One that begins with "@" is the guest's own.
type Request struct {
	ID   int
	Argv []string
}

// Message is what a command says: a line of its output, or, with Done, that it has ended.
type Message struct {
	ID   int
	Line string
	Done bool
	Exit int
}
