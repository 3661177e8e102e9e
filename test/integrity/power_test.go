package integrity

import (
	"path/filepath"
	"strings"
	"testing"

	"oneshot/initiator"
	"oneshot/test/medium"
)

// TestPowerCut: the daemon is killed, and the power of its media is cut. Data that a flush, FUA or a
// write-through cache has made durable is there.
func TestPowerCut(t *testing.T) { powerCuts(t, 0) }

// TestFailingMedium: in addition one sync of 60 fails, and bytes are lost. From then on no flush succeeds
// until the daemon has opened the store again.
func TestFailingMedium(t *testing.T) { powerCuts(t, 60) }

func powerCuts(t *testing.T, faults int) {
	r := newRun(t)
	r.faults = faults > 0
	dir := t.TempDir()
	var all []*disk
	var views []*view
	for lun, name := range []string{"back", "direct", "through"} {
		d := newDisk(name, diskSize/sectorSize)
		d.model.volatile, d.through = true, name == "through"
		d.medium = medium.NewWith(t, filepath.Join(dir, name), diskSize, r.seed+uint64(lun), medium.Options{Lost: func() { d.model.lose(true) }})
		all = append(all, d)
		block := sectorSize
		if name == "direct" {
			block = 4096
		}
		views = append(views, &view{disk: d, lun: lun, block: block, atomic: true})
	}
	r.start(strings.ReplaceAll(`
log: {level: error}
stores:
  back:    {type: file, path: MEDIA/back/disk.img}
  direct:  {type: file, path: MEDIA/direct/disk.img, direct: true}
  through: {type: file, path: MEDIA/through/disk.img, cache: writethrough}
targets: [{iqn: `+iqn+`a, luns: {0: back, 1: {store: direct, block_size: 4096}, 2: through}}]
portals:
  - {transport: tcp, listen: $PORTAL}
  - {transport: iwarp, listen: $PORTAL2}
state: $DIR/state
`, "MEDIA", dir))
	r.host("iscsi", r.target.Portals[0], "a", "", 0, initiator.Options{}, 8, views...)
	r.host("oneshot+iwarp", r.target.Portals[1], "a", "", 0, initiator.Options{}, 8, views...)
	for _, d := range all {
		d.medium.FailSyncs(faults)
	}
	const lives = 8
	r.work(5_000, all, r.lives(lives, func(life int64) {
		r.target.Kill()
		for _, d := range all {
			d.medium.FailSyncs(0)
			d.medium.Cut()
			d.model.lose(false)
			if life < lives-1 {
				d.medium.FailSyncs(faults)
			}
		}
	}))
	for _, d := range all {
		t.Logf("%s: %d syncs", d.name, d.medium.Syncs())
	}
}

// TestWritesInPart: Linux cuts long writes in requests. If one of these fails, it reports a short count. The
// daemon then writes the rest again, to the right place. It starts again some times: after the first durable write of a store that fails no
// other one is done, and blocks of an atomic write that failed in the middle are refused.
func TestWritesInPart(t *testing.T) {
	r := newRun(t)
	r.faults = true
	dir := t.TempDir()
	var all []*disk
	var views []*view
	for lun, name := range []string{"ring", "cached", "threads"} {
		d := newDisk(name, diskSize/sectorSize)
		o := medium.Options{Request: 128 << 10, Cached: name == "cached"}
		d.medium = medium.NewWith(t, filepath.Join(dir, name), diskSize, r.seed+uint64(lun), o)
		all = append(all, d)
		views = append(views, &view{disk: d, lun: lun, block: 4096, atomic: true})
	}
	r.start(strings.ReplaceAll(`
log: {level: error}
stores:
  ring:    {type: file, path: MEDIA/ring/disk.img, direct: true, io: uring}
  cached:  {type: file, path: MEDIA/cached/disk.img, direct: true, io: uring}
  threads: {type: file, path: MEDIA/threads/disk.img, direct: true, io: threads}
targets: [{iqn: `+iqn+`a, luns: {0: {store: ring, block_size: 4096}, 1: {store: cached, block_size: 4096}, 2: {store: threads, block_size: 4096}}}]
portals: [{transport: tcp, listen: $PORTAL}]
state: $DIR/state
`, "MEDIA", dir))
	r.host("iscsi", r.target.Portals[0], "a", "", 0, initiator.Options{}, 8, views...)
	for _, d := range all {
		d.medium.RefuseWrites(40)
	}
	const lives = 4
	r.work(4_000, all, r.lives(lives, func(life int64) {
		r.target.Kill() // told to end, it would say that writes with FUA have failed
		if life == lives-1 {
			for _, d := range all {
				d.medium.RefuseWrites(0)
			}
		}
	}))
}
