package lane

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
)

// provider is a scripted Batch API.
type provider struct {
	limits batchapi.Limits
	takes  time.Duration // that a batch runs
	lag    time.Duration // of the list

	// The hooks are called with mu held; nil: nothing special.
	onCreate  func(n int, job batchapi.Job) error                          // before the batch exists
	onCreated func(n int) error                                            // after
	refuses   func(job batchapi.Job) *batchapi.Refusal                     // in the reply to the creation
	onGet     func(b *remote) error                                        // may change it
	onUpload  func() error                                                 //
	lines     func(b *remote) []batchapi.Line                              // of the results; nil: one for each row
	answer    func(b *remote, seq uint64) (kind batchapi.Kind, status int) // nil: 200
	cut       func(pass, line int) error                                   // before a line

	mu       sync.Mutex
	files    map[string][]uint64 // rows of uploaded ones, by id
	batches  []*remote
	creates  map[string]int // by token
	billed   map[uint64]int // good answers, by row
	cancels  []string
	deleted  []string
	withdraw int
	passes   int
}

// remote is a batch at the provider.
type remote struct {
	batchapi.Batch
	file   string
	seqs   []uint64
	ids    []string
	ends   time.Time
	listed time.Time
	counts bool
}

func fileProvider() *provider {
	return &provider{limits: batchapi.Limits{Rows: 50000, Bytes: 100 << 20, Tokens: true}, takes: time.Hour}
}

func inlineProvider() *provider {
	return &provider{limits: batchapi.Limits{Rows: 100000, Bytes: 256 << 20, Inline: true}, takes: time.Hour}
}

func (p *provider) init() {
	if p.files == nil {
		p.files, p.creates, p.billed = map[string][]uint64{}, map[string]int{}, map[uint64]int{}
	}
}

func (p *provider) Limits() batchapi.Limits { return p.limits }

func (p *provider) AppendLine(dst []byte, id string, r *llm.Prepared) []byte {
	return append(append(append(append(dst, id...), ' '), r.Body...), '\n')
}

func readLines(r io.Reader) (ids []string) {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		id, _, _ := strings.Cut(s.Text(), " ")
		ids = append(ids, id)
	}
	return ids
}

func seqOf(id string) uint64 {
	seq, _ := strconv.ParseUint(id[strings.LastIndexByte(id, '-')+1:], 10, 64)
	return seq
}

func (p *provider) Upload(ctx context.Context, token string, lines batchapi.Lines) (string, error) {
	if err := doze(ctx, time.Second); err != nil {
		return "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.init()
	if p.onUpload != nil {
		if err := p.onUpload(); err != nil {
			return "", err
		}
	}
	body, _ := io.ReadAll(lines.Open())
	if int64(len(body)) != lines.Size {
		panic(fmt.Sprintf("body of %d bytes, announced %d", len(body), lines.Size))
	}
	id := fmt.Sprintf("file-%s-%d", token, len(p.files))
	for _, line := range readLines(bytes.NewReader(body)) {
		p.files[id] = append(p.files[id], seqOf(line))
	}
	return id, nil
}

func (p *provider) Create(ctx context.Context, job batchapi.Job) (batchapi.Batch, error) {
	if err := doze(ctx, time.Second); err != nil {
		return batchapi.Batch{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.init()
	n := len(p.batches)
	if p.onCreate != nil {
		if err := p.onCreate(n, job); err != nil {
			return batchapi.Batch{}, err
		}
	}
	if p.refuses != nil {
		if why := p.refuses(job); why != nil {
			return batchapi.Batch{State: batchapi.Refused, Refusal: why}, nil
		}
	}
	now := time.Now()
	r := &remote{file: job.File, ends: now.Add(p.takes), listed: now.Add(p.lag), counts: true, Batch: batchapi.Batch{
		ID: "batch-" + strconv.Itoa(n), State: batchapi.Running, Created: now, Input: job.File, Rows: job.Lines.Rows, Answered: 0,
	}}
	if p.limits.Tokens {
		r.Token = job.Token
	}
	if p.limits.Inline {
		for _, id := range readLines(job.Lines.Open()) {
			r.seqs = append(r.seqs, seqOf(id))
		}
	} else if r.seqs = p.files[job.File]; r.seqs == nil {
		return batchapi.Batch{}, &llm.Error{Class: llm.Permanent, Status: 404, Err: fmt.Errorf("no such file %s", job.File)}
	}
	for _, seq := range r.seqs {
		r.ids = append(r.ids, job.Token+"-"+strconv.FormatUint(seq, 10))
	}
	p.creates[job.Token]++
	p.batches = append(p.batches, r)
	if p.onCreated != nil {
		if err := p.onCreated(n); err != nil {
			return batchapi.Batch{}, err
		}
	}
	return r.Batch, nil
}

func (p *provider) at(id string) *remote {
	for _, r := range p.batches {
		if r.ID == id {
			return r
		}
	}
	return nil
}

func (p *provider) progress(r *remote) {
	if r.State == batchapi.Running && !time.Now().Before(r.ends) {
		r.State, r.Output, r.Answered = batchapi.Ended, "out-"+r.ID, len(r.seqs)
	}
}

func (p *provider) Get(ctx context.Context, id string) (batchapi.Batch, error) {
	if err := doze(ctx, 100*time.Millisecond); err != nil {
		return batchapi.Batch{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.at(id)
	if r == nil {
		return batchapi.Batch{}, batchapi.ErrNotFound
	}
	p.progress(r)
	if p.onGet != nil {
		if err := p.onGet(r); err != nil {
			return batchapi.Batch{}, err
		}
	}
	return r.Batch, nil
}

func (p *provider) Find(ctx context.Context, token string, since time.Time, rows int) (found []batchapi.Batch, err error) {
	if err := doze(ctx, 100*time.Millisecond); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.batches {
		p.progress(r)
		if time.Now().Before(r.listed) || r.Created.Before(since) || p.limits.Tokens && r.Token != token || !p.limits.Tokens && len(r.seqs) != rows {
			continue
		}
		found = append(found, r.Batch)
	}
	return found, nil
}

func (p *provider) Results(ctx context.Context, b batchapi.Batch, f func(batchapi.Line) error) error {
	p.mu.Lock()
	r := p.at(b.ID)
	if r == nil || slices.Contains(p.deleted, b.ID) {
		p.mu.Unlock()
		return batchapi.ErrNotFound
	}
	lines := p.linesOf(r)
	p.passes++
	pass := p.passes
	p.mu.Unlock()
	for i, line := range lines {
		if p.cut != nil {
			if err := p.cut(pass, i); err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := f(line); err != nil {
			return err
		}
	}
	return nil
}

func (p *provider) linesOf(r *remote) []batchapi.Line {
	if p.lines != nil {
		if lines := p.lines(r); lines != nil {
			return lines
		}
	}
	lines := make([]batchapi.Line, 0, len(r.seqs))
	for i := range r.seqs {
		lines = append(lines, p.lineOf(r, i))
	}
	slices.Reverse(lines) // any order
	return lines
}

func (p *provider) lineOf(r *remote, i int) batchapi.Line {
	kind, status := batchapi.Answered, 200
	if p.answer != nil {
		kind, status = p.answer(r, r.seqs[i])
	}
	if kind == batchapi.Answered && status == 200 {
		p.billed[r.seqs[i]]++
	}
	return batchapi.Line{ID: r.ids[i], Kind: kind, Status: status, Body: []byte("answer " + strconv.FormatUint(r.seqs[i], 10))}
}

func (p *provider) Cancel(ctx context.Context, id string) error {
	if err := doze(ctx, 100*time.Millisecond); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cancels = append(p.cancels, id)
	if r := p.at(id); r != nil && r.State == batchapi.Running {
		r.State, r.Output = batchapi.Cancelled, "out-"+id
	}
	return nil
}

func (p *provider) Withdraw(ctx context.Context, token string, _ time.Time) (bool, error) {
	if err := doze(ctx, 100*time.Millisecond); err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.init()
	p.withdraw++
	for id := range p.files {
		if strings.HasPrefix(id, "file-"+token+"-") {
			delete(p.files, id)
		}
	}
	return !p.limits.Inline, nil
}

func (p *provider) Delete(ctx context.Context, b batchapi.Batch) error {
	if err := doze(ctx, 100*time.Millisecond); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deleted = append(p.deleted, b.ID)
	delete(p.files, b.Input)
	return nil
}

func doze(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
