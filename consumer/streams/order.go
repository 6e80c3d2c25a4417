package streams

// Order is the order in which the results of a partition are stored.
type Order string

const (
	// OrderStream is that of the rows in the input stream. The empty order means the same.
	OrderStream Order = "stream"
	// OrderKey is that of the rows among those of the same key. Keys don't wait for each other.
	OrderKey Order = "key"
	// OrderNone is that in which the rows are done.
	OrderNone Order = "none"
)
