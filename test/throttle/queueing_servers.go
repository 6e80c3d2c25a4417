package throttle

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// lognormal draws lengths of 100 tokens on average.
func lognormal(sigma float64) func(*rand.Rand) int {
	return func(rng *rand.Rand) int {
		return max(1, int(100*math.Exp(sigma*rng.NormFloat64()-sigma*sigma/2)))
	}
}

// The lengths of replies in the Azure LLM inference trace 2023
// (github.com/Azure/AzurePublicDataset, CC-BY; P. Patel et al., Splitwise: Efficient
// generative LLM inference using phase splitting, ISCA 2024), at each twentieth, and the
// longest.
var (
	conversation = []float64{
		7, 41, 54, 67, 77, 85, 91, 96, 103, 113, 129, 151, 177, 217, 384, 395, 400, 411, 424, 451, 1000,
	}
	coding = []float64{6, 6, 7, 7, 8, 9, 9, 10, 11, 12, 13, 14, 16, 18, 20, 24, 29, 39, 55, 90, 1899}
)

// quantiles draws from a trace. In the last twentieth few are nearly as long as the
// longest.
func quantiles(at []float64) func(*rand.Rand) int {
	return func(rng *rand.Rand) int {
		x := rng.Float64() * float64(len(at)-1)
		i := int(x)
		from, to := at[i], at[i+1]
		part := x - float64(i)
		if i == len(at)-2 {
			return int(from * math.Pow(to/from, math.Pow(part, 4)))
		}
		return int(from + (to-from)*part)
	}
}

// meanOf returns the mean of lengths.
func meanOf(lengths func(*rand.Rand) int) float64 {
	rng, sum := rand.New(rand.NewPCG(1, 1)), 0.0
	const n = 10000
	for range n {
		sum += float64(lengths(rng))
	}
	return sum / n
}

// slotted is a server whose slots together reply to 20 calls a second. It is as fast for
// each whatever their number: llama.cpp, or any server behind a queue.
func slotted(slots, pool int, name string, lengths func(*rand.Rand) int) *Queueing {
	perSlot := 20 * meanOf(lengths) / float64(slots)
	return &Queueing{
		Name: fmt.Sprintf("%d slots, %s, pool %d", slots, name, pool),
		Pool: pool, Slots: slots, Enough: slots, Lengths: lengths,
		Speed: func(int) float64 { return perSlot },
	}
}

// batching is a server that works at all calls at once, up to so many, and the slower the
// more they are: one that does half as much for each at so many.
func batching(half float64, slots, pool int) *Queueing {
	return &Queueing{
		Name: fmt.Sprintf("batches up to %d, half as fast at %g, pool %d", slots, half, pool),
		Pool: pool, Slots: slots, Enough: slots, Lengths: quantiles(conversation),
		Speed: func(n int) float64 { return 100 / (1 + float64(n)/half) },
	}
}

// measured is what vLLM was measured to do in total, in tokens per second at some numbers
// of calls: Nemotron Nano 30B on two B200, of which the throughput grows up to 512 calls,
// but not evenly (docs.vultr.com/inference-cookbook).
var measured = [][2]float64{{1, 277}, {8, 1881}, {16, 3455}, {32, 3798}, {64, 8120}, {128, 11556}, {256, 15552}, {512, 18746}}

// measuredSpeed returns the speed of each of n calls.
func measuredSpeed(n int) float64 {
	x := max(1, float64(n))
	for i := 1; i < len(measured); i++ {
		a, b := measured[i-1], measured[i]
		if x <= b[0] {
			return a[1] * math.Pow(b[1]/a[1], math.Log(x/a[0])/math.Log(b[0]/a[0])) / x
		}
	}
	return measured[len(measured)-1][1] / x
}

// QueueingServers returns the servers of the table.
func QueueingServers() (list []*Queueing) {
	for _, slots := range []int{4, 8, 16, 48} {
		for _, pool := range []int{16, 64, 256} {
			if slots < pool {
				list = append(list, slotted(slots, pool, "sigma 0.3", lognormal(0.3)))
			}
		}
	}
	list = append(list,
		slotted(1, 64, "sigma 0.3", lognormal(0.3)),
		slotted(8, 64, "sigma 1", lognormal(1)),
		slotted(16, 64, "sigma 1", lognormal(1)),
		slotted(8, 64, "conversation", quantiles(conversation)),
		slotted(16, 256, "conversation", quantiles(conversation)),
		slotted(8, 64, "coding", quantiles(coding)),
	)
	silent := slotted(8, 64, "sigma 0.3, no lengths", lognormal(0.3))
	silent.Silent = true
	slotless := slotted(16, 16, "sigma 0.3", lognormal(0.3))
	list = append(list, silent, slotless, batching(32, 64, 64), batching(32, 64, 256))
	list = append(list, &Queueing{
		Name: "batches, no faster above 32, pool 64", Pool: 64, Slots: 1000, Enough: 32, Lengths: quantiles(conversation),
		Speed: func(n int) float64 { return 60 * min(1, 32/float64(max(1, n))) },
	})
	for _, slots := range []int{64, 512} {
		for _, pool := range []int{64, 256} {
			list = append(list, &Queueing{
				Name: fmt.Sprintf("vLLM as measured, up to %d, pool %d", slots, pool),
				Pool: pool, Slots: slots, Enough: min(slots, pool), Lengths: quantiles(conversation), Speed: measuredSpeed,
			})
		}
	}
	return list
}
