package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Flags of a device ("Transmission flags").
const (
	FlagHasFlags     = 1 << 0
	FlagReadOnly     = 1 << 1
	FlagSendFlush    = 1 << 2
	FlagSendFUA      = 1 << 3
	FlagSendTrim     = 1 << 5
	FlagCanMultiConn = 1 << 8
)

// Setting is what the kernel is told of a device.
type Setting struct {
	Index     int // of the device; -1: any that is free
	Size      int64
	BlockSize int
	// Timeout is how long a request may take; 0: for ever. Beyond it a device with several sockets gives up
	// the one that it went through.
	Timeout time.Duration
	// DeadTime is how long requests wait for a socket when all are dead.
	DeadTime time.Duration
	Flags    uint64
	Sockets  []int  // descriptors, which the kernel keeps open by itself
	Backend  string // what a later process has to name to take the device over
}

// Kernel is the driver. Netlink is it; tests have another.
type Kernel interface {
	// Connect makes a device and returns its index.
	Connect(s Setting) (int, error)
	// Reconfigure changes a device: it gets sockets in the place of dead ones, or, without sockets, the size.
	Reconfigure(s Setting) error
	// Disconnect ends a device.
	Disconnect(index int) error
}

// Netlink is the driver nbd of this kernel, which it speaks to by generic netlink. It wants CAP_SYS_ADMIN.
type Netlink struct{}

// The family "nbd" (linux/nbd-netlink.h).
const (
	genlName    = "nbd"
	genlVersion = 1

	cmdConnect     = 1
	cmdDisconnect  = 2
	cmdReconfigure = 3

	attrIndex           = 1
	attrSizeBytes       = 2
	attrBlockSizeBytes  = 3
	attrTimeout         = 4 // seconds
	attrServerFlags     = 5
	attrSockets         = 7
	attrDeadConnTimeout = 8 // seconds
	attrBackend         = 10

	sockItem = 1
	sockFD   = 1
)

// Connect implements Kernel.
func (Netlink) Connect(s Setting) (int, error) {
	answers, err := request(cmdConnect, append(s.attributes(),
		u64(attrSizeBytes, uint64(s.Size)), u64(attrBlockSizeBytes, uint64(s.BlockSize)),
		u64(attrTimeout, seconds(s.Timeout)), u64(attrDeadConnTimeout, seconds(s.DeadTime)), u64(attrServerFlags, s.Flags))...)
	switch {
	case errors.Is(err, unix.EBUSY):
		return 0, fmt.Errorf("nbd%d is in use: %w", s.Index, err)
	case err != nil:
		return 0, fmt.Errorf("the kernel's nbd does not connect: %w", err)
	}
	for _, b := range answers {
		if len(b) < nl.SizeofGenlmsg {
			continue
		}
		as, err := nl.ParseRouteAttr(b[nl.SizeofGenlmsg:])
		if err != nil {
			return 0, err
		}
		for _, a := range as {
			if a.Attr.Type == attrIndex && len(a.Value) >= 4 {
				return int(binary.NativeEndian.Uint32(a.Value)), nil
			}
		}
	}
	return 0, errors.New("the kernel's nbd connects, and does not say which device")
}

// Reconfigure implements Kernel.
func (Netlink) Reconfigure(s Setting) error {
	as := append(s.attributes(), u64(attrSizeBytes, uint64(s.Size)), u64(attrBlockSizeBytes, uint64(s.BlockSize)))
	if len(s.Sockets) > 0 {
		as = append(as, u64(attrTimeout, seconds(s.Timeout)), u64(attrDeadConnTimeout, seconds(s.DeadTime)))
	}
	_, err := request(cmdReconfigure, as...)
	switch {
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("nbd%d has living sockets: another process serves it: %w", s.Index, err)
	case err != nil:
		return fmt.Errorf("nbd%d is not reconfigured: %w", s.Index, err)
	}
	return nil
}

// Disconnect implements Kernel.
func (Netlink) Disconnect(index int) error {
	if _, err := request(cmdDisconnect, nl.NewRtAttr(attrIndex, nl.Uint32Attr(uint32(index)))); err != nil {
		return fmt.Errorf("nbd%d is not disconnected: %w", index, err)
	}
	return nil
}

// attributes are those of Connect and Reconfigure.
func (s *Setting) attributes() []nl.NetlinkRequestData {
	var as []nl.NetlinkRequestData
	if s.Index >= 0 {
		as = append(as, nl.NewRtAttr(attrIndex, nl.Uint32Attr(uint32(s.Index))))
	}
	if len(s.Sockets) > 0 {
		socks := nl.NewRtAttr(unix.NLA_F_NESTED|attrSockets, nil)
		for _, fd := range s.Sockets {
			item := socks.AddRtAttr(unix.NLA_F_NESTED|sockItem, nil)
			item.AddRtAttr(sockFD, nl.Uint32Attr(uint32(fd)))
		}
		as = append(as, socks)
	}
	return append(as, nl.NewRtAttr(attrBackend, nl.ZeroTerminated(s.Backend)))
}

func u64(attr int, v uint64) nl.NetlinkRequestData { return nl.NewRtAttr(attr, nl.Uint64Attr(v)) }

// seconds rounds up.
func seconds(d time.Duration) uint64 { return uint64((d + time.Second - 1) / time.Second) }

// request sends a command and returns the answers.
func request(command uint8, as ...nl.NetlinkRequestData) ([][]byte, error) {
	f, err := netlink.GenlFamilyGet(genlName)
	if err != nil {
		return nil, fmt.Errorf("the kernel's driver nbd is not there (modprobe nbd): %w", err)
	}
	r := nl.NewNetlinkRequest(int(f.ID), unix.NLM_F_ACK)
	r.AddData(&nl.Genlmsg{Command: command, Version: genlVersion})
	for _, a := range as {
		r.AddData(a)
	}
	return r.Execute(unix.NETLINK_GENERIC, 0)
}
