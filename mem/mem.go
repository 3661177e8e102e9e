// Package mem hands out the memory that I/O goes through: page-aligned leases from arenas
// outside the Go heap, fit for O_DIRECT, writev, io_uring and RDMA registration.
package mem
