// Package agent defines the messages between host and guest over a virtio serial port: one JSON value in
// each line.
package agent

// Request asks the guest to run a command. Commands that begin with "@" are built into test/vm/guest.
type Request struct {
	ID   int
	Argv []string
}

// Message is a line of the output of a command, or, with Done, says that the command has ended.
type Message struct {
	ID   int
	Line string
	Done bool
	Exit int
}
