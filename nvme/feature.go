package nvme

// FID is a feature (Base 2.0 figure 317).
type FID uint8

// Features.
const (
	FeatureArbitration   FID = 0x01
	FeaturePower         FID = 0x02
	FeatureTemperature   FID = 0x04
	FeatureErrorRecovery FID = 0x05
	FeatureWriteCache    FID = 0x06
	FeatureQueues        FID = 0x07
	FeatureAtomicity     FID = 0x0a
	FeatureAsyncEvents   FID = 0x0b
	FeatureKeepAlive     FID = 0x0f
	FeatureHostBehavior  FID = 0x16
	FeatureHostID        FID = 0x81
	FeatureNoticeMask    FID = 0x82 // of reservation notifications
	FeaturePersistence   FID = 0x83 // of reservations
)

// HostBehaviorLen is the length of the data of FeatureHostBehavior, bytes: ACRE, ETDAS, LBAFEE, and reserved ones.
const HostBehaviorLen = 512

// Events are asynchronous events in the dword 0 of their completions: type, information, log page.
const (
	EventNamespaces  uint32 = 2 | 0x00<<8 | uint32(LogChanged)<<16
	EventANA         uint32 = 2 | 0x03<<8 | uint32(LogANA)<<16
	EventDiscovery   uint32 = 2 | 0xf0<<8 | uint32(LogDiscovery)<<16
	EventReservation uint32 = 6 | 0x00<<8 | uint32(LogReservation)<<16
	EventSanitize    uint32 = 6 | 0x01<<8 | uint32(LogSanitize)<<16
)
