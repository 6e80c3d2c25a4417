package rowfile

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
)

// archives are the beginnings of files that are no text, each with what to do about it.
// They are looked for in the text after gzip, which is read as it is.
var archives = []struct{ magic, problem string }{
	{"\x1f\x8b", "the input is compressed twice: decompress it first, as gunzip -c does"},
	{"\x28\xb5\x2f", "the input is compressed by zstd: decompress it first, as zstd -dc does"},
	{"\xfd\x37\x7a", "the input is compressed by xz: decompress it first, as xz -dc does"},
	{"BZh91AY", "the input is compressed by bzip2: decompress it first, as bzip2 -dc does"},
	{"PK\x03", "the input is a ZIP archive or a workbook: unpack it, as unzip -p does, or save the sheet as CSV"},
	{"PAR1\x15", "the input is Parquet: convert it to JSONL or CSV first"},
	{"\xd0\xcf\x11\xe0", "the input is a workbook: save the sheet as CSV"},
}

// gzipMagic is what a file, or a member of one, that is compressed by gzip begins with.
const gzipMagic = "\x1f\x8b"

// errCutOff ends a compressed file that ends too early.
var errCutOff = errors.New("the compressed input ends too early: it was cut off")

// inflater reads a file that may be compressed by gzip, as its first bytes show. Members
// that follow each other are one text, and zeros after the last one are padding, as on a
// tape. It reads no more than it must, so that the rows of a pipe come as they are written,
// and holds one window of the text, however long the text is.
type inflater struct {
	file *bufio.Reader
	zip  *gzip.Reader
	text io.Reader // nil before the first bytes are looked at
}

// Read reads decompressed text.
func (z *inflater) Read(p []byte) (n int, err error) {
	if z.text == nil {
		if err := z.begin(); err != nil {
			return 0, err
		}
	}
	n, err = z.text.Read(p)
	if z.zip == nil {
		return n, err
	}
	if errors.Is(err, io.EOF) { // of a member
		err = z.nextMember()
	}
	return n, unzipped(err)
}

// nextMember begins with what follows a member: another one, or nothing but zeros, which
// is [io.EOF].
func (z *inflater) nextMember() error {
	padded := false
	for {
		next, err := z.file.Peek(1)
		if err != nil {
			return err
		}
		if next[0] != 0 {
			break
		}
		padded = true
		_, _ = z.file.Discard(1) // it is buffered
	}
	next, err := z.file.Peek(len(gzipMagic))
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !padded && len(next) < len(gzipMagic) && strings.HasPrefix(gzipMagic, string(next)) {
		return io.ErrUnexpectedEOF
	}
	if padded || string(next) != gzipMagic {
		next, _ = z.file.Peek(16)
		return fmt.Errorf("the compressed input is followed by something else, which begins with %+q: remove it", next)
	}
	if err := z.zip.Reset(z.file); err != nil {
		return cutHeader(err)
	}
	z.zip.Multistream(false)
	return nil
}

// begin finds out by the first bytes whether the file is compressed.
func (z *inflater) begin() error {
	magic, err := z.file.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if string(magic) != gzipMagic {
		z.text = z.file
		return nil
	}
	if z.zip, err = gzip.NewReader(z.file); err != nil {
		return unzipped(cutHeader(err))
	}
	z.zip.Multistream(false)
	z.text = z.zip
	return nil
}

// cutHeader returns the error of a header of gzip, whose bytes have begun: an end there
// is too early.
func cutHeader(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// unzipped returns an error of decompression in the words of users.
func unzipped(err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errCutOff
	case errors.Is(err, gzip.ErrHeader):
		return errors.New("the compressed input is damaged: the header of a part of it is wrong")
	case errors.Is(err, gzip.ErrChecksum):
		return errors.New("the compressed input is damaged: its checksum is wrong")
	}
	return err
}
