package conformance

// An exception is a test that does not pass, and why that is as it should be.
type exception struct {
	test    string
	verdict verdict
	because string
}

const (
	// What these suites need belongs to the later issue on the breadth of commands.
	laterCopy      = "EXTENDED COPY and RECEIVE COPY RESULTS come with the issue on the breadth of commands"
	laterSanitize  = "SANITIZE comes with the issue on the breadth of commands"
	laterAtomic    = "WRITE ATOMIC(16) comes with the issue on the breadth of commands"
	laterRemovable = "removable media come with the issue on the breadth of commands; RMB is 0"
	laterDefects   = "READ DEFECT DATA comes with the issue on the breadth of commands"

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
	{"ExtendedCopy.Simple", skip, laterCopy},
	{"ExtendedCopy.ParamHdr", skip, laterCopy},
	{"ExtendedCopy.DescrLimits", skip, laterCopy},
	{"ExtendedCopy.DescrType", skip, laterCopy},
	{"ExtendedCopy.ValidTgtDescr", skip, laterCopy},
	{"ExtendedCopy.ValidSegDescr", skip, laterCopy},
	{"ReceiveCopyResults.CopyStatus", skip, laterCopy},
	{"ReceiveCopyResults.OpParams", skip, laterCopy},

	{"NoMedia.NoMediaSBC", skip, laterRemovable},
	{"PreventAllow.Simple", skip, laterRemovable},
	{"PreventAllow.Eject", skip, laterRemovable},
	{"PreventAllow.ITNexusLoss", skip, laterRemovable},
	{"PreventAllow.Logout", skip, laterRemovable},
	{"PreventAllow.WarmReset", skip, laterRemovable},
	{"PreventAllow.ColdReset", skip, laterRemovable},
	{"PreventAllow.LUNReset", skip, laterRemovable},
	{"PreventAllow.2ITNexuses", skip, laterRemovable},
	{"StartStopUnit.Simple", skip, laterRemovable},
	{"StartStopUnit.PwrCnd", skip, laterRemovable},
	{"StartStopUnit.NoLoej", skip, laterRemovable},

	{"ReadDefectData10.Simple", skip, laterDefects},
	{"ReadDefectData12.Simple", skip, laterDefects},

	{"Sanitize.BlockErase", skip, laterSanitize},
	{"Sanitize.BlockEraseReserved", skip, laterSanitize},
	{"Sanitize.CryptoErase", skip, laterSanitize},
	{"Sanitize.CryptoEraseReserved", skip, laterSanitize},
	{"Sanitize.ExitFailureMode", skip, laterSanitize},
	{"Sanitize.InvalidServiceAction", skip, laterSanitize},
	{"Sanitize.Overwrite", skip, laterSanitize},
	{"Sanitize.OverwriteReserved", skip, laterSanitize},
	{"Sanitize.Readonly", skip, laterSanitize},
	{"Sanitize.Reservations", skip, laterSanitize},
	{"Sanitize.Reset", skip, laterSanitize},

	{"WriteAtomic16.Simple", skip, laterAtomic},
	{"WriteAtomic16.BeyondEol", skip, laterAtomic},
	{"WriteAtomic16.ZeroBlocks", skip, laterAtomic},
	{"WriteAtomic16.WriteProtect", skip, laterAtomic},
	{"WriteAtomic16.DpoFua", skip, laterAtomic},
	{"WriteAtomic16.VPD", skip, laterAtomic},

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
