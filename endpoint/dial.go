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
	below, release, err := deviceOf(u, o)
	if err != nil {
		return nil, "", nil, err
	}
	r := remote.Open(remote.Config{Device: below, Name: u.User, Secret: u.Secret, Patience: o.Retry})
	return r, u.Address + "/" + u.Name, func() error { return errors.Join(r.Close(), release()) }, nil
}

// deviceOf returns the device that leads to another machine, and what closes it if it is the library's.
func deviceOf(u URL, o Options) (d rdma.Device, release func() error, err error) {
	switch {
	case o.Network != nil:
		return o.Network, func() error { return nil }, nil
	case u.Scheme == OneShot:
		d, err = iwarp.Open(iwarp.Config{})
	default:
		d, err = verbs.OpenOnly(verbs.Config{Name: u.Device})
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%v: %w", u, err)
	}
	return d, d.Close, nil
}
