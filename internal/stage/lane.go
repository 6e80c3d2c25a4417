package stage

import (
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/lane"
)

// batchLane is the batch lane of a partition, as its consumer and the executor know it.
type batchLane interface {
	consumer.Lane
	executor.Lane
}

func (s *Stage) newLane(int) (batchLane, error) { return new(lane.Lane), nil }

// addLanes creates the batch lane of each partition, where the configuration has one.
func (s *Stage) addLanes(opts Options) error {
	if !s.Cfg.LaneOn() {
		return nil
	}
	create := opts.lane
	if create == nil {
		create = (*Stage).newLane
	}
	for p := range s.Cfg.Streams.Partitions {
		lane, err := create(s, p)
		if err != nil {
			return err
		}
		s.lanes = append(s.lanes, lane)
	}
	s.executor.Lanes = func(partition int) executor.Lane { return s.lanes[partition] }
	return nil
}
