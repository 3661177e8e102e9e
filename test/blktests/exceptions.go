//go:build blktests

package blktests

// exceptions are the tests that do not pass, and why.
var exceptions = map[string]string{
	"002": "it is for the transport loop", "016": "it is for the transport loop", "017": "it is for the transport loop", "052": "it is for the transport loop", "055": "it is for the transport loop",
	"030": "it sets Linux's own target up", "031": "it sets Linux's own target up", "038": "it sets Linux's own target up", "048": "it sets Linux's own target up",
	"051": "it sets Linux's own target up", "054": "it sets Linux's own target up", "057": "it sets Linux's own target up", "058": "it sets Linux's own target up", "060": "it sets Linux's own target up",
	"065": "it sets Linux's own target up",
	"032": "it is for drives on PCIe", "039": "it is for drives on PCIe", "046": "it is for drives on PCIe", "049": "it is for drives on PCIe", "050": "it is for drives on PCIe",
	"053": "it is for drives on PCIe", "059": "it is for drives on PCIe", "064": "it is for drives on PCIe", "066": "it is for drives on PCIe", "067": "it is for drives on PCIe",
	"033": "it passes a drive on PCIe through Linux's target", "034": "it passes a drive on PCIe through Linux's target", "035": "it passes a drive on PCIe through Linux's target",
	"036": "it passes a drive on PCIe through Linux's target", "037": "it passes a drive on PCIe through Linux's target",
	"041": "Debian's kernel has no authentication", "042": "Debian's kernel has no authentication", "043": "Debian's kernel has no authentication",
	"044": "Debian's kernel has no authentication", "045": "Debian's kernel has no authentication", "063": "Debian's kernel has no authentication",
	"056": "it is for network cards that place data", "062": "Debian's kernel has no TLS for NVMe", "069": "Debian's kernel has no KASAN",
}
