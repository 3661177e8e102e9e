package rdma

import "errors"

// errEnded is why a connection has ended that the peer has ended in good order, while this end still had something for it.
var errEnded = errors.New("the peer has ended it, and did not wait for its answers")

// Reason returns why a connection has ended. heard is the first error that its owner has had from a method of the queue
// pair or from a completion, and told is what Disconnected was called with; either may be nil. A method that has come too
// late says only that the connection has ended (ErrDisconnected), so anything else says more.
func Reason(heard, told error) error {
	switch {
	case heard == nil || told != nil && errors.Is(heard, ErrDisconnected):
		return told
	case errors.Is(heard, ErrDisconnected):
		return errEnded
	}
	return heard
}
