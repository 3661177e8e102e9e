package mgmt

import (
	"context"
	"errors"
	"time"
)

// Partitioner is the part of a Target that is about divided stores. Changes are for the table with the tag that
// match says, or for any with "*"; they return the table as it is then. Errors: *NotFoundError, *StaleError if
// the table is another one, *ConflictError if somebody stands in the way, *FailedError if the store failed, and
// any other if the change makes no sense. Except after a *FailedError nothing has changed.
type Partitioner interface {
	// Stores returns all stores of the configuration, in its order.
	Stores() []Store
	// Partitions returns the table of a divided store.
	Partitions(store string) (*Partitions, error)
	// InitPartitions makes an empty table. With force it takes the place of whatever the store begins with.
	InitPartitions(ctx context.Context, store, match string, force bool) (*Partitions, error)
	// CreatePartitions makes all of news or none.
	CreatePartitions(ctx context.Context, store, match string, news []NewPartition) (*Partitions, error)
	// AlterPartition changes one. Endpoints that stand in the way are ended with force.
	AlterPartition(ctx context.Context, store, name, match string, c PartitionChange, force bool) (*Partitions, error)
	// DeletePartition takes one out of the table, and with erase its octets.
	DeletePartition(ctx context.Context, store, name, match string, erase, force bool) (*Partitions, error)
	// Endpoints returns those that are open, in the order in which they were opened.
	Endpoints() []Endpoint
	// DropEndpoint ends one, and reports whether there was one.
	DropEndpoint(id uint64) bool
}

// Stores is the answer to GET /v1/stores.
type Stores struct {
	Time   time.Time `json:"time"` // of this answer
	Stores []Store   `json:"stores"`
}

// Store is a store of the configuration.
type Store struct {
	Name        string  `json:"name"`
	Type        string  `json:"type"`
	Open        bool    `json:"open"` // LUNs show it, or it is divided
	Size        int64   `json:"size"` // bytes; of one that is not open, as the configuration says; 0: it does not
	Unit        int     `json:"unit"` // bytes of a block; 0: it is not open
	Durability  string  `json:"durability"`
	ReadOnly    bool    `json:"readonly"`
	Partitioned bool    `json:"partitioned"`
	Free        []Range `json:"free,omitempty"`    // of a divided one
	Tag         string  `json:"etag,omitempty"`    // of its table
	Problem     string  `json:"problem,omitempty"` // why there is none
	Aging       *Aging  `json:"aging,omitempty"`   // of an open store that makes writes durable by itself
}

// Aging tells how a store makes writes durable by itself.
type Aging struct {
	WindowNS  int64  `json:"window_ns"`        // how long after it a write is durable, as long as flushes take less than half of it
	LongestNS int64  `json:"longest_flush_ns"` // that a flush has taken
	Flushes   uint64 `json:"flushes"`          // that the store has made by itself
	Lost      bool   `json:"lost"`             // a flush has failed: nothing is promised until the store is opened again
}

// Range is a part of a store.
type Range struct {
	Offset int64 `json:"offset"` // bytes
	Size   int64 `json:"size"`   // bytes
}

// Partitions is the table of a divided store, and how it is used. It is the answer to all requests about one.
type Partitions struct {
	Time       time.Time   `json:"time"` // of this answer
	Store      string      `json:"store"`
	UUID       string      `json:"uuid,omitempty"` // of the table
	Generation uint64      `json:"generation"`     // a change adds one; 0: there is no table
	Tag        string      `json:"etag"`           // what a change names in If-Match
	Size       int64       `json:"size"`           // bytes of the store
	Unit       int64       `json:"unit"`           // bytes: offsets and sizes are multiples of it
	Durability string      `json:"durability"`     // what a flush outlives: none, process, medium
	Free       []Range     `json:"free"`
	Partitions []Partition `json:"partitions"`
	Problem    string      `json:"problem,omitempty"`  // why there is no table
	Warnings   []string    `json:"warnings,omitempty"` // what is wrong with it, and harms nobody yet
}

// Partition is an entry of a table.
type Partition struct {
	UUID      string            `json:"uuid"`
	Name      string            `json:"name"`
	Offset    int64             `json:"offset"` // bytes
	Size      int64             `json:"size"`   // bytes
	Cache     *PartitionCache   `json:"cache,omitempty"`
	Access    []PartitionAccess `json:"access"`
	LUNs      []PartitionLUN    `json:"luns"`
	Endpoints int               `json:"endpoints"` // that are open
	// Writes through endpoints since the partition was first opened, how many of them are not known to be durable
	// yet, and whether a flush has failed.
	Writes  uint64 `json:"writes"`
	Lag     uint64 `json:"lag"`
	Lost    bool   `json:"durability_lost,omitempty"`
	Aging   *Aging `json:"aging,omitempty"`   // of an open partition whose writes are made durable by themselves
	IO      *IO    `json:"io,omitempty"`      // of endpoints since then; of a partition that was not opened yet: none
	Problem string `json:"problem,omitempty"` // why it cannot be opened
}

// PartitionCache says what happens to writes that nobody flushes.
type PartitionCache struct {
	WriteMS uint32 `json:"write_ms"`        // milliseconds that a write may wait before it is made durable; 0: for ever
	Write   string `json:"write,omitempty"` // none: no write waits, each is durable before it completes
}

// PartitionAccess is a line of the rights of a partition.
type PartitionAccess struct {
	Who    string `json:"who"`    // any, uid:N, gid:N, name:NAME
	Rights string `json:"rights"` // letters of rwfadm
}

// PartitionLUN is a LUN that shows a partition.
type PartitionLUN struct {
	Target string `json:"target"`
	LUN    uint16 `json:"lun"`
}

// NewPartition describes a partition that is to be made.
type NewPartition struct {
	Name   string            `json:"name"`
	Size   int64             `json:"size"`             // bytes
	Offset int64             `json:"offset,omitempty"` // bytes; 0: the first multiple of 1 MiB where it fits
	Cache  *PartitionCache   `json:"cache,omitempty"`
	Access []PartitionAccess `json:"access,omitempty"`
}

// PartitionChange is the body of PATCH of a partition. What is nil stays.
type PartitionChange struct {
	Name   *string            `json:"name,omitempty"`
	Size   *int64             `json:"size,omitempty"` // bytes
	Cache  *PartitionCache    `json:"cache,omitempty"`
	Access *[]PartitionAccess `json:"access,omitempty"` // all lines
}

// Endpoints is the answer to GET /v1/endpoints.
type Endpoints struct {
	Time      time.Time  `json:"time"` // of this answer
	BoundsNS  []int64    `json:"latency_bounds_ns"`
	Endpoints []Endpoint `json:"endpoints"`
}

// Endpoint is a queue pair that works on a partition, and what it did. Its IO counts operations of the store.
type Endpoint struct {
	ID        uint64    `json:"id"` // of this life of the daemon
	Store     string    `json:"store"`
	Partition string    `json:"partition"`
	UUID      string    `json:"uuid"` // of the partition
	Identity  string    `json:"identity"`
	Rights    string    `json:"rights"`
	Order     string    `json:"order"` // strict, free-start, free-finish, free
	Via       string    `json:"via"`
	Size      int64     `json:"size"` // bytes of the partition when it was opened
	Since     time.Time `json:"since"`
	IO        IO        `json:"io"`
}

// StaleError says that a change was meant for another table than there is.
type StaleError struct{ What string }

func (e *StaleError) Error() string { return e.What }

// ConflictError says that somebody, or the configuration, stands in the way of a change.
type ConflictError struct{ What string }

func (e *ConflictError) Error() string { return e.What }

// FailedError says that a store has failed to do what a change asks for.
type FailedError struct{ What string }

func (e *FailedError) Error() string { return e.What }

// errOf makes the error of an answer with that status.
func errOf(status int, text string) error {
	for _, row := range statuses {
		if row.status == status {
			return row.make(text)
		}
	}
	return errors.New(text)
}

// statuses says which error is which status of HTTP.
var statuses = []struct {
	status int
	is     func(error) bool
	make   func(string) error
}{
	{404, is[*NotFoundError], func(s string) error { return &NotFoundError{s} }},
	{409, is[*ConflictError], func(s string) error { return &ConflictError{s} }},
	{412, is[*StaleError], func(s string) error { return &StaleError{s} }},
	{500, is[*FailedError], func(s string) error { return &FailedError{s} }},
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
