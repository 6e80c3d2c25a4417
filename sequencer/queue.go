package sequencer

// queue holds the rows of one key that are not ready, in stream order. The first one is
// neither complete nor dropped. The rows that were set aside and have not come back are
// its end, since every row that follows one of them is set aside, too.
type queue struct {
	key         Key
	first, last int32 // slots of its rows, or none
	// complete counts the rows with a value.
	complete int
	// look is the first row that [Buffer.Next] has not passed: every row before it is
	// held or coming back.
	look int32
	// aside is the first row set aside that has not come back.
	aside int32
	// fresh is the first row set aside that is not on its way back.
	fresh int32
	// returning counts the rows that are coming back.
	returning int
	// listed says that the queue is in [queues.turns].
	listed bool
}

// noRows is a queue without rows.
var noRows = queue{first: none, last: none, look: none, aside: none, fresh: none}

// queues holds the keys that have rows.
type queues struct {
	items   []queue          // by number
	spare   []int32          // numbers that may be used again
	byName  map[string]int32 // numbers, without those of keys that are Own
	waiting int              // keys with a row that is complete and not ready
	// turns are the keys of which rows may come back, in the order in which [Buffer.Next]
	// looks at them. A number that is listed is not used again, even if its key has no
	// more rows.
	turns ring[int32]
	span  int // the most keys, as long as no more rows are known
}

func (k *queues) at(number int32) *queue { return &k.items[number] }

// find returns the queue of a key. A key that is Own has none that could be found: its
// only row knows its queue.
func (k *queues) find(key Key) (number int32, ok bool) {
	if key.Own {
		return none, false
	}
	number, ok = k.byName[key.Name]
	return number, ok
}

func (k *queues) add(key Key) (number int32) {
	if n := len(k.spare); n > 0 {
		number, k.spare = k.spare[n-1], k.spare[:n-1]
	} else {
		number = int32(len(k.items)) //nolint:gosec // at most the span
		k.items = append(k.items, noRows)
	}
	k.items[number] = noRows
	k.items[number].key = key
	if !key.Own {
		k.byName[key.Name] = number
	}
	return number
}

// drop forgets a key without rows. Its number is used again once it is no longer listed.
func (k *queues) drop(number int32) {
	q := &k.items[number]
	if !q.key.Own {
		delete(k.byName, q.key.Name)
	}
	listed := q.listed
	*q = noRows
	if q.listed = listed; !listed {
		k.unlist(number)
	}
}

// complete counts a row of a key that is complete and waits.
func (k *queues) complete(number int32) {
	q := k.at(number)
	if q.complete == 0 {
		k.waiting++
	}
	q.complete++
}

// ready uncounts a complete row of a key, which no longer waits.
func (k *queues) ready(number int32) {
	q := k.at(number)
	q.complete--
	if q.complete == 0 {
		k.waiting--
	}
}

// list has [Buffer.Next] look at a key in its turn.
func (k *queues) list(number int32) {
	k.at(number).listed = true
	k.turns.push(number, k.span)
}

// unlist notes that a queue is no longer listed.
func (k *queues) unlist(number int32) {
	q := &k.items[number]
	if q.listed = false; q.first == none {
		k.spare = append(k.spare, number)
	}
}
