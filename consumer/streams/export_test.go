package streams

// SetRequestBytes sets how many bytes a reading asks for at once.
func (r *Reading) SetRequestBytes(n int) { r.most = n }

// Number makes messages those of a fast group.
var Number = number
