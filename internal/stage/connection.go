package stage

import "github.com/nats-io/nats.go"

// use moves all that works over the connection to NATS to the one that has taken its
// place: the library closes a connection for good at some errors of the server, and the
// process goes on. The consumers come last: their next terms need the recorder.
func (s *Stage) use(nc *nats.Conn) {
	s.recorder.Use(nc)
	s.answerer.Use(nc)
	s.executor.UseStore(nc)
	s.sharing.use(nc)
	if s.batches != nil {
		s.batches.Use(nc)
	}
	s.lanes.use(nc)
	if s.spread != nil {
		s.spread.Use(nc)
	}
	for _, c := range s.consumers {
		c.Use(nc)
	}
	select {
	case <-s.steering.moved: // one that nobody has taken yet
	default:
	}
	s.steering.moved <- nc
}

// follow has the stage use each connection that takes the place of the present one, until
// stop is called. It is called when the parts are there; if the connection was replaced
// since they were made, they are moved at once.
func (s *Stage) follow() (stop func()) {
	made := s.nc
	stop = s.Conn.OnMove(s.use)
	if nc := s.Conn.NC(); nc != made {
		s.use(nc)
	}
	return stop
}

// followRoom has the partitions wait while nothing can be stored on the embedded server,
// until stop is called.
func (s *Stage) followRoom() (stop func()) {
	return s.Conn.OnFull(func(why error) {
		for _, c := range s.consumers {
			c.SetFull(why)
		}
	})
}
