//go:build race

package consumer_test

// raced says that the race detector watches, which makes the long tests seven times as slow.
const raced = true
