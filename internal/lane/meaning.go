package lane

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
)

// request is a kind of request that the lane makes to the provider.
type request uint8

const (
	uploading   request = iota // the file of a batch
	creating                   // a batch
	finding                    // a batch in the provider's list
	polling                    // the state of a batch
	fetching                   // the results of a batch
	cancelling                 // a batch
	withdrawing                // the input file of a batch that is not listed
	deleting                   // the files of a batch that is done

	requests = iota
)

// meaning is what the failure of a request means. It decides what the lane does next.
type meaning uint8

const (
	// passing means that the failure may pass. The same request is made again, with
	// growing waits.
	passing meaning = iota
	// account means that the key, the credit or the address is wrong, and no batch can
	// help. The lane pauses.
	account
	// noAPI means that nothing at this address takes such a request. It is made again
	// noAPIMost times, since a server or a proxy that restarts answers so, too; then the
	// lane pauses.
	noAPI
	// unknown means that the provider does not know the batch or the results that were
	// asked for. It may be wrong about that for some minutes, so the request is made
	// again before that is believed.
	unknown
	// refused means that the provider read the request and does not take its content.
	refused
	// crowded means that the provider's queue has no room.
	crowded
	// done means that no further request of this kind is of use.
	done
)

// noAPIMost is how many requests in a row for one batch may be answered with noAPI until
// the lane pauses: half a minute.
const noAPIMost = 6

// meanings are the meanings of HTTP statuses; 404 stands for 410, too. A status that is
// not listed for a request has the meaning of its class, see [meaningOf]. For instance a
// 404 that answers a request for results is about these results: it says nothing about
// the model or the address, which have worked for the batch.
var meanings = [requests]map[int]meaning{
	uploading:   {401: account, 402: account, 403: account, 407: account, 404: noAPI, 405: noAPI, 501: noAPI},
	creating:    {401: account, 402: account, 403: account, 407: account, 404: noAPI, 405: noAPI, 501: noAPI},
	finding:     {401: account, 402: account, 403: account, 407: account, 404: noAPI, 405: noAPI, 501: noAPI},
	polling:     {401: account, 402: account, 403: account, 407: account, 404: unknown},
	fetching:    {401: account, 402: account, 403: account, 407: account, 404: unknown},
	cancelling:  {401: account, 402: account, 403: done, 407: account, 404: done, 405: done, 409: done, 501: done}, // it runs to its end
	withdrawing: {401: account, 402: account, 403: done, 407: account, 404: done},                                  // it stays uncertain, see [finder.absent]
	deleting:    {401: passing, 402: passing, 403: passing, 407: passing, 404: done},                               // it is tried cleanTries times
}

// meaningOf returns what the failure of a request means.
func meaningOf(r request, err error) meaning {
	e, ok := errors.AsType[*llm.Error](err)
	status := 0
	switch {
	case errors.Is(err, batchapi.ErrNotFound):
		status = http.StatusNotFound
	case ok:
		status = e.Status
	}
	if m, listed := meanings[r][status]; listed && (!ok || e.Class != llm.Capacity) {
		return m
	}
	if !ok {
		return passing // the process's own, such as the end of its time
	}
	return meaningOfClass(r, e.Class)
}

func meaningOfClass(r request, class llm.Class) meaning {
	switch {
	case class == llm.Fatal && r != deleting:
		return account
	case class == llm.Permanent && (r == uploading || r == creating):
		return refused
	case class == llm.Permanent && r == fetching: // such as a file that the provider can't read
		return unknown
	case class == llm.Permanent && r == cancelling: // it is over already
		return done
	case class == llm.Capacity && r == creating:
		return crowded
	}
	return passing
}

// absentAPI is the error of a pause after noAPIMost answers of noAPI.
func absentAPI(err error) error {
	return &llm.Error{Class: llm.Fatal, Reason: llm.ReasonAPICallFailed, Err: fmt.Errorf("no Batch API answers at this address: check "+
		"STAGE_LLM_BASE_URL, and whether this server has a Batch API (for this model); where it has none, unset STAGE_LANE and all STAGE_LANE_*: %w", err)}
}
