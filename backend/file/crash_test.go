package file

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/mem"
)

// crashEnv names the file that the child of TestCrash writes to.
const crashEnv = "ONESHOT_CRASH_FILE"

const crashSize, crashBlock = 8 << 20, 4096

// crashChild writes round after round over the whole store, in a scattered order, and says
// what is durable: "round block".
func crashChild(path string) {
	s, err := Open(Config{Path: path, Size: crashSize, Sparse: true})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	const blocks = crashSize / crashBlock
	b := make([]byte, crashBlock)
	for n := 0; ; n++ {
		round, block := n/blocks+1, n*7919%blocks
		fillBlock(b, round, block)
		op := &backend.Op{Kind: backend.Write, Off: int64(block) * crashBlock, Len: crashBlock, Segs: [][]byte{b}}
		if n%3 == 0 {
			op.Flags = backend.FUA
		}
		if err := backendtest.Do(s, op); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		if n%16 == 15 {
			if err := backendtest.Do(s, &backend.Op{Kind: backend.Flush}); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			fmt.Println(n)
		}
	}
}

func fillBlock(b []byte, round, block int) {
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], uint64(round)<<32|uint64(block))
	}
}

// A process that is killed in the middle of writing loses nothing that was flushed, and
// leaves no lock behind.
func TestCrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	for _, lines := range []int{1, 10, 300} {
		_ = os.Remove(path)
		flushed := runAndKill(t, path, lines)
		s := mustOpen(t, Config{Path: path})
		const blocks = crashSize / crashBlock
		want := make([]byte, crashBlock)
		for n := max(0, flushed-blocks+1); n <= flushed; n++ {
			round, block := n/blocks+1, n*7919%blocks
			op := read(block*crashBlock, crashBlock)
			if err := backendtest.Do(s, op); err != nil {
				t.Fatal(err)
			}
			fillBlock(want, round, block)
			if got := op.Segs[0]; string(got) != string(want) {
				// The next round may have been here already, with all of the block.
				if fillBlock(want, round+1, block); string(got) != string(want) {
					t.Fatalf("block %d of round %d was flushed and is gone", block, round)
				}
			}
		}
		mustClose(t, s)
	}
}

// ringEnv names the file that the child of TestKilledRing keeps busy.
const ringEnv = "ONESHOT_RING_FILE"

// ringChild keeps writes under way in the ring, and says so once.
func ringChild(path string) {
	s, err := Open(Config{Path: path, Size: crashSize, Direct: true})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	const size, depth = 256 << 10, 32
	pool := mem.NewPool(depth * size)
	var busy ringWriter
	busy.store = s
	for i := range depth {
		l := pool.Lease(size)
		busy.start(&backend.Op{Kind: backend.Write, Off: int64(i) * size % crashSize, Len: size, Segs: [][]byte{l.Bytes()}})
	}
	fmt.Println("busy")
	select {}
}

// ringWriter starts each operation again when it has ended.
type ringWriter struct{ store backend.Store }

func (w *ringWriter) OpDone(op *backend.Op) { go w.start(op) }

func (w *ringWriter) start(op *backend.Op) {
	for op.Done = w; w.store.Submit(op); {
	}
}

// A store with a ring can be opened as soon as the process that had it was killed, though the kernel
// closes its files later than that.
func TestKilledRing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	for range 10 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), ringEnv+"="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if sc := bufio.NewScanner(out); !sc.Scan() || sc.Text() != "busy" {
			t.Errorf("the child says %q", sc.Text())
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
		mustClose(t, mustOpen(t, Config{Path: path}))
	}
}

// runAndKill starts the child, kills it after so many flushes, and returns the number of the
// last write that it said was flushed.
func runAndKill(t *testing.T, path string, lines int) int {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashEnv+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	sc := bufio.NewScanner(out)
	last := ""
	for range lines {
		if !sc.Scan() {
			break
		}
		last = sc.Text()
	}
	// The lock names its holder while that lives.
	if _, err := Open(Config{Path: path}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("in use by another process (pid %d)", cmd.Process.Pid)) {
		t.Errorf("open beside the child: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(out)
	_ = cmd.Wait() // killed
	if all := strings.Fields(string(rest)); len(all) > 1 {
		last = all[len(all)-2] // the last one may be cut short
	}
	n, err := strconv.Atoi(last)
	if err != nil {
		t.Fatalf("the child says %q", last)
	}
	return n
}
