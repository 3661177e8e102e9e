package initiator

import (
	"errors"
	"fmt"
	"log/slog"

	"oneshot/iscsi/chap"
	"oneshot/iscsi/pdu"
	"oneshot/transport/rdma"
)

// Credentials are the name and the secret of one direction of CHAP.
type Credentials = chap.Credentials

// Flow is how memory is made reachable for the target, over RDMA.
type Flow uint8

const (
	// FlowDefault is one-shot where the URL asks for it, and otherwise FlowWindow.
	FlowDefault Flow = iota
	// FlowConventional registers memory for each command, binds a memory window to it, sends
	// the command, unbinds and deregisters, each step after the one before: five hand-overs
	// to the device and five back.
	FlowConventional
	// FlowRegister is the same without a window: three and three.
	FlowRegister
	// FlowWindow leaves memory registered; a window is bound in the same post that sends the
	// command, and the target's answer invalidates it: one-shot RDMA (profile P2) for devices that
	// know none.
	FlowWindow
	// FlowStatic leaves memory registered, and reachable for the target as long as the session
	// lives: what is left of FlowWindow on devices without windows, which take to it by themselves.
	FlowStatic
	// FlowOneShot advertises memory in the header of the command, and the answer closes it.
	FlowOneShot
)

var flowNames = [...]string{"default", "conventional", "register", "window", "static", "one-shot"}

// String returns the flow's name.
func (f Flow) String() string { return flowNames[f] }

// ParseFlow is the reverse of String.
func ParseFlow(s string) (Flow, error) {
	for f, name := range flowNames {
		if s == name {
			return Flow(f), nil
		}
	}
	return 0, fmt.Errorf("flow %q: there are default, conventional, register, window, static and one-shot", clip(s))
}

// Options are what a URL does not say. Zero values stand for what is written with them.
type Options struct {
	InitiatorName string // DefaultName
	// ISID is the initiator's part of the session's name (RFC 7143 §11.12.5). The zero value stands
	// for a random one. A login with the name and the ISID of a session that the target still has
	// ends that session first: the commands of a lost connection are over when Dial returns.
	ISID  pdu.ISID
	Depth int // commands outstanding at most: 128
	// Immediate is how many bytes of data a command takes along at most, if the target takes
	// as many. 0: 8 KiB; -1: none.
	Immediate int
	Flow      Flow
	// Device is the RDMA device. nil: one of user-space iWARP for each session, or the one that the
	// URL names.
	Device rdma.Device
	// Opcodes asks for the encoding of one-shot with opcodes of its own (FIG 5A), rather than
	// the one with flags (FIG 5B).
	Opcodes bool
	// Delivered, unless it is nil, is called after each batch of calls of Done, except for those by Start,
	// by the same goroutine: what they have collected can be worked off at once. It must not block.
	Delivered func()
	Logger    *slog.Logger // none
}

// DefaultName is the iSCSI name of initiators that are given none.
const DefaultName = "iqn.2026-11.example.oneshot:initiator"

const (
	defaultDepth     = 128
	maxDepth         = 4096
	defaultImmediate = 8 << 10
)

func (o *Options) complete(u *URL) error {
	if o.InitiatorName == "" {
		o.InitiatorName = DefaultName
	}
	switch {
	case o.Depth == 0:
		o.Depth = defaultDepth
	case o.Depth < 1 || o.Depth > maxDepth:
		return fmt.Errorf("a depth of %d: 1 to %d commands can be outstanding", o.Depth, maxDepth)
	}
	if m := u.Mutual; m != nil && (m.Name == "" || len(m.Secret) == 0) {
		return errors.New("the target has to prove who it is by a name and a secret, and one of them is missing (target_user, target_password)")
	}
	if o.Immediate == 0 {
		o.Immediate = defaultImmediate
	}
	o.Immediate = min(max(o.Immediate, 0), firstBurst) // over RDMA each command in Depth has room for as much
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o.flow(u)
}

func (o *Options) flow(u *URL) error {
	switch {
	case u.Transport == TCP && o.Flow != FlowDefault:
		return fmt.Errorf("the flow %v is one of RDMA; the URL says %v", o.Flow, u.Transport)
	case u.Transport == OneShot && o.Flow == FlowDefault:
		o.Flow = FlowOneShot
	case (u.Transport == ISER || u.Transport == ISERVerbs) && o.Flow == FlowDefault:
		o.Flow = FlowWindow
	case u.Transport == ISERVerbs && o.Flow == FlowOneShot:
		return errors.New("STags in the RDMA header are for oneshot+iwarp://; over the kernel's devices the flow window is one-shot, with the STag in the iSER header")
	case u.Transport == OneShot && o.Flow != FlowOneShot:
		return fmt.Errorf("the flow %v needs iSER; the URL says %v", o.Flow, u.Transport)
	}
	if u.Transport != TCP && (u.HeaderDigest || u.DataDigest) {
		return errors.New("digests are of TCP: over RDMA its own CRC32C covers every byte")
	}
	return nil
}
