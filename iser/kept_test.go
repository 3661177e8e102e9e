//go:build verbs && cgo && linux

package iser

import "oneshot/transport/rdma"

// keptDevice is a device that its users do not close.
type keptDevice struct{ rdma.Device }

func (keptDevice) Close() error { return nil }
