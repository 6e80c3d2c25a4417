// Package lane holds the simulator of the batch lane: whole stages in virtual time, a
// real JetStream server, and the mock's Batch APIs, with processes that are killed at
// each step between the intent of a batch and its deletion.
package lane
