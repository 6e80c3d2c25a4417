package streams

// Order is the order in which the results of a partition are stored.
type Order string

const (
	// OrderStream keeps the order of the rows in the input stream. The empty order means
	// the same.
	OrderStream Order = "stream"
	// OrderKey keeps the order of the rows that have the same key. Keys don't wait for
	// each other: with rows 1 (key a), 2 (b) and 3 (a), row 2 may be stored first, and
	// row 3 waits for row 1.
	OrderKey Order = "key"
	// OrderNone stores each result when its row is done.
	OrderNone Order = "none"
)
