package stage

import (
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/executor"
)

// batchLane is the batch lane of a partition, as its consumer and the executor know it.
type batchLane interface {
	consumer.Lane
	executor.Lane
}

// addLanes creates the batch lane of each partition, where the configuration has one.
func (s *Stage) addLanes(opts Options) error {
	if !s.Cfg.LaneOn() {
		return nil
	}
	for p := range s.Cfg.Streams.Partitions {
		lane, err := opts.lane(s, p)
		if err != nil {
			return err
		}
		s.lanes = append(s.lanes, lane)
	}
	s.executor.Lanes = func(partition int) executor.Lane { return s.lanes[partition] }
	return nil
}
