package scsi

// blockRange is a range of bytes that UNMAP is to give back.
type blockRange struct{ off, n int64 }
