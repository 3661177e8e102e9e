package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"time"

	"oneshot/backend/file"
	"oneshot/config"
	"oneshot/endpoint"
	"oneshot/endpoint/load"
	"oneshot/endpoint/wal"
	"oneshot/initiator"
	disk "oneshot/initiator/load"
	"oneshot/partition"
	"oneshot/server"
)

// A daemon in this process serves one partition over iWARP on the loopback interface in two ways: as an endpoint, and
// as LUN 0 of a target, over one-shot RDMA.

const iqn = "iqn.2026-11.example.oneshot:bench"

// daemon is a daemon that serves the partition "disk/bench".
type daemon struct {
	server   *server.Server
	served   chan error
	endpoint string // URL
	lun      initiator.URL
}

// start starts a daemon with store, a line of YAML.
func start(dir, store string) (*daemon, error) {
	c, err := config.Parse(filepath.Join(dir, "bench.yaml"), fmt.Appendf(nil, `log: {level: error}
limits: {memory_per_connection: 64MiB}
stores: {disk: {%s, partitioned: true}}
targets: [{iqn: %s, luns: {0: disk/bench}}]
portals:
  - {transport: iwarp, listen: "127.0.0.1:0"}
  - {transport: iwarp, listen: "127.0.0.1:0", serve: partitions}
`, store, iqn))
	if err != nil {
		return nil, err
	}
	s, err := server.New(c, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		return nil, err
	}
	d := &daemon{server: s, served: make(chan error, 1)}
	at := s.Addrs()
	d.endpoint = fmt.Sprintf("oneshot+iwarp://%s/disk/bench", at[1])
	d.lun, err = initiator.ParseURL(fmt.Sprintf("oneshot+iwarp://%s/%s/0", at[0], iqn))
	go func() { d.served <- s.Serve() }()
	return d, err
}

func (d *daemon) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(d.server.Shutdown(ctx), <-d.served)
}

// inMemory is a store in memory with its partition.
var inMemory = fmt.Sprintf("type: memory, size: %d, partitions: {bench: {size: %d, access: {any: rwf}}}", memorySize+2<<20, memorySize)

// inFile makes the partition in the file that others use, too, and returns the store.
func inFile(dir string) (store string, err error) {
	path, err := prepare(dir)
	if err != nil {
		return "", err
	}
	f, err := file.Open(file.Config{Path: path})
	if err != nil {
		return "", err
	}
	set, err := partition.Init(f, true)
	if err != nil {
		return "", errors.Join(err, f.Close())
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	_, err = set.Create(partition.Any, partition.New{Name: "bench", Size: fileSize - 2<<20, Access: []partition.Access{{Rights: partition.MayRead | partition.MayWrite | partition.MayFlush}}})
	return fmt.Sprintf("type: file, path: %s", path), err
}

// over has a daemon serve the store that open makes, while run measures.
func over(open func(dir string) (string, error), run func(ctx context.Context, d *daemon, seconds float64) (sample, error)) func(context.Context, string, float64) (sample, error) {
	return func(ctx context.Context, dir string, seconds float64) (s sample, err error) {
		store, err := open(dir)
		if err != nil {
			return s, err
		}
		d, err := start(dir, store)
		if err != nil {
			return s, err
		}
		defer func() { err = errors.Join(err, d.close()) }()
		return run(ctx, d, seconds)
	}
}

func memoryStore(string) (string, error) { return inMemory, nil }

const warmup = 100 * time.Millisecond

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// remoteLoad is one of endpoint/load.
func remoteLoad(c load.Config) func(context.Context, *daemon, float64) (sample, error) {
	return func(ctx context.Context, d *daemon, seconds float64) (sample, error) {
		c.URL, c.Size, c.Random, c.Duration, c.Warmup, c.Options.Free = d.endpoint, block, true, duration(seconds), warmup, true
		r, err := load.Run(ctx, c)
		if err != nil {
			return sample{}, err
		}
		return sample{rate: r.IOPS, cpu: r.CPU}, nil
	}
}

// lunLoad reads from the LUN.
func lunLoad(depth int) func(context.Context, *daemon, float64) (sample, error) {
	return func(ctx context.Context, d *daemon, seconds float64) (sample, error) {
		r, err := disk.Run(ctx, disk.Config{
			URL: d.lun, Sessions: 1, Depth: depth, Size: block, Random: true, Duration: duration(seconds), Warmup: warmup,
		})
		if err != nil {
			return sample{}, err
		}
		return sample{rate: r.IOPS, cpu: r.Initiator.CPU}, nil
	}
}

// syncedLUN writes to the LUN, and has it synchronize its cache after each write.
func syncedLUN(ctx context.Context, d *daemon, seconds float64) (s sample, err error) {
	session, err := initiator.Dial(ctx, d.lun, initiator.Options{})
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	lu, err := session.LU(ctx, 0)
	if err != nil {
		return s, err
	}
	m, err := session.Alloc(block)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, m.Free()) }()
	write, flush := initiator.Command{Out: m.Bytes(), Memory: m}, initiator.Command{}
	s, _, err = timed(seconds, func() (int, error) {
		if err := lu.Prepare(&write, rand.Int64N(lu.Size()/block)*block); err != nil {
			return 0, err
		}
		if err := session.Do(ctx, &write); err != nil {
			return 0, err
		}
		lu.PrepareFlush(&flush)
		return 1, session.Do(ctx, &flush)
	})
	return s, err
}

// remoteLog is the log on a partition of the daemon.
func remoteLog(ctx context.Context, d *daemon, seconds float64) (s sample, err error) {
	e, err := endpoint.Open(ctx, d.endpoint, endpoint.Options{Sole: true})
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	l, err := wal.Open(ctx, e, wal.Options{Create: true})
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	s, _, err = appendAll(l, seconds)
	return s, err
}

// appendAll has all appenders append to a log. Nothing is under way when it returns.
func appendAll(l *wal.Log, seconds float64) (s sample, n int, err error) {
	return group(seconds, func(p []byte) error {
		_, w := l.Append(p)
		if errors.Is(w.Wait(), wal.ErrFull) {
			if err := l.Truncate(l.Durable()); err != nil {
				return err
			}
			_, w = l.Append(p)
		}
		return w.Wait()
	})
}
