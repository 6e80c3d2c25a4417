// Package oldserver runs the program that ships against older nats-servers, each built
// from its Go module: the oldest two that can serve a stage and are not the one of the
// main module's go.mod, and one that can't. They are compiled only with the build tag
// oldserver:
//
//	make test-oldserver
//
// Every process listens on loopback alone and ends with the test that started it.
package oldserver
