package conformance

// An exception is a test that does not pass, and why that is as it should be.
type exception struct {
	test    string
	verdict verdict
	because string
}

const (
	noKey = "nothing is encrypted, so there is no key that SANITIZE could change (SBC-3 §4.11.2.4)"

	noKeyEither = "the test is over when it has tried everything but SANITIZE CRYPTO ERASE, which there is not: nothing is encrypted"

	anywhere = "the last part of the test wants atomic writes that are aligned; here they may be anywhere"

	// test_sanitize_reset.c sleeps for four seconds and wants TEST UNIT READY to fail still. That
	// the operation survives aborts, resets and logouts is tested in package scsi.
	overTooSoon = "the test wants an overwrite of 64 MiB to take longer than four seconds"

	needsRemovable = "wants a removable medium; TestRemovable runs it against one"

	// libiscsi 1.19, test_async_lu_reset_simple.c:157. LUN RESET is tested in test/wire.
	assertsTooEarly = "the test queues the LUN RESET and at once asserts that its response has been handled, before it has sent anything"

	// SBC-3 §6.6.3 (Block Limits page): with WSNZ one, NUMBER OF LOGICAL BLOCKS zero is
	// refused. The test sees that and goes no further.
	refusesZero = "the test ends when WRITE SAME of 0 blocks is refused, as WSNZ of the Block Limits page announces"

	onePerPhysical = "the test wants two or more logical blocks per physical block; the unit has one"

	// SBC-3 §6.6.3, MAXIMUM TRANSFER LENGTH.
	overMaximum = "the test writes 2048 blocks with one command, beyond the MAXIMUM TRANSFER LENGTH that the unit announces"

	// RFC 7143 §11.3.4: the Expected Data Transfer Length is shorter than the block that the
	// CDB writes, and half a block cannot be written.
	writes512 = "the test writes one block with 512 bytes of data, whatever the unit's block size"

	needsReadOnly = "wants a write-protected logical unit; TestReadOnly runs it against one"
)

// everywhere lists the tests that pass on no writable logical unit of today.
// Each entry is checked: a test that comes to another verdict is an error.
var everywhere = []exception{
	{"NoMedia.NoMediaSBC", skip, needsRemovable},
	{"PreventAllow.Simple", skip, needsRemovable},
	{"PreventAllow.Eject", skip, needsRemovable},
	{"PreventAllow.ITNexusLoss", skip, needsRemovable},
	{"PreventAllow.Logout", skip, needsRemovable},
	{"PreventAllow.WarmReset", skip, needsRemovable},
	{"PreventAllow.ColdReset", skip, needsRemovable},
	{"PreventAllow.LUNReset", skip, needsRemovable},
	{"PreventAllow.2ITNexuses", skip, needsRemovable},
	{"StartStopUnit.Simple", skip, needsRemovable},
	{"StartStopUnit.PwrCnd", skip, needsRemovable},
	{"StartStopUnit.NoLoej", skip, needsRemovable},

	{"Sanitize.CryptoErase", skip, noKey},
	{"Sanitize.Readonly", skip, noKeyEither},
	{"Sanitize.Reservations", skip, noKeyEither},
	{"Sanitize.Reset", fail, overTooSoon},

	{"WriteAtomic16.VPD", skip, anywhere},

	{"ReadOnly.ReadOnlySBC", skip, needsReadOnly},

	{"iSCSITMF.LUNResetSimpleAsync", fail, assertsTooEarly},

	{"WriteSame10.ZeroBlocks", skip, refusesZero},
	{"WriteSame16.ZeroBlocks", skip, refusesZero},

	{"CompareAndWrite.InvalidDataOutSize", skip, onePerPhysical},
	{"WriteSame10.InvalidDataOutSize", skip, onePerPhysical},
	{"WriteSame10.UnmapUnaligned", skip, onePerPhysical},
	{"WriteSame16.InvalidDataOutSize", skip, onePerPhysical},
	{"WriteSame16.UnmapUnaligned", skip, onePerPhysical},
}

// blocks4k are those of the unit with 4096-byte blocks; they hold before those
// of everywhere.
var blocks4k = []exception{
	{"ExtendedCopy.Simple", fail, overMaximum},
	{"ProutReserve.AccessEA", fail, writes512},
	{"ProutReserve.AccessWE", fail, writes512},
	{"ProutReserve.AccessEARO", fail, writes512},
	{"ProutReserve.AccessWERO", fail, writes512},
	{"ProutReserve.AccessEAAR", fail, writes512},
	{"ProutReserve.AccessWEAR", fail, writes512},
}

// find returns the exception for a test on a kind of logical unit, or nil: the
// test has to pass.
func find(kind, test string) *exception {
	lists := [][]exception{everywhere}
	if kind == "blocks4k" {
		lists = [][]exception{blocks4k, everywhere}
	}
	for _, list := range lists {
		for i := range list {
			if list[i].test == test {
				return &list[i]
			}
		}
	}
	return nil
}
