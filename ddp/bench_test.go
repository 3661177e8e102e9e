package ddp

import "testing"

// BenchmarkParse measures the cost of parsing the header of one FPDU.
func BenchmarkParse(b *testing.B) {
	fpdu := unhex(b, vectors[11].hex)
	b.ReportAllocs()
	for b.Loop() {
		n, err := flagsHost2.Prefix(fpdu)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := flagsHost2.Parse(fpdu[:n]); err != nil {
			b.Fatal(err)
		}
	}
}
