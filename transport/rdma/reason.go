package rdma

import "errors"

// Reason returns why a connection has ended. heard is the first error that its owner has had from a method of the queue
// pair or from a completion, and told is what Disconnected was called with; either may be nil. A method that has come too
// late says only that the connection has ended (ErrDisconnected): why is what Disconnected was told, nil if the peer has
// ended it in good order.
func Reason(heard, told error) error {
	if heard == nil || errors.Is(heard, ErrDisconnected) {
		return told
	}
	return heard
}
