package stag

import "testing"

// BenchmarkAccess measures the cost of one tagged segment: check, reference, pieces, release.
func BenchmarkAccess(b *testing.B) {
	table := NewTable(100)
	d := table.NewDomain()
	st := table.NewStream(d, 1)
	s := must(table.Register(d, nil, Region{Segments: segs(0, 64, 64, 64, 64), Access: all}))
	pieces := make([][]byte, 0, 4)
	b.ReportAllocs()
	for b.Loop() {
		r, err := st.Acquire(RemoteWrite, s, 100, 100)
		if err != nil {
			b.Fatal(err)
		}
		pieces = r.Append(pieces[:0], 0, 100)
		r.Release()
	}
}

// BenchmarkOneShot measures the cost of one command at Host 1, from Reserve to Consume.
func BenchmarkOneShot(b *testing.B) {
	table := NewTable(1000)
	st := table.NewStream(table.NewDomain(), 64)
	region := Region{Segments: segs(0, 64), Access: all}
	b.ReportAllocs()
	for b.Loop() {
		s := advertise(st, region)
		r, err := st.Acquire(RemoteRead, s, 0, 64)
		if err != nil {
			b.Fatal(err)
		}
		r.Release()
		if released, err := st.Close(s); !released || err != nil {
			b.Fatal(released, err)
		}
		if err := st.Consume(s); err != nil {
			b.Fatal(err)
		}
	}
}
