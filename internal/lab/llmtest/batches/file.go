package batches

import (
	"fmt"
	"slices"
	"time"
)

// file is an uploaded file.
type file struct {
	id, name string
	provider Provider
	created  time.Time
	expires  time.Time // zero: never
	data     []byte
}

func (s *Server) store(p Provider, name string, data []byte) *file {
	s.serial++
	f := &file{provider: p, name: name, created: time.Now(), data: data}
	f.id = fmt.Sprintf("%s%x%06x", map[Provider]string{OpenAI: "file-", Azure: "file-", Gemini: "f"}[p], s.born, s.serial)
	s.files = append(s.files, f)
	s.fileByID[f.id] = f
	s.stored += int64(len(data))
	return f
}

// room reports whether one more file may be stored.
func (s *Server) room(p Provider, size int) bool {
	most := maxKept
	n := 0
	for _, f := range s.files {
		if f.provider == p && (p != Azure || f.expires.IsZero()) {
			n++
		}
	}
	if p == Azure {
		most = 500 // without an expiry
	}
	return n < most && len(s.files) < maxKept && s.stored+int64(size) <= maxStored
}

func (s *Server) removeFile(f *file) {
	s.files = slices.DeleteFunc(s.files, func(other *file) bool { return other == f })
	delete(s.fileByID, f.id)
	s.stored -= int64(len(f.data))
}

// file returns an uploaded file.
func (s *Server) file(p Provider, id string) *file {
	f := s.fileByID[id]
	if f == nil || f.provider != p || !f.expires.IsZero() && !time.Now().Before(f.expires) {
		return nil
	}
	return f
}

// listedFiles are the files in the provider's list, newest first.
func (s *Server) listedFiles(p Provider) []*file {
	var list []*file
	for _, f := range slices.Backward(s.files) {
		if f.provider == p && time.Since(f.created) >= s.cfg.ListLag {
			list = append(list, f)
		}
	}
	return list
}
