// Package real runs the program that ships against third-party servers: nginx with its
// own limits in front of the mock, and an npm package that speaks every provider's wire
// format and keeps a journal of its calls. Fleets of stages that share a budget run
// against the first, on a nats-server that is killed meanwhile.
//
// It needs the network for what is not installed, and takes a minute or two, so
// it is compiled only with the build tag real:
//
//	make test-real
//
// nginx is taken from the Debian archive, installed if it is missing and the
// user may; the npm package goes into a directory that the test removes. Every
// process listens on loopback alone and ends with the test that started it.
package real
