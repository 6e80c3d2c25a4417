package lane

const (
	// linesMost and linesBytes bound the answers that are on their way through the
	// executor.
	linesMost  = 256
	linesBytes = 16 << 20
)

// answers are the answers on their way through the executor, by their rows. bytes is the
// sum of their sizes. No line is read while [linesMost] or [linesBytes] is reached, so
// that an executor that is slower than the provider's results does not fill the memory.
type answers struct {
	out     map[uint64]outLine
	bytes   int64
	failing []failing // rows that wait to fail by the refusal of their batch
}

// outLine is an answer on its way through the executor.
type outLine struct {
	batch  *batch // nil while there is none
	errand *Errand
	bytes  int64
}

// failing is a row that fails by the refusal of its batch.
type failing struct {
	seq    uint64
	errand *Errand
}

// back notes that an answer is no longer on its way.
func (a *answers) back(seq uint64) {
	if o, out := a.out[seq]; out {
		a.bytes -= o.bytes
		delete(a.out, seq)
	}
}

// add counts an answer that is sent to its row.
func (a *answers) add(seq uint64, o outLine) {
	a.out[seq] = o
	a.bytes += o.bytes
}

// full reports whether no further line is read for the moment.
func (a *answers) full() bool { return len(a.out) >= linesMost || a.bytes >= linesBytes }
