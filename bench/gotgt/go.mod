// A module of its own: the dependencies of a peer are none of ours.
module oneshot/bench/gotgt

go 1.26.8

require (
	github.com/gostor/gotgt v0.2.2
	github.com/sirupsen/logrus v1.9.0
)

require (
	github.com/mitchellh/go-homedir v1.1.0 // indirect
	github.com/satori/go.uuid v1.2.0 // indirect
	golang.org/x/sys v0.3.0 // indirect
)
