package backend

// Resizer is a store whose size can change while it is open. Afterwards Info tells the new
// size, and operations are checked against it.
type Resizer interface {
	Store
	// Resize makes the store size bytes long, a multiple of Info.BlockSize, or as long as its
	// medium has become, with 0. What is there keeps its bytes; what is new reads as zeroes. On
	// failure the size is what it was. It refuses to make the store smaller. It may be called
	// from any goroutine, while operations are outstanding.
	Resize(size int64) error
}
