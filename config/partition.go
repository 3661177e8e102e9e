package config

import (
	"strings"

	"oneshot/partition"
)

// Partition is a partition of a memory store.
type Partition struct {
	Name   string
	Pos    Position // of the name
	Size   int64    // bytes
	Offset int64    // bytes; 0: the first place where it fits
	Access []AccessLine
}

// AccessLine says who may do what, in the words of package partition: they are valid.
type AccessLine struct{ Who, Rights string }

// New describes p to package partition.
func (p *Partition) New() partition.New {
	n := partition.New{Name: p.Name, Size: p.Size, Offset: p.Offset}
	for _, l := range p.Access {
		who, _ := partition.ParseWho(l.Who)
		rights, _ := partition.ParseRights(l.Rights)
		n.Access = append(n.Access, partition.Access{Who: who, Rights: rights})
	}
	return n
}

// partitioned reads whether s is divided and, of a memory store, into what.
func (d *decoder) partitioned(o *object, s *Store) {
	o.bool("partitioned", &s.Partitioned)
	if s.Partitioned && s.Type == StoreNull {
		o.take("partitioned").errorf("a null store keeps no partition table: remove this, or choose another type")
	}
	if s.Type != StoreMemory && !o.has("partitions") {
		return // nor is the key known
	}
	v := o.take("partitions")
	switch {
	case !v.given():
		return
	case s.Type != StoreMemory:
		d.errorf(v.at, "the partitions of a %s store stand in its own table, not here: remove this, and use target partition create", s.Type)
		return
	case !s.Partitioned:
		d.errorf(v.at, "the store %q is not divided: add partitioned: true", s.Name)
		return
	}
	list := d.object(v.node, "partitions")
	if list == nil {
		return
	}
	for _, f := range list.fields {
		s.Partitions = append(s.Partitions, d.partition(list.take(f.key)))
	}
}

func (d *decoder) partition(v value) Partition {
	p := Partition{Name: v.key, Pos: v.at}
	o := d.object(v.node, "a partition")
	if o == nil {
		return p
	}
	if !o.has("size") {
		d.errorf(v.at, "the partition %q has no size: add one, such as size: 64MiB", p.Name)
	}
	o.size("size", &p.Size)
	o.size("offset", &p.Offset)
	if a := o.take("access"); a.given() {
		p.Access = d.accessLines(a)
	}
	o.done()
	return p
}

// accessLines reads "{any: r, uid:998: rwf}".
func (d *decoder) accessLines(v value) (lines []AccessLine) {
	o := d.object(v.node, "access")
	if o == nil {
		return nil
	}
	for _, f := range o.fields {
		line := AccessLine{Who: f.key}
		if _, err := partition.ParseWho(f.key); err != nil {
			d.errorf(f.at, "%v", err)
		}
		set(o.take(f.key), &line.Rights, "rights such as rwf", func(text string) (string, error) {
			_, err := partition.ParseRights(text)
			return text, err
		})
		lines = append(lines, line)
	}
	return lines
}

// checkPartitions asks whether the table of a memory store can be made.
func (d *decoder) checkPartitions(o *object, s *Store) {
	if !s.Partitioned || s.Type != StoreMemory || s.Size == 0 {
		return
	}
	news := make([]partition.New, len(s.Partitions))
	for i := range s.Partitions {
		if s.Partitions[i].Size == 0 {
			return // that is said already
		}
		news[i] = s.Partitions[i].New()
	}
	if err := partition.Plan(s.Size, news...); err != nil {
		v := o.take("partitioned")
		if o.has("partitions") {
			v = o.take("partitions")
		}
		d.errorf(v.at, "the store %q cannot be divided so: %v", s.Name, err)
	}
}

// lunPartition checks which partition of s, if any, a LUN shows.
func (d *decoder) lunPartition(v value, s *Store, lun *LUN) bool {
	switch {
	case !s.Partitioned && lun.Partition == "":
		return true
	case !s.Partitioned:
		v.errorf("the store %q is not divided: add partitioned: true to it, or write %s here", s.Name, s.Name)
		return false
	case lun.Partition == "":
		v.errorf("the store %q is divided, and a LUN shows a partition of it: write %s/PARTITION", s.Name, s.Name)
		return false
	case s.Type != StoreMemory: // its table knows
		return true
	}
	if d.partitions[lun.Shows()] {
		return true
	}
	names := make([]string, len(s.Partitions))
	for i := range s.Partitions {
		names[i] = s.Name + "/" + s.Partitions[i].Name
	}
	advice := "define it under partitions"
	if len(names) > 0 {
		advice = choices(lun.Shows(), names)
	}
	v.errorf("there is no partition %q: %s", lun.Shows(), advice)
	return false
}

// divisionDetails returns what people want to know of a divided store.
func (s *Store) divisionDetails() []string {
	switch {
	case !s.Partitioned:
		return nil
	case s.Type != StoreMemory:
		return []string{"divided by its own table, which wins over this file: target partition ls " + s.Name}
	case len(s.Partitions) == 0:
		return []string{"divided at each start into nothing"}
	}
	names := make([]string, len(s.Partitions))
	for i, p := range s.Partitions {
		names[i] = p.Name + " " + FormatSize(p.Size)
		if p.Offset > 0 {
			names[i] += " at " + FormatSize(p.Offset)
		}
		for _, l := range p.Access {
			names[i] += " (" + l.Who + " " + l.Rights + ")"
		}
	}
	return []string{"divided at each start into " + strings.Join(names, ", ")}
}

// LUNSizeText returns the size of a LUN for people, as Store.SizeText does.
func (c *Config) LUNSizeText(l *LUN) string {
	s := c.Store(l.Store)
	if l.Partition == "" {
		return s.SizeText()
	}
	for _, p := range s.Partitions {
		if p.Name == l.Partition {
			return FormatSize(p.Size)
		}
	}
	return "size of the partition"
}

// Shows is what the LUN shows, as the configuration names it: STORE or STORE/PARTITION.
func (l *LUN) Shows() string {
	if l.Partition == "" {
		return l.Store
	}
	return l.Store + "/" + l.Partition
}

// cutPartition divides the name of what a LUN shows.
func cutPartition(text string) (store, partition string) {
	store, partition, _ = strings.Cut(text, "/")
	if partition == "" {
		return text, ""
	}
	return store, partition
}
