package streams

// SetRequestBytes sets how many bytes a reading asks for at once.
func (r *Reading) SetRequestBytes(n int) { r.most = n }
