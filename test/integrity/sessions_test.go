package integrity

import (
	"context"
	"path/filepath"
	"testing"

	"oneshot/initiator"
	"oneshot/mgmt"
)

const config = `
log: {level: error}
stores:
  memory: {type: memory, size: 4MiB}
  file:   {type: file, path: $DIR/file.img, size: 4MiB}
  direct: {type: file, path: $DIR/direct.img, size: 4MiB, direct: true, cache: writethrough}
  quiet:  {type: memory, size: 4MiB}
  still:  {type: file, path: $DIR/still.img, size: 4MiB}
targets:
  - {iqn: ` + iqn + `a, luns: {0: memory, 1: file, 2: {store: direct, block_size: 4096}}}
  - {iqn: ` + iqn + `i, luns: {0: quiet, 1: still}}
  - {iqn: ` + iqn + `b, luns: {0: {store: memory, block_size: 4096, product: A}, 1: {store: file, block_size: 4096, product: A}, 2: {store: direct, block_size: 4096, product: A}}}
portals:
  - {transport: tcp, listen: $PORTAL}
  - {transport: iwarp, listen: $PORTAL2}
state: $DIR/state
management: {socket: $DIR/socket}
limits: {nop_interval: 10s, nop_timeout: 10s}
`

// loadBound is how much memory in MiB the load may cost the daemon. Measured were 33, and 49 under the race detector.
const loadBound = 150

// disks returns the stores of config, and their views through targets a and b.
func disks() (all []*disk, a, b []*view) {
	for lun, name := range []string{"memory", "file", "direct"} {
		d := newDisk(name, diskSize/sectorSize)
		all = append(all, d)
		block := sectorSize
		if name == "direct" {
			block = 4096
		}
		a = append(a, &view{disk: d, lun: lun, block: block, atomic: true})
		b = append(b, &view{disk: d, lun: lun, block: 4096, atomic: true})
	}
	return all, a, b
}

// everyTransport adds hosts in every transport, on wires of that life.
func (r *run) everyTransport(life int64, a, b []*view) {
	tcp, iwarp := r.target.Portals[0], r.target.Portals[1]
	r.host("iscsi", tcp, "a", "", life, initiator.Options{}, 6, a...)
	r.host("iscsi", tcp, "b", "?header_digest=crc32c&data_digest=crc32c", life, initiator.Options{Immediate: -1}, 4, b...)
	r.host("iser+iwarp", iwarp, "a", "", life, initiator.Options{}, 4, a...)
	r.host("oneshot+iwarp", iwarp, "b", "", life, initiator.Options{}, 4, b...)
}

// TestCuts: connections are cut after some megabytes, and one command of a hundred is aborted.
func TestCuts(t *testing.T) {
	r := newRun(t)
	r.start(config)
	r.aborts = true
	all, a, b := disks()
	r.everyTransport(4<<20, a, b)
	r.besides(loadBound, func() { r.work(6_000, all, nil) })
}

// TestReload: the configuration changes again and again under load. Each time the LUNs of target b have other options, and are
// logical units made anew, whose commands meet those of the former ones and of target a.
func TestReload(t *testing.T) {
	r := newRun(t)
	r.start(config)
	all, a, b := disks()
	r.everyTransport(0, a, b)
	admin := mgmt.NewClient(filepath.Join(r.target.Dir, "socket"))
	defer admin.Close()
	reloads := 0
	products := []string{"A", "B"}
	change := func(ctx context.Context, left func() int64) error {
		for ; left() > 0 && ctx.Err() == nil; reloads++ {
			r.target.Edit("product: "+products[reloads%2], "product: "+products[(reloads+1)%2])
			if _, err := admin.Reload(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	r.besides(loadBound, func() { r.work(5_000, all, change) })
	t.Logf("%d reloads", reloads)
}

// TestKill: the daemon is killed under load, or told to end, and started again. All data that it has
// acknowledged is in the files.
func TestKill(t *testing.T) {
	r := newRun(t)
	r.start(config)
	all, a, b := disks()
	r.everyTransport(0, a[1:], b[1:])
	const lives = 6
	r.work(6_000, all[1:], r.lives(lives, func(life int64) {
		if life%2 == 0 {
			r.target.Stop()
		} else {
			r.target.Kill()
		}
	}))
}
