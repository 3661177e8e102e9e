package mirror

import (
	"errors"

	"oneshot/ha/quorum"
	"oneshot/ha/replica"
)

// The copies of a mirror belong to a lineage: what they hold follows from what all of them have agreed on. When the
// administrator forces one copy to go on without others it begins another lineage, and theirs has ended. The functions
// here are for a copy that nobody uses.

// Kept is what the metadata of a copy tell.
type Kept struct {
	View    replica.View // the newest that the copy knows
	Mark    uint64       // all records up to it are on its disk
	Disk    string       // identity of the disk that they tell of
	Unknown bool         // the disk was set back, or exchanged
	Missing int64        // bytes that the copy goes without, because no copy could read them
}

// Inspect returns what the metadata of a copy tell, nil if it has none.
func Inspect(fsys quorum.FS) (*Kept, error) {
	m, err := readMetadata(fsys)
	switch {
	case errors.Is(err, errNoMetadata):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &Kept{Disk: m.disk, View: m.saved.View, Mark: m.saved.Mark, Unknown: m.saved.Unknown, Missing: replica.SectorBytes(m.saved.Missing)}, nil
}

// Force makes a copy the one with which a lineage begins. v is the first view of it. If the copy was not in sync the others
// get all of it: what they lack it does not know. disk is the identity of the copy, cfg how the mirror works (Usual). Done
// twice it is the same.
func Force(fsys quorum.FS, v replica.View, wasInSync bool, disk string, cfg replica.Config) error {
	m, err := readMetadata(fsys)
	if errors.Is(err, errNoMetadata) {
		m, err = &metadata{fsys: fsys, disk: disk}, nil
		wasInSync = false
	}
	if err != nil {
		return err
	}
	if m.saved.Unknown || m.disk != disk {
		m.samples, wasInSync = nil, false
	}
	m.disk = disk
	m.saved.Force(v, wasInSync, &cfg)
	m.life++
	return errors.Join(m.renew(), m.close())
}

// GiveUp makes a copy of a former lineage one that another copy has to bring level: in what may differ, if that is known,
// else in all. It is known if the copy was in sync in its lineage, and the one with which the new lineage began was so, too:
// what the one has and the other has not is in regions and bitmaps of the two (invariant 5 of the simulation). whole says
// that it is not known. Done twice it may be more.
func GiveUp(fsys quorum.FS, self replica.ID, whole bool, cfg replica.Config) (partly bool, err error) {
	m, err := readMetadata(fsys)
	if errors.Is(err, errNoMetadata) {
		return false, nil // all of it is suspect
	}
	if err != nil || whole || !m.saved.GiveUp(self, &cfg) {
		if err := fsys.Remove(metaName); err != nil {
			return false, err
		}
		return false, fsys.SyncDir()
	}
	m.life++
	return true, errors.Join(m.renew(), m.close())
}
