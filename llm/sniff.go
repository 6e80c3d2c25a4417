package llm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"strconv"
)

// The types of content that the first bytes can show.
const (
	TypePNG  = "image/png"
	TypeJPEG = "image/jpeg"
	TypeGIF  = "image/gif"
	TypeWebP = "image/webp"
	TypePDF  = "application/pdf"
	TypeWAV  = "audio/wav"
	TypeMP3  = "audio/mpeg"
	TypeOgg  = "audio/ogg"
	TypeFLAC = "audio/flac"
	TypeM4A  = "audio/mp4"
)

// Shape is what the first bytes of content say about it.
type Shape struct {
	// Type is the media type, such as "image/png".
	Type string
	// Width and Height are the size of an image in pixels. They are 0 where that is not
	// within the first bytes.
	Width, Height int
	// Pages is the number of pages of a PDF, an estimate unless the file begins with it.
	Pages int
	// Seconds is the length of a sound, an estimate unless the file begins with it.
	Seconds float64
}

// Kind returns the kind of part that content of this type belongs in.
func (s *Shape) Kind() MediaKind {
	switch s.Type {
	case TypePNG, TypeJPEG, TypeGIF, TypeWebP:
		return KindImage
	case TypePDF:
		return KindFile
	}
	return KindAudio
}

var errForeign = errors.New("the first bytes are of no known type: there are png, jpeg, gif, " +
	"webp, pdf, wav, mp3, ogg, flac and m4a")

// Sniff tells the type of content from its first bytes, of which it looks at [HeadBytes].
// size is the number of all bytes. A name, or a type that somebody claims, does not count:
// providers look at the bytes, too, and refuse what does not agree.
func Sniff(head []byte, size int64) (s Shape, err error) {
	switch {
	case size == 0:
		return s, errors.New("the content is empty")
	case bytes.HasPrefix(head, []byte("\x89PNG\r\n\x1a\n")):
		s.Type = TypePNG
		err = s.readPNG(head)
	case bytes.HasPrefix(head, []byte("\xff\xd8\xff")):
		s.Type = TypeJPEG
		err = s.readJPEG(head, size)
	case bytes.HasPrefix(head, []byte("GIF87a")), bytes.HasPrefix(head, []byte("GIF89a")):
		s.Type = TypeGIF
		if len(head) < 10 {
			return s, errBroken(s.Type)
		}
		s.Width, s.Height = int(binary.LittleEndian.Uint16(head[6:])),
			int(binary.LittleEndian.Uint16(head[8:]))
	case isRIFF(head, "WEBP"):
		s.Type = TypeWebP
		err = s.readWebP(head)
	case bytes.HasPrefix(head, []byte("%PDF-")):
		s.Type = TypePDF
		s.Pages = pagesOf(head, size)
	case isRIFF(head, "WAVE"):
		s.Type = TypeWAV
		err = s.readWAV(head, size)
	case bytes.HasPrefix(head, []byte("ID3")), isMP3Frame(head):
		s.Type, s.Seconds = TypeMP3, secondsAt(size, 128_000)
	case bytes.HasPrefix(head, []byte("OggS")):
		s.Type, s.Seconds = TypeOgg, secondsAt(size, 96_000)
	case bytes.HasPrefix(head, []byte("fLaC")):
		s.Type = TypeFLAC
		err = s.readFLAC(head)
	case isM4A(head):
		s.Type, s.Seconds = TypeM4A, secondsAt(size, 128_000)
	default:
		return s, errForeign
	}
	return s, err
}

func errBroken(mediaType string) error {
	return fmt.Errorf("the content begins like %s, and is broken or cut off", mediaType)
}

func secondsAt(size int64, bitsPerSecond float64) float64 {
	return float64(size) * 8 / bitsPerSecond
}

func isRIFF(head []byte, form string) bool {
	return len(head) >= 12 && string(head[:4]) == "RIFF" && string(head[8:12]) == form
}

func (s *Shape) readPNG(head []byte) error {
	if len(head) < 24 || string(head[12:16]) != "IHDR" {
		return errBroken(s.Type)
	}
	s.Width, s.Height = int(binary.BigEndian.Uint32(head[16:])),
		int(binary.BigEndian.Uint32(head[20:]))
	return nil
}

// readJPEG goes from segment to segment until the one with the size. A photo may have it
// behind a preview that is larger than the head.
func (s *Shape) readJPEG(head []byte, size int64) error {
	cut := func() error {
		if int64(len(head)) < size {
			return nil
		}
		return errBroken(s.Type)
	}
	for at := 2; ; {
		if at+9 > len(head) {
			return cut()
		}
		if head[at] != 0xff {
			return errBroken(s.Type)
		}
		marker := head[at+1]
		switch {
		case marker == 0xff: // a fill byte
			at++
			continue
		case marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc:
			s.Height, s.Width = int(binary.BigEndian.Uint16(head[at+5:])),
				int(binary.BigEndian.Uint16(head[at+7:]))
			return nil
		case marker == 0xd9, marker == 0xda: // the end, or the picture, before its size
			return errBroken(s.Type)
		}
		at += 2 + int(binary.BigEndian.Uint16(head[at+2:]))
	}
}

func (s *Shape) readWebP(head []byte) error {
	if len(head) < 30 {
		return errBroken(s.Type)
	}
	switch string(head[12:16]) {
	case "VP8X":
		s.Width, s.Height = 1+uint24(head[24:]), 1+uint24(head[27:])
	case "VP8L":
		bits := binary.LittleEndian.Uint32(head[21:])
		s.Width, s.Height = 1+int(bits&0x3fff), 1+int(bits>>14&0x3fff)
	case "VP8 ":
		s.Width, s.Height = int(binary.LittleEndian.Uint16(head[26:])&0x3fff),
			int(binary.LittleEndian.Uint16(head[28:])&0x3fff)
	default:
		return errBroken(s.Type)
	}
	return nil
}

func uint24(b []byte) int { return int(b[0]) | int(b[1])<<8 | int(b[2])<<16 }

func (s *Shape) readWAV(head []byte, size int64) error {
	at := bytes.Index(head, []byte("fmt "))
	if at < 0 || at+20 > len(head) {
		return errBroken(s.Type)
	}
	if rate := binary.LittleEndian.Uint32(head[at+16:]); rate > 0 {
		s.Seconds = secondsAt(size, 8*float64(rate))
	}
	return nil
}

// isMP3Frame reports whether content begins with a frame of MPEG audio, layer I to III. AAC
// begins alike, with layer 0.
func isMP3Frame(head []byte) bool {
	return len(head) >= 4 && head[0] == 0xff && head[1]&0xe0 == 0xe0 && head[1]&0x18 != 0x08 &&
		head[1]&0x06 != 0 &&
		head[2]&0xf0 != 0xf0 && head[2]&0x0c != 0x0c
}

func (s *Shape) readFLAC(head []byte) error {
	if len(head) < 26 {
		return errBroken(s.Type)
	}
	rate := int64(head[18])<<12 | int64(head[19])<<4 | int64(head[20])>>4
	samples := int64(head[21]&0x0f)<<32 | int64(binary.BigEndian.Uint32(head[22:]))
	if rate > 0 {
		s.Seconds = float64(samples) / float64(rate)
	}
	return nil
}

// isM4A reports whether content is in an MP4 container for sound: the brand says so.
func isM4A(head []byte) bool {
	if len(head) < 16 || string(head[4:8]) != "ftyp" {
		return false
	}
	brands := head[8:min(len(head), max(16, int(min(binary.BigEndian.Uint32(head), 1024))))]
	return bytes.Contains(brands, []byte("M4A")) || bytes.Contains(brands, []byte("M4B"))
}

var (
	pdfLinear = regexp.MustCompile(`/Linearized[^>]{0,200}/N\s+(\d{1,6})`)
	pdfPage   = regexp.MustCompile(`/Type\s*/Page[^s]`)
)

// pagesOf estimates the pages of a PDF, at least one. A PDF that was made for the web says
// at its beginning how many it has. For any other the rest is taken to be like the head.
func pagesOf(head []byte, size int64) int {
	if m := pdfLinear.FindSubmatch(head); m != nil {
		n, _ := strconv.Atoi(string(m[1]))
		return max(1, n)
	}
	n := int64(len(pdfPage.FindAllIndex(head, -1)))
	return int(max(1, n*size/int64(len(head))))
}
