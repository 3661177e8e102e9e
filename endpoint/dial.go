package endpoint

import (
	"cmp"
	"errors"
	"fmt"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
	"oneshot/transport/rdma/nic"
	"oneshot/transport/rdma/remote"
	"oneshot/transport/rdma/verbs"
)

// dial returns a device that reaches u, the address for its Connect, and a function that closes the device.
func dial(u URL, o Options) (d rdma.Device, addr string, shut func() error, err error) {
	if u.Scheme == Local && o.Device != nil {
		return o.Device, u.Name, func() error { return nil }, nil
	}
	below, release, err := deviceOf(u, o)
	if err != nil {
		return nil, "", nil, err
	}
	r := remote.Open(remote.Config{Device: below, Name: u.User, Secret: u.Secret, Patience: o.Retry})
	return r, u.address() + "/" + u.Name, func() error { return errors.Join(r.Close(), release()) }, nil
}

// address is that of the service, for the device that leads there. A card of the daemon leads to no other, whatever is said.
func (u *URL) address() string { return cmp.Or(u.Address, "local") }

// deviceOf returns the device that leads to another process or machine, and what closes it if it is the library's.
func deviceOf(u URL, o Options) (d rdma.Device, release func() error, err error) {
	switch {
	case o.Network != nil:
		return o.Network, func() error { return nil }, nil
	case u.Scheme == Local:
		d, err = nic.OpenLasting(nic.Config{Socket: cmp.Or(u.Socket, DefaultSocket), Server: "a daemon with a portal {transport: local, serve: partitions}"})
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
