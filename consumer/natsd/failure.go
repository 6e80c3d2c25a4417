package natsd

import "strings"

// writeError is how nats-server logs, in any case, that a write to the files of a stream
// has failed. The stream stores nothing from then on and answers nobody who publishes to
// it, also once there is room again; a function of the server that says so does not
// exist.
const writeError = "critical write error"

// noteFailure takes an error that the server has logged.
func (s *Server) noteFailure(text string) {
	if !strings.Contains(strings.ToLower(text), writeError) {
		return
	}
	s.mu.Lock()
	s.failure = text
	s.mu.Unlock()
	select {
	case s.failed <- struct{}{}:
	default:
	}
}

// Failure returns the error of a write to the store after which a stream stores nothing
// until [Server.Restart], in the words of the server, which names the stream and the
// file; empty when there was none.
func (s *Server) Failure() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// Failed receives a token when [Server.Failure] changes, for one reader.
func (s *Server) Failed() <-chan struct{} { return s.failed }

// Dir is the store directory.
func (s *Server) Dir() string { return s.cfg.Dir }

// Free returns how many bytes are left to the process on the disk of the store; ok is
// false where that is unknown.
func (s *Server) Free() (bytes int64, ok bool) { return freeBytes(s.cfg.Dir) }
