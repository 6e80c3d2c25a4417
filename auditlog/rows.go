package auditlog

import (
	"cmp"
	"iter"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// EachRow goes through the rows that the call was for. If it was for one row, that is the
// call itself. Otherwise it is a copy for each of its Rows, with the StateID, Sequence,
// Item, Owner and CallIndex of the row and its part of the usage. A row with several
// elements in the call comes once for each element.
func (c *Call) EachRow() iter.Seq[*Call] {
	return func(yield func(*Call) bool) {
		if len(c.Rows) == 0 {
			yield(c)
			return
		}
		prefix := strings.TrimSuffix(RowStateID(c.StateID), strconv.FormatUint(c.Sequence, 10))
		for i := range c.Rows {
			one := *c
			one.Rows, one.Items, one.CallIndexes, one.Owners, one.RowTokens = nil, nil, nil, nil, nil
			one.Sequence, one.Item, one.Usage = c.Rows[i], nil, c.UsageOf(i)
			one.StateID = prefix + strconv.FormatUint(one.Sequence, 10)
			if i < len(c.Items) {
				one.Item = &c.Items[i]
				one.StateID = ItemStateID(one.StateID, c.Items[i])
			}
			if i < len(c.Owners) {
				one.Owner = c.Owners[i]
			}
			if i < len(c.CallIndexes) {
				one.CallIndex = c.CallIndexes[i]
			}
			if !yield(&one) {
				return
			}
		}
	}
}

// UsageOf returns the part of the usage that belongs to Rows[row]: its RowTokens, and the
// same share of the cost. Embeddings use prompt tokens alone, so the part has no others.
func (c *Call) UsageOf(row int) *Usage {
	if c.Usage == nil || row >= len(c.RowTokens) {
		return nil
	}
	tokens := c.RowTokens[row]
	part := &Usage{PromptTokens: tokens, TotalTokens: tokens}
	if c.Usage.CostUSD != nil {
		part.CostUSD = new(*c.Usage.CostUSD * Share(tokens, c.Usage.PromptTokens, len(c.Rows)))
	}
	return part
}

// Share returns the part of a call's cost that belongs to a text with so many of all tokens.
// For example, a text with 30 of 120 tokens has a quarter. Where there are no tokens, each
// of the texts has an equal part.
func Share(tokens, all int64, texts int) float64 {
	if all == 0 {
		return 1 / float64(texts)
	}
	return float64(tokens) / float64(all)
}

// Split divides tokens into parts in the ratio of weights, which are not negative. The
// parts add up to the tokens: those that are left after rounding down go to the largest
// remainders, of equal ones to the first. For example, 10 tokens of the weights 1, 1, 1
// are 4, 3, 3. Without any weight the parts are equal.
func Split(tokens int64, weights []int64) []int64 {
	var sum int64
	for _, w := range weights {
		sum += w
	}
	if sum == 0 {
		weights = slices.Repeat([]int64{1}, len(weights))
		sum = int64(len(weights))
	}
	parts, order := make([]int64, len(weights)), make([]int, len(weights))
	left := tokens
	remainder := make([]uint64, len(weights))
	for i, w := range weights {
		high, low := bits.Mul64(uint64(tokens), uint64(w)) //nolint:gosec // not negative
		var quotient uint64
		quotient, remainder[i] = bits.Div64(high, low, uint64(sum)) //nolint:gosec // above high, since no weight is above the sum
		parts[i], order[i] = int64(quotient), i                     //nolint:gosec // at most the tokens
		left -= parts[i]
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(remainder[b], remainder[a]) })
	for _, i := range order[:left] {
		parts[i]++
	}
	return parts
}
