// Package openfiles keeps the calls of a process from taking its last file descriptors.
//
// What needs a descriptor now and then cannot wait for one as a call can: an embedded
// server that may not open a file of its store refuses all further messages until it is
// started again, and a lost connection to NATS needs a socket.
package openfiles

// reserve returns how many of limit descriptors connections of calls leave free.
func reserve(limit uint64) uint64 { return min(limit/4, 64) }
