package conformance

import "slices"

// An exception is a test that does not pass, with the reason why the target is right.
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

	// libiscsi 1.19, test_async_lu_reset_simple.c:157. LUN RESET is tested in test/wire.
	assertsTooEarly = "the test queues the LUN RESET and at once asserts that its response has been handled, before it has sent anything"

	onePerPhysical = "the test wants two or more logical blocks per physical block; the unit has one"

	// SBC-3 §6.6.3, MAXIMUM TRANSFER LENGTH.
	overMaximum = "the test writes 2048 blocks with one command, beyond the MAXIMUM TRANSFER LENGTH that the unit announces"

	// RFC 7143 §11.3.4: the Expected Data Transfer Length is shorter than the block that the
	// CDB writes, and half a block cannot be written.
	writes512 = "the test writes one block with 512 bytes of data, whatever the unit's block size"

	ownQueue = "the test asserts that a command which it has just queued is still in its own queue; libiscsi sends at once"

	// RFC 7143 §6.2: NotUnderstood must be the answer to a key that is not known. libiscsi takes
	// it for a broken Text Response, connects again, and the test waits for an answer that was
	// to come on the connection before.
	wantsReject = "the test wants a Text Request with an unknown key to be rejected as a whole"

	// SBC-3 §5.49: UNMAP does not change what is read afterwards.
	wantsZeroes = "the test sends a block of ff bytes with UNMAP set and wants to read zeroes"

	// test_compareandwrite_invalid_dataout_size.c:33. The command is as it should be, and its
	// data are not what is on the medium.
	wrongPDU = "the test changes NUMBER OF LOGICAL BLOCKS in every PDU but SCSI Commands"

	// SBC-3 §5.4.3, PROVISIONING STATUS 0h: "mapped or has an unknown state".
	unknownState = "the test wants every block to be reported as deallocated; which blocks of a device are, nobody can say"
)

// A list of exceptions holds for some releases of the tool and kinds of logical units.
type list struct {
	from, to   release
	kind       string // empty: all
	exceptions []exception
}

// lists are searched in their order. Each entry is checked: another verdict of its test is an
// error.
var lists = []list{
	{v119, v119, "blocks4k", []exception{
		{"ProutReserve.AccessEA", fail, writes512},
		{"ProutReserve.AccessWE", fail, writes512},
		{"ProutReserve.AccessEARO", fail, writes512},
		{"ProutReserve.AccessWERO", fail, writes512},
		{"ProutReserve.AccessEAAR", fail, writes512},
		{"ProutReserve.AccessWEAR", fail, writes512},
	}},
	{v120, after120, "blocks4k", []exception{
		{"ExtendedCopy.Large", fail, overMaximum},
	}},
	{v119, after120, "blocks4k", []exception{
		{"ExtendedCopy.Simple", fail, overMaximum},
		{"CompareAndWrite.InvalidDataOutSize", skip, onePerPhysical},
		{"WriteSame10.InvalidDataOutSize", skip, onePerPhysical},
		{"WriteSame10.UnmapUnaligned", skip, onePerPhysical},
		{"WriteSame16.InvalidDataOutSize", skip, onePerPhysical},
		{"WriteSame16.UnmapUnaligned", skip, onePerPhysical},
	}},
	{v119, after120, "device", []exception{
		{"Sanitize.BlockErase", fail, unknownState},
	}},
	{v119, v119, "", []exception{
		{"iSCSITMF.LUNResetSimpleAsync", fail, assertsTooEarly},
	}},
	{v120, after120, "", []exception{
		{"iSCSISendTargets.Invalid", hang, wantsReject},
		{"CompareAndWrite.InvalidDataOutSize", fail, wrongPDU},
	}},
	{after120, after120, "", []exception{
		{"iSCSITMF.LUNResetSimpleAsync", fail, ownQueue},
		{"iSCSITMF.AbortTaskSimpleAsync", fail, ownQueue},
	}},
	{v119, after120, "", []exception{
		{"Sanitize.CryptoErase", skip, noKey},
		{"Sanitize.Readonly", skip, noKeyEither},
		{"Sanitize.Reservations", skip, noKeyEither},
		{"Sanitize.Reset", fail, overTooSoon},
		{"WriteAtomic16.VPD", skip, anywhere},
		{"WriteSame10.UnmapUntilEnd", fail, wantsZeroes},
	}},
}

// find returns the exception for a test of a release on a kind of logical unit, or nil: the
// test has to pass.
func find(r release, kind, test string) *exception {
	for _, l := range lists {
		if r < l.from || r > l.to || l.kind != "" && l.kind != kind {
			continue
		}
		if i := slices.IndexFunc(l.exceptions, func(e exception) bool { return e.test == test }); i >= 0 {
			return &l.exceptions[i]
		}
	}
	return nil
}
