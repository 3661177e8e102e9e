package endpoint

import (
	"errors"
	"fmt"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
	"oneshot/transport/rdma/remote"
	"oneshot/transport/rdma/verbs"
)

// dial returns a device that reaches u, the address for its Connect, and a function that closes the device.
func dial(u URL, o Options) (d rdma.Device, addr string, shut func() error, err error) {
	if u.Scheme == Local {
		if o.Device == nil {
			return nil, "", nil, fmt.Errorf("%v: a store of this host is reached by the process that serves it, with its device (Options.Device); others reach it over loopback, with oneshot+iwarp://", u)
		}
		return o.Device, u.Name, func() error { return nil }, nil
	}
	below, err := deviceOf(u)
	if err != nil {
		return nil, "", nil, fmt.Errorf("%v: %w", u, err)
	}
	r := remote.Open(remote.Config{Device: below, Name: u.User, Secret: u.Secret, Patience: o.Retry})
	return r, u.Address + "/" + u.Name, func() error { return errors.Join(r.Close(), below.Close()) }, nil
}

// deviceOf opens the device that leads to another machine.
func deviceOf(u URL) (rdma.Device, error) {
	if u.Scheme == OneShot {
		return iwarp.Open(iwarp.Config{})
	}
	return verbs.OpenOnly(verbs.Config{Name: u.Device})
}
