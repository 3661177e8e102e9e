package initiator_test

import (
	"context"
	"fmt"
	"log"

	"oneshot/initiator"
)

// List what a node has.
func ExampleDiscover() {
	u, err := initiator.ParseURL("iscsi://127.0.0.1")
	if err != nil {
		log.Fatal(err)
	}
	targets, err := initiator.Discover(context.Background(), u, initiator.Options{})
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range targets {
		fmt.Println(t.Name)
	}
}

// Read the first block of a disk over one-shot RDMA.
func ExampleDial() {
	ctx := context.Background()
	u, err := initiator.ParseURL("oneshot+iwarp://127.0.0.1/iqn.2026-11.example.oneshot:demo/0")
	if err != nil {
		log.Fatal(err)
	}
	s, err := initiator.Dial(ctx, u, initiator.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	disk, err := s.LU(ctx, u.LUN)
	if err != nil {
		log.Fatal(err)
	}
	block := make([]byte, disk.BlockSize())
	if _, err := disk.ReadAt(block, 0); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%x\n", block)
}

// Keep 32 commands outstanding without a goroutine for each: Done starts the next.
func ExampleSession_Start() {
	ctx := context.Background()
	u, err := initiator.ParseURL("oneshot+iwarp://127.0.0.1/iqn.2026-11.example.oneshot:demo/0")
	if err != nil {
		log.Fatal(err)
	}
	s, err := initiator.Dial(ctx, u, initiator.Options{Depth: 32})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	disk, err := s.LU(ctx, u.LUN)
	if err != nil {
		log.Fatal(err)
	}
	memory, err := s.Alloc(32 * 4096)
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error, 32)
	offset := int64(0)
	prepare := func(c *initiator.Command) error {
		offset += 4096
		return disk.Prepare(c, offset-4096)
	}
	done := func(c *initiator.Command) { // calls do not overlap
		err := c.Failure()
		if err == nil && offset < disk.Size() {
			if err = prepare(c); err == nil {
				s.Start(c)
				return
			}
		}
		ended <- err
	}
	var first []*initiator.Command
	for i := range 32 {
		c := &initiator.Command{In: memory.Bytes()[i*4096:][:4096], Memory: memory, Done: done}
		if err := prepare(c); err != nil {
			log.Fatal(err)
		}
		first = append(first, c)
	}
	s.Start(first...)
	for range first {
		if err := <-ended; err != nil {
			log.Fatal(err)
		}
	}
}
