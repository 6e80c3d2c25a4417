package throttle

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
)

// forger publishes what anybody can who has the right to: nonsense, messages of before,
// and lies that look right.
type forger struct {
	rng   *rand.Rand
	heard [64][]byte // what it has overheard
	count int
}

var (
	number  = regexp.MustCompile(`:-?[0-9][0-9.e+-]*`)
	leader  = regexp.MustCompile(`"leader":"[^"]*"`)
	term    = regexp.MustCompile(`"term":([0-9]+)`)
	factors = []float64{-1, 0, 0.5, 2, 1000, 1e12}
)

func (f *forger) overhear(body []byte) {
	f.heard[f.count%len(f.heard)] = body
	f.count++
}

// message returns the next forgery.
func (f *forger) message() []byte {
	truth := f.heard[f.rng.IntN(min(len(f.heard), max(1, f.count)))]
	switch f.rng.IntN(6) {
	case 0: // nonsense
		noise := make([]byte, f.rng.IntN(100))
		for i := range noise {
			noise[i] = byte(f.rng.Uint32())
		}
		return noise
	case 1: // cut short
		return truth[:f.rng.IntN(len(truth)+1)]
	case 2: // said before
		return truth
	case 3: // usurped: the same plan by somebody who does not exist
		return term.ReplaceAllFunc(leader.ReplaceAll(truth, []byte(`"leader":"nobody"`)), func(t []byte) []byte {
			was, _ := strconv.ParseUint(string(t[len(`"term":`):]), 10, 64)
			return fmt.Appendf(nil, `"term":%d`, was+1)
		})
	default: // one number is another
		all := number.FindAllIndex(truth, -1)
		if all == nil {
			return truth
		}
		at := all[f.rng.IntN(len(all))]
		was, _ := strconv.ParseFloat(string(truth[at[0]+1:at[1]]), 64)
		lie := append([]byte(nil), truth[:at[0]+1]...)
		lie = strconv.AppendFloat(lie, was*factors[f.rng.IntN(len(factors))], 'g', -1, 64)
		return append(lie, truth[at[1]:]...)
	}
}

// forging lets a forger speak from then to then, once in so many seconds.
func forging(from, to, every float64) func(*Fleet) {
	return func(f *Fleet) {
		at(from, func(r *fleetRun) {
			r.net.mu.Lock()
			defer r.net.mu.Unlock()
			r.net.liar = &forger{rng: rand.New(rand.NewPCG(r.seed, 0xf0))}
		})(f)
		for t := from + 5; t < to; t += every {
			at(t, func(r *fleetRun) { r.net.forge() })(f)
		}
		f.heals = append(f.heals, to)
	}
}
