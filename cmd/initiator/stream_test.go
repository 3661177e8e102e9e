package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"oneshot/iscsi/pdu"
)

// A signal ends a command that waits for another program: for the data to write, or for a reader of what it has read.
func TestInterrupted(t *testing.T) {
	tg := start(t)
	disk := "iscsi://" + tg.Portals[0] + "/" + iqn + "/0"
	for name, args := range map[string][]string{
		"write":         {"write", disk},
		"object insert": {"object", "insert", "127.0.0.1:1"},
		"read":          {"read", disk},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			in, feeds := io.Pipe()
			eats, out := io.Pipe()
			defer in.Close() // ends what nobody waits for any more
			defer eats.Close()
			var bad bytes.Buffer
			ended := make(chan int)
			go func() { ended <- run(ctx, "initiator", args, in, out, &bad) }()
			if name == "read" { // it has begun when a byte has gone through the pipe
				_, _ = eats.Read(make([]byte, 1))
			} else {
				_, _ = feeds.Write(make([]byte, 1))
			}
			cancel()
			if status := <-ended; status != exitError || !strings.HasSuffix(bad.String(), ": interrupted by a signal\n") {
				t.Errorf("status %d, %s", status, &bad)
			}
		})
	}
}

// A file keeps its content if there is nothing to be copied to it.
func TestReadKeepsFile(t *testing.T) {
	tg := start(t)
	at := "iscsi://" + tg.Portals[0] + "/" + iqn
	file := filepath.Join(t.TempDir(), "file")
	const was = "what was saved yesterday"
	for _, args := range [][]string{
		{"read", at + "/5", file},
		{"read", "iscsi://127.0.0.1:1/" + iqn + "/0", file},
		{"read", "--offset", "16MiB", at + "/0", file},
		{"read", at, file},
		{"object", "read", "127.0.0.1:1", "os1:500000000000:fff1a3b7:1", file},
	} {
		if err := os.WriteFile(file, []byte(was), 0o600); err != nil {
			t.Fatal(err)
		}
		status, _, bad := call(t, "", append(args, "--timeout", "5s")...)
		if b, err := os.ReadFile(file); status == exitOK || err != nil || string(b) != was {
			t.Errorf("%q: status %d, %s: the file has %q, %v", args, status, bad, b, err)
		}
	}
}

// A command whose output nobody has got has failed.
func TestFullOutput(t *testing.T) {
	tg := start(t)
	at := "iscsi://" + tg.Portals[0]
	for _, args := range [][]string{{"ls", at}, {"ls", at + "/" + iqn}, {"inquiry", at + "/" + iqn + "/0"}, {"read", "--length", "512", at + "/" + iqn + "/0"}} {
		var bad bytes.Buffer
		if status := run(t.Context(), "initiator", args, strings.NewReader(""), full{}, &bad); status != exitError || !strings.Contains(bad.String(), "no space") {
			t.Errorf("%q: status %d, %s", args, status, &bad)
		}
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space") }

// What a target says of itself are no commands to the terminal of who asks.
func TestPlainOutput(t *testing.T) {
	const name = "iqn.2026-11.example:\x1b]0;x\x07\u009b31m"
	at := "iscsi://" + discoverable(t, name)
	for args, want := range map[string]int{"ls " + at: exitOK, "ls " + at + "/iqn.2026-11.example:x": exitError} {
		status, out, bad := call(t, "", strings.Fields(args)...)
		if status != want || strings.ContainsAny(out+bad, "\x1b\x07\u009b") || !strings.Contains(out+bad, "?") {
			t.Errorf("%s: status %d, %q %q", args, status, out, bad)
		}
	}
}

// discoverable is a target that has that name, and says it also in the place of answers to keys of a login to it.
func discoverable(t *testing.T, name string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-ended })
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			discovery(c, name)
			c.Close()
		}
	}()
	return l.Addr().String()
}

func discovery(c net.Conn, name string) {
	statSN, discovers := pdu.Sequence{MaxCmdSN: 100}, false
	for {
		h := make(pdu.Header, pdu.BHSLen)
		if _, err := io.ReadFull(c, h); err != nil {
			return
		}
		b := make([]byte, pdu.PaddedLen(h.DataSegmentLen()))
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		discovers = discovers || bytes.Contains(b, []byte("Discovery"))
		var f interface{ AppendTo([]byte) []byte }
		var keys []byte
		switch h.Opcode() {
		case pdu.OpLoginRequest:
			r, _ := pdu.ParseLoginRequest(h)
			if keys = []byte("AuthMethod=None\x00"); r.CSG() != pdu.StageSecurityNegotiation {
				if keys = nil; !discovers {
					keys = []byte("InitialR2T=" + name + "\x00")
				}
			}
			f = &pdu.LoginResponseFields{Transit: true, CSG: r.CSG(), NSG: r.NSG(), ISID: r.ISID(), TSIH: 1, ITT: r.ITT(), DataSegmentLength: len(keys), Sequence: statSN}
		case pdu.OpTextRequest:
			keys = []byte("TargetName=" + name + "\x00TargetAddress=192.0.2.1:3260,1\x00")
			f = &pdu.TextResponseFields{ITT: h.ITT(), TTT: pdu.ReservedTag, Final: true, DataSegmentLength: len(keys), Sequence: statSN}
		default:
			f = &pdu.LogoutResponseFields{ITT: h.ITT(), Sequence: statSN}
		}
		statSN.StatSN++
		b = append(f.AppendTo(nil), keys...)
		if _, err := c.Write(append(b, pdu.Padding(len(keys))...)); err != nil {
			return
		}
	}
}

// Commands that were under way together, and have failed for one reason, are one line.
func TestPlainLines(t *testing.T) {
	if got := plainLines("no space\nno space\nthe session\x1b is closed\nno space"); got != "no space\nthe session? is closed\nno space" {
		t.Errorf("%q", got)
	}
}
