package config

var (
	memoryStore = storeType{name: StoreMemory, read: (*decoder).memoryStore}
	nullStore   = storeType{name: StoreNull, read: (*decoder).memoryStore}
)

// memoryStore reads a store whose bytes are in the memory of the daemon, and are lost when it ends.
func (d *decoder) memoryStore(o *object, s *Store) {
	if !o.has("size") {
		d.errorf(s.Pos, "the %s store %q has no size: add one, such as size: 256MiB", s.Type, s.Name)
	}
	d.storeSize(o, s)
}
