// Package rdmatest is the suite that every provider of transport/rdma passes.
//
//	connect.go  connection manager: private data, rejection, depths
//	data.go     Send, Write, Read: sizes, lists, order, visibility, fences
//	source.go   memory that is used again as soon as a completion allows it
//	queue.go    completion queues and receive queues, full queues, wrong requests
//	access.go   what a peer may not do, and windows
//	grant.go    memory under a name that its owner chooses
//	oneshot.go  STags advertised and closed
//	finish.go   good and bad ends
//	model.go    random work against a plain model
//	end.go      one end of a connection under test
//
// Providers differ only in their Limits: the suite runs what a device says that it can do,
// and checks that it refuses the rest. A provider's own test asserts the Limits themselves.
package rdmatest

import (
	"testing"

	"oneshot/transport/rdma"
)

// Pair is where a test takes its two ends from.
type Pair struct {
	// Client connects to Server; they may be one device.
	Client, Server rdma.Device
	// Listen is an address for Server to listen on, which Client can reach when the port is
	// that of the listener, for example 127.0.0.1:0.
	Listen string
	// Defects are what the devices are known to do against the standards.
	Defects Defects
}

// Defects of devices, of which the suite sees that they do no more harm than is known.
type Defects struct {
	// ReadRights: a region that the peer knows can be read, even if it does not allow that.
	ReadRights bool
	// EmptyReads: Reads of no bytes are refused by the provider, for the device loses count.
	EmptyReads bool
	// Fences: beside other work they stall, or let pass what they should hold back.
	Fences bool
	// WindowRange: a window gives the whole of its region.
	WindowRange bool
	// Farewell, unless nil: the end that has sent a Read Response may hear of this error when its peer then ends the
	// connection in good order.
	Farewell error
}

// Run runs the suite. Open is called once for each test; it registers with t.Cleanup what
// closes the devices, and fails there if they are still in use: the suite leaves nothing.
func Run(t *testing.T, open func(t *testing.T) Pair) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
	l := open(t).Server.Limits()
	for _, c := range extras {
		run := c.run
		if !c.has(l) {
			run = c.without
		}
		t.Run(c.name, func(t *testing.T) { run(t, open(t)) })
	}
}

type testCase struct {
	name string
	run  func(*testing.T, Pair)
}

var cases = []testCase{
	{"PrivateData", testPrivateData},
	{"PrivateDataTooLong", testPrivateDataTooLong},
	{"Reject", testReject},
	{"NobodyListens", testNobodyListens},
	{"ConnectCancelled", testConnectCancelled},
	{"ListenerClose", testListenerClose},
	{"NotConnected", testNotConnected},
	{"Depths", testDepths},
	{"ServerFirst", testServerFirst},

	{"SendSizes", testSendSizes},
	{"WriteSizes", testWriteSizes},
	{"ReadSizes", testReadSizes},
	{"Lists", testLists},
	{"Batch", testBatch},
	{"CompletionOrder", testCompletionOrder},
	{"Unsignaled", testUnsignaled},
	{"Inline", testInline},
	{"Solicited", testSolicited},
	{"WriteBeforeSend", testWriteBeforeSend},
	{"SourceReused", testSourceReused},
	{"ManyReads", testManyReads},
	{"Fence", testFence},
	{"BothWays", testBothWays},

	{"Arm", testArm},
	{"NoLostEvent", testNoLostEvent},
	{"WorkInEvent", testWorkInEvent},
	{"OneQueueForAll", testOneQueueForAll},
	{"SharedReceives", testSharedReceives},
	{"Full", testFull},
	{"ReceivesFull", testReceivesFull},
	{"WrongWork", testWrongWork},
	{"WrongReceive", testWrongReceive},
	{"Orders", testOrders},
	{"Counters", testCounters},

	{"ReadViolations", testReadViolations},
	{"WriteViolations", testWriteViolations},
	{"Granted", testGranted},
	{"GrantRefused", testGrantRefused},
	{"MessageTooLong", testMessageTooLong},

	{"Disconnect", testDisconnect},
	{"DisconnectKeepsShared", testDisconnectKeepsShared},
	{"Abort", testAbort},
	{"PeerDiesDuringReads", testPeerDiesDuringReads},
	{"CloseDuringReads", testCloseDuringReads},
	{"CloseUnpolled", testCloseUnpolled},

	{"Model", testModel},
}

// extra is what only some devices can do; without is what the others answer.
type extra struct {
	testCase
	has     func(rdma.Limits) bool
	without func(*testing.T, Pair)
}

func windows(l rdma.Limits) bool { return l.Windows }
func oneShot(l rdma.Limits) bool { return l.OneShot }
func waits(l rdma.Limits) bool   { return l.ReceiveWait }
func regions(l rdma.Limits) bool { return l.RegionInvalidate && l.SendInvalidate }
func guards(l rdma.Limits) bool  { return l.SendInvalidate && !l.UnguardedInvalidate }

var extras = []extra{
	{testCase{"ReceiveWait", testReceiveWait}, waits, testNoReceive},

	{testCase{"RegionInvalidated", testRegionInvalidated}, regions, testNoRegionInvalidate},
	{testCase{"InvalidateRefused", testInvalidateRefused}, guards, testInvalidateUnguarded},

	{testCase{"Window", testWindow}, windows, testNoWindows},
	{testCase{"WindowRemoteInvalidate", testWindowRemoteInvalidate}, windows, testNoWindows},
	{testCase{"WindowViolations", testWindowViolations}, windows, testNoWindows},
	{testCase{"WindowBoundTwice", testWindowBoundTwice}, windows, testNoWindows},
	{testCase{"WindowStamped", testWindowStamped}, windows, testNoWindows},

	{testCase{"OneShotAgreement", testOneShotAgreement}, oneShot, testNoOneShot},
	{testCase{"Pull", testPull}, oneShot, testNoOneShot},
	{testCase{"Scattered", testScattered}, oneShot, testNoOneShot},
	{testCase{"Push", testPush}, oneShot, testNoOneShot},
	{testCase{"OneShotManyOutstanding", testOneShotManyOutstanding}, oneShot, testNoOneShot},
	{testCase{"OneShotWindow", testOneShotWindow}, oneShot, testNoOneShot},
	{testCase{"Revoke", testRevoke}, oneShot, testNoOneShot},
	{testCase{"OneShotRefused", testOneShotRefused}, oneShot, testNoOneShot},
	{testCase{"OneShotNotAgreed", testNoOneShot}, oneShot, testNoOneShot},
	{testCase{"OneShotViolations", testOneShotViolations}, oneShot, testNoOneShot},
	{testCase{"AdvertiseThenInvalidate", testAdvertiseThenInvalidate}, oneShot, testNoOneShot},
	{testCase{"OneShotEnd", testOneShotEnd}, oneShot, testNoOneShot},
	{testCase{"Crossings", testCrossings}, oneShot, testNoOneShot},
}
