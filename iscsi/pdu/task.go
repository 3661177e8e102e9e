package pdu

import (
	"fmt"

	"oneshot/internal/serial"
)

// TaskFunction is the function of a Task Management Function Request (§11.5.1, RFC 7144 §4.1).
type TaskFunction uint8

// Task management functions. Those from TaskQueryTask on need iSCSIProtocolLevel 2.
const (
	TaskAbortTask        TaskFunction = 1
	TaskAbortTaskSet     TaskFunction = 2
	TaskClearACA         TaskFunction = 3
	TaskClearTaskSet     TaskFunction = 4
	TaskLogicalUnitReset TaskFunction = 5
	TaskTargetWarmReset  TaskFunction = 6
	TaskTargetColdReset  TaskFunction = 7
	TaskReassign         TaskFunction = 8
	TaskQueryTask        TaskFunction = 9
	TaskQueryTaskSet     TaskFunction = 10
	TaskITNexusReset     TaskFunction = 11
	TaskQueryAsyncEvent  TaskFunction = 12
)

var taskFunctionNames = [...]string{
	TaskAbortTask: "ABORT TASK", TaskAbortTaskSet: "ABORT TASK SET", TaskClearACA: "CLEAR ACA",
	TaskClearTaskSet: "CLEAR TASK SET", TaskLogicalUnitReset: "LOGICAL UNIT RESET",
	TaskTargetWarmReset: "TARGET WARM RESET", TaskTargetColdReset: "TARGET COLD RESET", TaskReassign: "TASK REASSIGN",
	TaskQueryTask: "QUERY TASK", TaskQueryTaskSet: "QUERY TASK SET", TaskITNexusReset: "I_T NEXUS RESET",
	TaskQueryAsyncEvent: "QUERY ASYNCHRONOUS EVENT",
}

// String returns the name of the function.
func (f TaskFunction) String() string {
	if int(f) < len(taskFunctionNames) && taskFunctionNames[f] != "" {
		return taskFunctionNames[f]
	}
	return fmt.Sprintf("task management function %d", uint8(f))
}

// TaskResponse is the response of a Task Management Function Response (§11.6.1, RFC 7144 §4.2).
type TaskResponse uint8

// Task management responses.
const (
	TaskFunctionComplete     TaskResponse = 0
	TaskDoesNotExist         TaskResponse = 1
	TaskLUNDoesNotExist      TaskResponse = 2
	TaskStillAllegiant       TaskResponse = 3
	TaskReassignNotSupported TaskResponse = 4
	TaskFunctionNotSupported TaskResponse = 5
	TaskAuthorizationFailed  TaskResponse = 6
	TaskFunctionSucceeded    TaskResponse = 7
	TaskFunctionRejected     TaskResponse = 255
)

var taskResponseNames = [...]string{
	"Function complete", "Task does not exist", "LUN does not exist", "Task still allegiant",
	"Task allegiance reassignment not supported", "Task management function not supported",
	"Function authorization failed", "Function succeeded",
}

// String returns the name of the response.
func (r TaskResponse) String() string {
	switch {
	case int(r) < len(taskResponseNames):
		return taskResponseNames[r]
	case r == TaskFunctionRejected:
		return "Function rejected"
	}
	return fmt.Sprintf("task management response %d", uint8(r))
}

const (
	maskFunction = 0x7f
	offRefTag    = 20
	offRefCmdSN  = 32
)

// TaskManagementRequest is a Task Management Function Request (§11.5).
type TaskManagementRequest struct{ Header }

// ParseTaskManagementRequest returns b, which it aliases, as a Task Management Function Request.
func ParseTaskManagementRequest(b []byte) (TaskManagementRequest, error) {
	h, err := parse(b, OpTaskManagementRequest)
	return TaskManagementRequest{h}, err
}

// Function returns what is asked for.
func (p TaskManagementRequest) Function() TaskFunction { return TaskFunction(p.Flags() & maskFunction) }

// ReferencedTaskTag returns the ITT of the task to abort or reassign, else ReservedTag.
func (p TaskManagementRequest) ReferencedTaskTag() uint32 { return p.u32(offRefTag) }

// RefCmdSN returns the CmdSN of the task to abort (§11.5.5).
func (p TaskManagementRequest) RefCmdSN() serial.SN { return p.sn(offRefCmdSN) }

// ExpDataSN returns where the data of a reassigned task resumes (§11.5.6).
func (p TaskManagementRequest) ExpDataSN() serial.SN { return p.sn(offExpDataSN) }

// Fields returns all fields of the PDU.
func (p TaskManagementRequest) Fields() TaskManagementRequestFields {
	return TaskManagementRequestFields{
		Immediate: p.Immediate(), Function: p.Function(), LUN: p.LUN(), ITT: p.ITT(),
		ReferencedTaskTag: p.ReferencedTaskTag(), CmdSN: p.CmdSN(), ExpStatSN: p.ExpStatSN(),
		RefCmdSN: p.RefCmdSN(), ExpDataSN: p.ExpDataSN(),
	}
}

// TaskManagementRequestFields encodes a Task Management Function Request.
type TaskManagementRequestFields struct {
	Immediate         bool
	Function          TaskFunction
	LUN               uint64
	ITT               uint32
	ReferencedTaskTag uint32
	CmdSN             serial.SN
	ExpStatSN         serial.SN
	RefCmdSN          serial.SN
	ExpDataSN         serial.SN
}

// AppendTo appends the header of BHSLen bytes to b.
func (f *TaskManagementRequestFields) AppendTo(b []byte) []byte {
	b, h := appendHeader(b, OpTaskManagementRequest, f.Immediate, FlagFinal|byte(f.Function)&maskFunction, 0)
	h.putLUN(f.LUN)
	h.put32(offITT, f.ITT)
	h.put32(offRefTag, f.ReferencedTaskTag)
	h.putCmdSN(f.CmdSN, f.ExpStatSN)
	h.put32(offRefCmdSN, uint32(f.RefCmdSN))
	h.put32(offExpDataSN, uint32(f.ExpDataSN))
	return b
}

// TaskManagementResponse is a Task Management Function Response (§11.6).
type TaskManagementResponse struct{ Header }

// ParseTaskManagementResponse returns b, which it aliases, as a Task Management Function Response.
func ParseTaskManagementResponse(b []byte) (TaskManagementResponse, error) {
	h, err := parse(b, OpTaskManagementResponse)
	return TaskManagementResponse{h}, err
}

// Response returns how the function ended.
func (p TaskManagementResponse) Response() TaskResponse { return TaskResponse(p.Header[offByte2]) }

// Fields returns all fields of the PDU.
func (p TaskManagementResponse) Fields() TaskManagementResponseFields {
	return TaskManagementResponseFields{Response: p.Response(), ITT: p.ITT(), Sequence: p.Sequence()}
}

// TaskManagementResponseFields encodes a Task Management Function Response.
type TaskManagementResponseFields struct {
	Response TaskResponse
	ITT      uint32
	Sequence
}

// AppendTo appends the header of BHSLen bytes to b.
func (f *TaskManagementResponseFields) AppendTo(b []byte) []byte {
	b, h := appendHeader(b, OpTaskManagementResponse, false, FlagFinal, 0)
	h[offByte2] = byte(f.Response)
	h.put32(offITT, f.ITT)
	h.putSequence(f.Sequence)
	return b
}
