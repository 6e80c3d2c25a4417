package usage

import (
	"maps"
	"slices"
	"time"

	"github.com/llm-stage/stage/auditlog"
)

// Report is what a book holds at one time. Its JSON is stable: members may be added.
type Report struct {
	// Stages and Since say which events were read. Since is nil if all were.
	Stages []string   `json:"stages"`
	Since  *time.Time `json:"since"`
	// AuditBegins is when the audit stream begins, if events after Since have expired or
	// were deleted. It is nil if all that was selected was there.
	AuditBegins *time.Time `json:"audit_begins"`
	// Until is when the last call was made, or nil.
	Until *time.Time `json:"until"`
	// By is what the groups are grouped by.
	By []Dimension `json:"by"`
	// Groups are ordered by stage, as in Stages, then by provider, model and day. They are
	// never null in JSON.
	Groups []Group `json:"groups"`
	// Total sums all groups.
	Total Numbers `json:"total"`
	// Pace is what it was worth to make the calls side by side, over all runs. The time of
	// a run that was killed ends with its last call.
	auditlog.Pace
	// Unused are answers of a provider's batches that were billed and have no call, as
	// older stages recorded none where no row took the answer. They are not in Total.
	Unused Unused `json:"unused_batch_answers"`
	// Doubled counts second events of calls, which are left out. Unreadable counts messages
	// that are no event of a version that this program knows: with any, the numbers are too
	// low. RowsGone counts calls whose rows are no longer stored, neither in the input
	// stream nor as results. They are in the group without a value.
	Doubled    uint64 `json:"doubled_events"`
	RowsGone   uint64 `json:"rows_gone,omitempty"`
	Unreadable uint64 `json:"unreadable_events"`
	// NoRollUp is why it is not known whether there is a roll-up, whose days are then not
	// included.
	NoRollUp string `json:"roll_up_unknown,omitempty"`
}

// Group is the usage of one group of calls. A dimension by which the calls are not
// grouped is nil, and missing in the JSON.
type Group struct {
	Stage    *string `json:"stage,omitempty"`
	Provider *string `json:"provider,omitempty"`
	Model    *string `json:"model,omitempty"`
	Day      *string `json:"day,omitempty"` // 2006-01-02, in UTC
	// Field is in the JSON under the name of its dimension. It is empty where the rows have
	// no such member.
	Field *string `json:"-"`
	Numbers

	key       group
	dimension Dimension // of Field
}

// Numbers are the usage of some calls. Tokens and cost are null in JSON if they are not
// known. Tokens are not known if no call reported any.
type Numbers struct {
	Calls           uint64 `json:"calls"` // the sum of the next four
	Succeeded       uint64 `json:"succeeded"`
	Failed          uint64 `json:"failed"`
	CapacityRetries uint64 `json:"capacity_retries"`
	Unknown         uint64 `json:"unknown"` // cut off after they had been sent

	PromptTokens       *int64 `json:"prompt_tokens"`      // cached ones included
	CachedTokens       *int64 `json:"cached_tokens"`      // of the prompt, those read from a cache
	CacheWriteTokens   *int64 `json:"cache_write_tokens"` // of the prompt, those written to a cache
	CacheWrite1hTokens *int64 `json:"cache_write_1h_tokens"`
	CompletionTokens   *int64 `json:"completion_tokens"` // reasoning included
	ReasoningTokens    *int64 `json:"reasoning_tokens"`
	TotalTokens        *int64 `json:"total_tokens"`

	// CostUSD is nil if the cost of any call is unknown. Then KnownCostUSD sums the other
	// calls and UnpricedCalls counts the unknown ones: with calls of 1 USD, 2 USD and an
	// unknown cost, CostUSD is nil, KnownCostUSD is 3 and UnpricedCalls is 1.
	CostUSD       *float64 `json:"cost_usd"`
	KnownCostUSD  float64  `json:"known_cost_usd"`
	UnpricedCalls uint64   `json:"unpriced_calls"`
}

// Unused counts answers that were billed and that no row has used.
type Unused struct {
	Answers         int     `json:"answers"`
	TotalTokens     int64   `json:"total_tokens"`
	KnownCostUSD    float64 `json:"known_cost_usd"`
	UnpricedBatches int     `json:"unpriced_batches"` // whose cost is not known
}

// Report returns what the book holds now. It shares nothing with the book. Who reads the
// events sets Stages, Since and AuditBegins.
func (b *Book) Report(now time.Time) *Report {
	r := &Report{
		By: append([]Dimension{}, b.by...), Groups: []Group{}, Total: numbersOf(&b.total), Pace: b.runs.pace(), Until: timeOrNil(b.last),
		Doubled: b.doubled, Unreadable: b.unread,
	}
	u := b.batches.sum(now)
	r.Unused = Unused{Answers: u.answers, TotalTokens: u.tokens, KnownCostUSD: u.usd, UnpricedBatches: u.unpriced}
	for _, key := range slices.SortedFunc(maps.Keys(b.groups), group.compare) {
		g := Group{Numbers: numbersOf(b.groups[key]), key: key}
		for _, d := range b.by {
			switch d {
			case ByStage:
				g.Stage = &key.stage
			case ByProvider:
				g.Provider = &key.provider
			case ByModel:
				g.Model = &key.model
			case ByDay:
				g.Day = new(time.Unix(key.day*secondsOfDay, 0).UTC().Format(time.DateOnly))
			default:
				g.Field, g.dimension = &key.field, d
			}
		}
		r.Groups = append(r.Groups, g)
	}
	return r
}

// sortBy sorts the groups by stage, in the order of stages. The groups of one stage keep
// their order.
func (r *Report) sortBy(stages []string) {
	slices.SortStableFunc(r.Groups, func(a, b Group) int {
		return slices.Index(stages, a.key.stage) - slices.Index(stages, b.key.stage)
	})
}

func numbersOf(s *Sum) Numbers {
	n := Numbers{
		Calls: s.Calls, Succeeded: s.Succeeded, Failed: s.Failed, CapacityRetries: s.CapacityRetries, Unknown: s.Unknown,
		KnownCostUSD: s.KnownUSD, UnpricedCalls: s.Unpriced,
	}
	if s.Unpriced == 0 {
		n.CostUSD = new(s.KnownUSD)
	}
	if u := s.Usage.Clone(); u != nil {
		n.PromptTokens, n.CompletionTokens, n.TotalTokens = &u.PromptTokens, &u.CompletionTokens, &u.TotalTokens
		n.CachedTokens, n.CacheWriteTokens, n.CacheWrite1hTokens = u.CachedTokens, u.CacheWriteTokens, u.CacheWrite1hTokens
		n.ReasoningTokens = u.ReasoningTokens
	}
	return n
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return new(t.UTC())
}
