package replica

// What copies have kept when the administrator forces one of them to go on without the others: it begins a lineage, and the others, whose
// own has ended, give up what that one does not have. Neither runs meanwhile, and what was in the log's memory is gone.

// Force makes what a copy has kept that of the one with which a lineage begins. v is the first view of it. wasInSync says that the copy was in
// sync in the newest view that it knows; otherwise it does not know what others lack, and they get all of it.
func (s *Saved) Force(v View, wasInSync bool, cfg *Config) {
	wasInSync = wasInSync && !s.Unknown
	s.Unknown, s.View = false, v
	if !wasInSync {
		s.Regions = AllRegions(cfg)
	}
}

// GiveUp makes it that of a copy which the one that was forced brings level, in what may differ. known is false if nobody knows what that
// is: then the copy begins without anything but AllRegions. It is known if the copy was in sync in its lineage: what the one has, and the
// other has not, is in the regions and bitmaps of the two.
func (s *Saved) GiveUp(self ID, cfg *Config) (known bool) {
	if s.Unknown || !s.View.InSync.Has(self) {
		return false
	}
	for _, b := range s.Bitmaps {
		for i := range b.All() {
			s.Regions.Set(int(int64(i) * cfg.Granule / cfg.Region))
		}
	}
	s.View, s.Mark, s.Bitmaps = View{}, 0, [16]Bits{}
	return true
}

// AllRegions are the regions of all stores.
func AllRegions(cfg *Config) (b Bits) {
	for i := range cfg.Stores {
		s := &cfg.Stores[i]
		for off := s.Off; off < s.Off+s.Size; off += cfg.Region {
			b.Set(int(off / cfg.Region))
		}
	}
	return b
}
