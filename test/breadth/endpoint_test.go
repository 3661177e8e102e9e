package breadth

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"oneshot/endpoint"
	"oneshot/mgmt"
	"oneshot/test/targettest"
)

// envWriter has this program write instead of test: it is the URL of a partition.
const envWriter = "ONESHOT_WRITER"

const (
	writerBlocks = 256
	writerBlock  = 4096
	writerBatch  = 8 // blocks between two flushes
)

// writer writes blocks round and round from number first on, each full of its number, and says on its output up to which
// number all are durable. It ends with the first error, or when it is killed.
func writer(url string, first uint64) error {
	e, err := endpoint.Open(context.Background(), url, endpoint.Options{Durable: true, Retry: -1})
	if err != nil {
		return err
	}
	buf, err := e.Alloc(writerBlock)
	if err != nil {
		return err
	}
	for n := first; ; n++ {
		for i := 0; i < len(buf); i += 8 {
			binary.BigEndian.PutUint64(buf[i:], n)
		}
		if err := e.WriteAt(context.Background(), buf, int64(n%writerBlocks*writerBlock)); err != nil {
			return err
		}
		if n%writerBatch == 0 {
			if err := e.Flush(context.Background()); err != nil {
				return err
			}
			fmt.Println(n)
		}
	}
}

// A service, or its client, that is killed under load loses nothing that was durable, and no block has octets that
// nobody wrote there. A client that is gone leaves nothing behind, and the next one goes on.
func TestEndpointOutlivesKills(t *testing.T) {
	tg := targettest.Start(t, `
stores: {disk: {type: file, path: $DIR/disk.img, size: 32MiB, partitioned: true}}
targets: [{iqn: `+iqn+`t}]
portals:
  - {listen: $PORTAL}
  - {transport: iwarp, listen: $PORTAL2, serve: partitions}
management: {socket: $DIR/m}
`)
	c := management(t, tg)
	now, err := c.InitPartitions(t.Context(), "disk", "none", false)
	if err == nil {
		access := []mgmt.PartitionAccess{{Who: "any", Rights: "rwf"}}
		_, err = c.CreatePartitions(t.Context(), "disk", now.Tag, mgmt.NewPartition{Name: "log", Size: 4 * mib, Access: access})
	}
	if err != nil {
		t.Fatal(err)
	}
	durable := uint64(0)
	for round := range 4 {
		url := "oneshot+iwarp://" + tg.Portals[1] + "/disk/log"
		cmd := exec.Command(os.Args[0], fmt.Sprint(durable+1))
		cmd.Env = append(os.Environ(), envWriter+"="+url)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			if _, err := fmt.Sscan(lines.Text(), &durable); err != nil {
				t.Fatal(err)
			}
			if n == 20+round { // it goes on while it, or the service, is killed
				if round%2 == 0 {
					_ = cmd.Process.Kill()
				} else {
					tg.Kill()
				}
			}
		}
		_ = cmd.Wait()
		if round%2 > 0 {
			tg.Start()
			c = management(t, tg)
		}
		for deadline := time.Now().Add(time.Minute); ; { // a client that is gone has left
			list, err := c.Endpoints(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(list.Endpoints) == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("round %d: endpoints of a client that is gone: %+v", round, list)
			}
		}
		look(t, round, "oneshot+iwarp://"+tg.Portals[1]+"/disk/log", durable)
	}
}

// look checks the blocks, of which those up to number durable are durable.
func look(t *testing.T, round int, url string, durable uint64) {
	t.Helper()
	e, err := endpoint.Open(t.Context(), url, endpoint.Options{Retry: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	buf, err := e.Alloc(writerBlocks * writerBlock)
	if err == nil {
		err = e.ReadAt(t.Context(), buf, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(buf); at += 8 {
		block := uint64(at / writerBlock)
		least := durable - (durable-block)%writerBlocks // the last that is durable there
		if durable < block {
			least = 0
		}
		n := binary.BigEndian.Uint64(buf[at:])
		if n < least || n > 0 && n%writerBlocks != block || n > durable+2*writerBatch {
			t.Fatalf("round %d: block %d has number %d at %d; %d is durable there, and all up to %d", round, block, n, at%writerBlock, least, durable)
		}
	}
}
