package streams

// SetRequestBytes sets how many bytes a reading asks for at once.
func (r *Reading) SetRequestBytes(n int) { r.most = n }

// Number is number, for tests that send the messages of a fast group in an order of their own.
var Number = number
