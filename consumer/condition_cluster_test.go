//go:build long

package consumer

import "testing"

// The servers of a cluster agree on the condition, too, whichever of them a writer is connected to.
func TestAFencedWriterStoresNothingInACluster(t *testing.T) { fightForPartitions(t, 3) }
