package nvme

import "fmt"

// Status is the status field of a completion without its phase tag (Base 2.0 §3.3.3.2): the status code in bits
// 7:0, its type in 10:8, the retry delay in 12:11, MORE and DNR.
type Status uint16

// DNR says that the same command would fail again. Hosts retry commands whose status does not have it.
const DNR Status = 1 << 14

// More says that the log of errors has an entry about the command.
const More Status = 1 << 13

// RetryDelay1 asks the host to wait for the first Command Retry Delay Time before it repeats the command.
const RetryDelay1 Status = 1 << 11

// Code is the status without DNR, MORE and the retry delay: 100h times the type, plus the code.
func (s Status) Code() Status { return s & 0x7ff }

func (s Status) String() string {
	text := fmt.Sprintf("status %03xh", uint16(s.Code()))
	if s&DNR != 0 {
		text += ", do not retry"
	}
	return text
}

// Generic command statuses.
const (
	Success             Status = 0x00
	InvalidOpcode       Status = 0x01
	InvalidField        Status = 0x02
	DataTransferError   Status = 0x04
	InternalError       Status = 0x06
	Aborted             Status = 0x07
	AbortedByQueue      Status = 0x08
	FusedFailed         Status = 0x09 // the other command of the pair failed
	FusedMissing        Status = 0x0a
	InvalidNamespace    Status = 0x0b
	CommandSequence     Status = 0x0c
	DataSGLLength       Status = 0x0f
	SGLType             Status = 0x11
	SGLOffset           Status = 0x16
	HostIDFormat        Status = 0x18 // of other host identifiers than those of 16 bytes
	KeepAliveInvalid    Status = 0x1a
	AbortedByPreempt    Status = 0x1b
	SanitizeFailed      Status = 0x1c
	SanitizeInProgress  Status = 0x1d
	WriteProtected      Status = 0x20
	Interrupted         Status = 0x21
	TransientTransport  Status = 0x22
	LBAOutOfRange       Status = 0x80
	CapacityExceeded    Status = 0x81
	NamespaceNotReady   Status = 0x82
	ReservationConflict Status = 0x83
)

// Command specific statuses.
const (
	InvalidQueue           Status = 0x101
	AbortLimit             Status = 0x103
	AsyncEventLimit        Status = 0x105
	InvalidLogPage         Status = 0x109
	FeatureNotSaveable     Status = 0x10d
	FeatureNotChangeable   Status = 0x10e
	FeatureNotNamespace    Status = 0x10f
	CommandSizeLimit       Status = 0x183
	ConnectFormat          Status = 0x180
	ConnectBusy            Status = 0x181
	ConnectInvalid         Status = 0x182
	ConnectInvalidHost     Status = 0x184
	InvalidQueueType       Status = 0x185
	AuthenticationRequired Status = 0x191
)

// Media and data integrity errors, and errors of paths.
const (
	WriteFault       Status = 0x280
	UnrecoveredRead  Status = 0x281
	CompareFailure   Status = 0x285
	AccessDenied     Status = 0x286
	InternalPath     Status = 0x300
	PersistentLoss   Status = 0x301
	Inaccessible     Status = 0x302
	PathInTransition Status = 0x303
)
