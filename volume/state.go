package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"

	"oneshot/backend"
	"oneshot/volume/access"
)

// Keeper keeps the state of a volume over restarts: persistent reservations, for initiators that
// ask for it (APTPL), access states of groups of target ports, a sanitize operation that has to be
// completed, and the generation of numbers of writes. Save replaces what is there atomically and durably; an empty state removes it. If it
// fails, what was there is still there; or the new state may be, if the error has a method MayBeKept. Calls do not overlap.
type Keeper interface {
	Load() (state []byte, err error)
	Save(state []byte) error
}

// Former is a state and a journal that an earlier version has kept, for each logical unit of its own.
type Former struct {
	State   Keeper
	Journal Journal
	Block   int // bytes of a block of the logical unit
}

// document is what is kept.
type document struct {
	Format   int // 2
	Access   access.State
	Sanitize *Order `json:",omitempty"` // is under way, or has failed
	// Sanitized is the last sanitize operation, if it succeeded.
	Sanitized *Order `json:",omitempty"`
	// Generation is the last one of numbers of writes; 0: there was none.
	Generation uint16 `json:",omitempty"`
}

func (d *document) empty() bool {
	return d.Access.Empty() && d.Sanitize == nil && d.Sanitized == nil && d.Generation == 0
}

// number begins the sequence with another generation than the last time that the store was open. Without a
// keeper, or if it fails, chance chooses one of 65,535.
func (v *Volume) number() {
	g := uint16(1 + rand.IntN(math.MaxUint16))
	if v.keeper != nil {
		next := func(d *document) { d.Generation = d.Generation%math.MaxUint16 + 1; g = d.Generation }
		chosen := g
		if err := v.keep(next); err != nil {
			g = chosen // the next one after a restart would be the same again
			v.log.Warn("the generation of numbers of writes could not be kept, so it is chosen by chance: users of endpoints may not notice, once in 65,535 times, that the store is opened again", "reason", err)
		}
	}
	v.sequence.Begin(g)
}

// keep changes what is kept, and returns when that is durable. After an error what was kept before is there, unless the error is errInDoubt.
func (v *Volume) keep(change func(*document)) error {
	v.keeping.Lock()
	defer v.keeping.Unlock()
	d := v.kept
	change(&d)
	if err := save(v.keeper, &d); err != nil {
		// It may be there all the same, and a restart would find what has not happened.
		back := save(v.keeper, &v.kept)
		if _, may := errors.AsType[mayBeKept](err); may && back != nil {
			err = fmt.Errorf("%w; %w, as what was there before cannot be written back: %w", err, errInDoubt, back)
		}
		return err
	}
	v.kept = d
	return nil
}

// errInDoubt: a restart may find the change, or what was kept before.
var errInDoubt = errors.New("a restart may find it nevertheless")

func save(k Keeper, d *document) error {
	if d.empty() {
		return k.Save(nil)
	}
	b, err := json.Marshal(d)
	if err != nil {
		panic(err) // numbers and strings
	}
	return k.Save(b)
}

// restore loads what was kept, or takes it over from earlier versions.
func (v *Volume) restore(former []Former) error {
	v.kept = document{Format: 2, Access: access.Nothing()}
	if v.keeper == nil {
		return nil
	}
	state, err := v.keeper.Load()
	if err != nil {
		return err
	}
	if len(state) != 0 {
		v.kept, err = parse(state)
	} else {
		err = v.takeOver(former)
	}
	if err == nil {
		err = v.forget(former)
	}
	if err != nil {
		return fmt.Errorf("volume: %w", err)
	}
	return nil
}

func parse(state []byte) (document, error) {
	d := document{Access: access.Nothing()}
	if err := json.Unmarshal(state, &d); err != nil {
		return d, fmt.Errorf("persistent reservations: %w", err)
	}
	if d.Format != 2 {
		return d, fmt.Errorf("persistent reservations: format %d makes no sense", d.Format)
	}
	return d, d.check()
}

func (d *document) check() error {
	if err := d.Access.Check(); err != nil {
		return err
	}
	for _, o := range []*Order{d.Sanitize, d.Sanitized} {
		if o == nil || o.valid() {
			continue
		}
		return fmt.Errorf("the sanitize operation that was kept makes no sense: action %d, %d passes of %d bytes", o.Action, o.Count, len(o.Pattern))
	}
	return nil
}

// ErrSanitize is the error of Inherit on a store with a sanitize operation that has not ended, or has failed.
var ErrSanitize = errors.New("volume: a sanitize operation was begun, and has not ended well")

// Inherit is for a store that is to be no volume of this process any more, but a copy of one that several have. It completes the atomic write that was
// begun there, and returns the reservations that were kept. forget is called when they are kept elsewhere: they would come back with a later volume.
func Inherit(s backend.Store, k Keeper, j Journal, log *slog.Logger) (kept access.State, forget func() error, err error) {
	v := &Volume{store: s, info: s.Info(), keeper: k, log: log}
	if err = v.restore(nil); err == nil && v.kept.Sanitize != nil {
		err = ErrSanitize
	}
	if err == nil {
		err = v.replay(j)
	}
	kept = v.kept.Access
	kept.Groups = nil // are those of this process
	return kept, func() error {
		return save(k, &document{Format: 2, Access: access.Nothing(), Generation: v.kept.Generation})
	}, err
}

// takeOver merges the states of earlier versions. They are forgotten when that is durable.
func (v *Volume) takeOver(former []Former) error {
	for _, f := range former {
		if f.State == nil {
			continue
		}
		state, err := f.State.Load()
		if err != nil {
			return err
		}
		if len(state) == 0 {
			continue
		}
		d, err := parseFormer(state, f.Block)
		if err != nil {
			return err
		}
		conflict := false
		if v.kept.Access, conflict = access.Merge(v.kept.Access, d.Access.Kept()); conflict {
			v.log.Warn("two logical units that show one store had a reservation each: that of the first one holds for both now, the other one is gone")
		}
		if v.kept.Sanitize == nil {
			v.kept.Sanitize = d.Sanitize
		}
	}
	if v.kept.empty() {
		return nil
	}
	return save(v.keeper, &v.kept)
}

func (v *Volume) forget(former []Former) error {
	for _, f := range former {
		if f.State == nil {
			continue
		}
		if err := f.State.Save(nil); err != nil {
			return err
		}
	}
	return nil
}

// formerDocument is what earlier versions have kept for a logical unit: format 1.
type formerDocument struct {
	Format      int
	Generation  uint32
	Type        access.Kind
	Holder      int // index in Registrants; -1: none
	Registrants []struct {
		Initiator string // SCSI initiator port name, or a device name, which stands for all of its ports
		Target    string // SCSI target port name
		Port      uint16 // relative target port identifier
		Key       uint64
	}
	Volatile bool // there is no APTPL: only what follows is kept
	Access   []struct {
		Group     uint16
		State     access.GroupState
		Preferred bool
	}
	Sanitize *Order
}

func parseFormer(state []byte, block int) (d document, err error) {
	f := formerDocument{Holder: -1}
	if err := json.Unmarshal(state, &f); err != nil {
		return d, fmt.Errorf("persistent reservations: %w", err)
	}
	if f.Format != 1 {
		return d, fmt.Errorf("persistent reservations: format %d makes no sense", f.Format)
	}
	d.Sanitize = f.Sanitize
	if d.Sanitize != nil {
		d.Sanitize.Block = block
	}
	d.Access = access.State{Generation: f.Generation, Persist: !f.Volatile, Kind: f.Type, Holder: f.Holder}
	if f.Type.All() {
		d.Access.Holder = -1
	}
	for _, r := range f.Registrants {
		target, err := formerPort(r.Target)
		if err != nil {
			return d, err
		}
		h := access.Holder{Initiator: formerInitiator(r.Initiator), Port: target}
		d.Access.Registrations = append(d.Access.Registrations, access.Registration{Holder: h, Relative: r.Port, Key: r.Key})
	}
	for _, g := range f.Access {
		d.Access = withGroup(d.Access, access.Group{ID: g.Group, State: g.State, Preferred: g.Preferred})
	}
	return d, d.check()
}

func withGroup(s access.State, g access.Group) access.State {
	merged, _ := access.Merge(s, access.State{Holder: -1, Groups: []access.Group{g}})
	return merged
}

// formerInitiator takes "iqn…,i,0x<ISID>" apart.
func formerInitiator(name string) access.Initiator {
	i := access.Initiator{Protocol: access.ISCSI, Name: name}
	if at := strings.LastIndex(name, ",i,0x"); at > 0 {
		i.Name, i.Port = name[:at], strings.ToLower(name[at+len(",i,0x"):])
	}
	return i
}

// formerPort takes "iqn…,t,0x<tag>" apart.
func formerPort(name string) (access.Port, error) {
	at := strings.LastIndex(name, ",t,0x")
	if at < 0 {
		return access.Port{}, fmt.Errorf("persistent reservations: the target port %q makes no sense", name)
	}
	tag, err := strconv.ParseUint(name[at+len(",t,0x"):], 16, 16)
	if err != nil {
		return access.Port{}, fmt.Errorf("persistent reservations: the target port %q makes no sense", name)
	}
	return access.Port{Target: name[:at], Group: uint16(tag)}, nil
}
