package lane

import (
	"time"

	"github.com/llm-stage/stage/llm/batchapi"
)

// transferRate is the least at which a provider takes the body of a batch, in bytes a
// second.
const transferRate = 1 << 20

// transfer is how long the body of a batch may be on its way.
func transfer(bytes int64) time.Duration {
	return time.Duration(bytes) * time.Second / transferRate
}

// createTime bounds the creation of a batch, from the moment that the ownership of the
// partition was proven. It ends well before the time after which the next owner concludes
// that the batch is absent, [adoptTime]:
//
//  1. A proves that it owns the partition, and creates batch b.
//  2. B claims the partition, and reads the intent of b.
//  3. B looks for b until adoptTime has passed since its claim, which came after A's
//     proof. By then A's creation has ended for at least a third of adoptWait. So b is in
//     the provider's list, or it was never created.
//
// A process that is suspended between its proof and its creation, for longer than that,
// creates b when B has concluded that it is absent. If a batch needs a file, B has
// deleted the file before ([batchapi.API.Withdraw]), and the creation fails. If it needs
// none, nothing prevents it: that moment is undecidable.
func createTime(limits batchapi.Limits, bytes int64, adoptWait time.Duration) time.Duration {
	bound := adoptWait * 2 / 3
	if limits.Inline {
		bound += transfer(bytes)
	}
	return bound
}

// adoptTime is how long a batch is looked for until it counts as absent.
func adoptTime(limits batchapi.Limits, bytes int64, adoptWait time.Duration) time.Duration {
	if limits.Inline {
		return adoptWait + transfer(bytes)
	}
	return adoptWait
}
