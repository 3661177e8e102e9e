//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"time"
)

// Some drivers cannot take a device from programs that have it open (rxe and siw in Linux 6.1: they have no
// disassociate_ucontext). Such a device is removed when the last program has closed it, and whoever removes it
// waits for that. The connection manager reports the removal only if something is bound to the device, and,
// depending on the order in which modules were loaded, only after that wait. But the device always leaves
// sysfs before the kernel waits.

// lookTime is the time between two looks for a device.
const lookTime = time.Second

// look waits until the device is gone, and sees to it that siw listens until then.
func (d *Device) look() {
	t := time.NewTicker(lookTime)
	defer t.Stop()
	for {
		select {
		case <-d.closing:
			return
		case <-t.C:
		}
		if _, err := os.Stat(d.node); errors.Is(err, fs.ErrNotExist) {
			d.removed()
			return
		}
		if d.siw {
			d.mu.Lock()
			listeners := slices.Collect(maps.Keys(d.listeners))
			d.mu.Unlock()
			for _, l := range listeners {
				l.on.look(d)
			}
		}
	}
}

func (d *Device) removed() { d.lost(fmt.Errorf("verbs: %s has been removed", d.cfg.Name)) }

// lost ends all connections, once: the device is gone.
func (d *Device) lost(err error) {
	d.mu.Lock()
	first := d.gone == nil
	if first {
		d.gone = err
	}
	d.mu.Unlock()
	if !first {
		return
	}
	d.log.Error("the RDMA device is lost; its connections end", "reason", err)
	d.endAll(err, func(*queuePair) bool { return true })
	d.mu.Lock()
	listeners := slices.Collect(maps.Keys(d.listeners))
	d.mu.Unlock()
	for _, l := range listeners {
		d.work.Go(func() { l.close(err) }) // the caller may be one of the connection manager's events
	}
	if d.cfg.Lost != nil {
		d.work.Go(func() { d.cfg.Lost(err) })
	}
}

// lostFor returns why the device is lost; nil: it is not lost.
func (d *Device) lostFor() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.gone
}

// add registers a listener, which is closed when the device is lost.
func (d *Device) add(l *listener) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone == nil {
		d.listeners[l] = struct{}{}
	}
	return d.gone
}

func (d *Device) remove(l *listener) {
	d.mu.Lock()
	delete(d.listeners, l)
	d.mu.Unlock()
}

// librdmacm opens each device for itself when it first sees it, and keeps devices that are gone open until it
// sees another one (rdma-core 44). contexts holds the contexts that librdmacm is known to have.
var contexts struct {
	mu sync.Mutex
	by map[*C.struct_ibv_device][]*C.struct_ibv_context // guarded by mu
}

// met notes the context that librdmacm has for the device of id.
func met(id *C.struct_rdma_cm_id) {
	ctx := C.os_cm_context(id)
	if ctx == nil {
		return
	}
	contexts.mu.Lock()
	defer contexts.mu.Unlock()
	dev := C.os_device_of(ctx)
	if list := contexts.by[dev]; !slices.Contains(list, ctx) {
		if contexts.by == nil {
			contexts.by = make(map[*C.struct_ibv_device][]*C.struct_ibv_context)
		}
		contexts.by[dev] = append(list, ctx)
	}
}

// letGo ends librdmacm's hold on the device of own. The device is gone, and no identifier for it is left.
func letGo(own *C.struct_ibv_context) {
	contexts.mu.Lock()
	defer contexts.mu.Unlock()
	dev := C.os_device_of(own)
	for _, ctx := range contexts.by[dev] {
		C.os_let_go(ctx)
	}
	delete(contexts.by, dev)
}
