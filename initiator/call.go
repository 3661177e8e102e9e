package initiator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
	"oneshot/iscsi/text"
)

// call is a request that is no command, and its answer.
type call struct {
	done chan struct{}
	h    pdu.Header
	data []byte
	err  error
	task uint32 // of an ABORT TASK: the ITT of the command; otherwise the reserved tag
}

// ask sends a request of f's making and waits for its answer. Requests are immediate, so that
// the command window does not keep them back.
func (s *Session) ask(ctx context.Context, f func(itt uint32, cmdSN, expStatSN serial.SN) []byte, data []byte) (pdu.Header, []byte, error) {
	c := &call{done: make(chan struct{}), task: pdu.ReservedTag}
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return nil, nil, s.err
	}
	if s.callITT++; s.callITT < firstITT || s.callITT == pdu.ReservedTag {
		s.callITT = firstITT
	}
	itt := s.callITT
	s.calls[itt] = c
	s.mover.control(f(itt, s.cmdSN, s.expStatSN), data)
	if !s.incoming {
		s.mover.flush()
	}
	s.mu.Unlock()
	select {
	case <-c.done:
		return c.h, c.data, c.err
	case <-ctx.Done():
		s.mu.Lock()
		delete(s.calls, itt)
		s.mu.Unlock()
		return nil, nil, ctx.Err()
	}
}

func (s *Session) answerCall(h pdu.Header, data []byte) error {
	c := s.calls[h.ITT()]
	if c == nil {
		s.log.Debug("an answer to nothing", "pdu", h.Opcode().String())
		return nil
	}
	if c.task != pdu.ReservedTag {
		if err := s.aborted(c.task, h); err != nil {
			return err
		}
	}
	delete(s.calls, h.ITT())
	c.h, c.data = append(pdu.Header(nil), h...), append([]byte(nil), data...)
	close(c.done)
	return nil
}

// abortTimeout is how long a target may take to abort a task before the session is given up.
const abortTimeout = 5 * time.Second

// abort has the target abort c. A session whose target does not answer is ended.
func (s *Session) abort(c *Command, done <-chan struct{}) {
	s.mu.Lock()
	if s.waiting.remove(c) || s.doubted.remove(c) {
		s.mu.Unlock()
		c.Err = ErrAborted
		s.tell(list{c, c})
		return
	}
	c.told = c.Attentions // a unit attention ends it
	issued, itt, cmdSN, lun := c.issued, c.itt, c.fields.CmdSN, wireLUN(c.LUN)
	s.mu.Unlock()
	if !issued {
		return // it has ended
	}
	ctx, cancel := context.WithTimeout(context.Background(), abortTimeout)
	defer cancel()
	_, _, _ = s.ask(ctx, func(mine uint32, sn, exp serial.SN) []byte {
		s.calls[mine].task = itt
		f := pdu.TaskManagementRequestFields{
			Immediate: true, Function: pdu.TaskAbortTask, LUN: lun, ITT: mine, ReferencedTaskTag: itt, RefCmdSN: cmdSN, CmdSN: sn, ExpStatSN: exp,
		}
		return f.AppendTo(nil)
	}, nil)
	select {
	case <-done:
	case <-ctx.Done():
		s.stop(fmt.Errorf("the target has not aborted a task within %v", abortTimeout))
	}
}

// ErrAborted is the end of a command that the target has aborted at the caller's wish: it has
// taken effect, or it never will.
var ErrAborted = errors.New("the command was aborted")

// aborted ends the command with that ITT, whose ABORT TASK is answered with h: the target will not answer it any more. What it sends
// for it all the same is for nothing that is under way. A target that has not aborted it may do anything at any time, and so the
// session ends.
func (s *Session) aborted(itt uint32, h pdu.Header) error {
	r, err := pdu.ParseTaskManagementResponse(h)
	switch {
	case err != nil:
		return err
	case r.Response() != pdu.TaskFunctionComplete && r.Response() != pdu.TaskDoesNotExist:
		return fmt.Errorf("the target has not aborted a task: %v", r.Response())
	}
	if c := s.find(itt); c != nil {
		c.Err = ErrAborted
		s.mover.answered(c)
	}
	return nil
}

// Ping has the target answer (NOP-Out, RFC 7143 §11.18), and returns when it has: the session is alive.
func (s *Session) Ping(ctx context.Context) error {
	_, _, err := s.ask(ctx, func(itt uint32, cmdSN, expStatSN serial.SN) []byte {
		f := pdu.NOPOutFields{Immediate: true, ITT: itt, TTT: pdu.ReservedTag, CmdSN: cmdSN, ExpStatSN: expStatSN}
		return f.AppendTo(nil)
	}, nil)
	return err
}

// maxText bounds the answer to one text: bytes, with the headers of its PDUs. 10,000 targets with the
// longest names, each of which is reached by a dozen addresses, are less. A PDU with less than leastText
// bytes counts as many, so that 32,768 empty ones are the end, too.
const (
	maxText   = 16 << 20
	leastText = 512
)

// Text sends text keys in the full feature phase and returns the answer, which may come in many
// PDUs (RFC 7143 §11.10, §11.11).
func (s *Session) Text(ctx context.Context, pairs ...text.Pair) ([]text.Pair, error) {
	var (
		data     []byte
		answered []text.Pair
	)
	for _, p := range pairs {
		data = text.Append(data, p.Key, p.Value)
	}
	collected := text.Collector{Max: maxText}
	ttt := uint32(pdu.ReservedTag)
	for came := 0; ; {
		h, answer, err := s.ask(ctx, func(itt uint32, cmdSN, expStatSN serial.SN) []byte {
			f := pdu.TextRequestFields{
				Immediate: true, Final: true, ITT: itt, TTT: ttt, CmdSN: cmdSN, ExpStatSN: expStatSN, DataSegmentLength: len(data),
			}
			return f.AppendTo(nil)
		}, data)
		if err != nil {
			return nil, err
		}
		if came += max(len(h)+len(answer), leastText); came > maxText {
			return nil, fmt.Errorf("the target's answer to a text has more than %d bytes, and does not end", maxText)
		}
		final, more := h.Flags()&pdu.FlagFinal != 0, h.Flags()&pdu.FlagContinue != 0
		if final && more {
			return nil, errors.New("the target's answer to a text is both over and not")
		}
		got, err := collected.Add(answer, more)
		if err != nil {
			return nil, err
		}
		if answered = append(answered, got...); final {
			return answered, nil
		}
		data, ttt = nil, h.TTT()
	}
}
