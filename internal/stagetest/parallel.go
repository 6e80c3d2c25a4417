package stagetest

import (
	"flag"
	"strconv"
)

// waitingTests is how many tests that wait for processes run at a time.
const waitingTests = 8

// Wait lets more tests run at a time than there are cores, for packages whose tests
// mostly wait in real time: for processes, sockets, time-outs. It is called before the
// flags are parsed, so that -parallel takes precedence.
func Wait() {
	if err := flag.Set("test.parallel", strconv.Itoa(waitingTests)); err != nil {
		panic(err)
	}
}
