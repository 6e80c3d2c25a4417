package rowfile

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
)

// utf16 is the problem of text in UTF-16, as Excel saves it.
const utf16 = "the input is UTF-16: convert it to UTF-8, as iconv -f UTF-16 -t UTF-8 does"

// archives are what else a file may begin with instead of text.
var archives = []struct{ magic, problem string }{
	{"\x1f\x8b", "the input is compressed twice: decompress it first, as gunzip -c does"}, // once is read as it is
	{"\x28\xb5\x2f", "the input is compressed by zstd: decompress it first, as zstd -dc does"},
	{"\xfd\x37\x7a", "the input is compressed by xz: decompress it first, as xz -dc does"},
	{"BZh91AY", "the input is compressed by bzip2: decompress it first, as bzip2 -dc does"},
	{"PK\x03", "the input is a ZIP archive or a workbook: unpack it, as unzip -p does, or save the sheet as CSV"},
	{"PAR1\x15", "the input is Parquet: convert it to JSONL or CSV first"},
	{"\xff\xfe", utf16},
	{"\xfe\xff", utf16},
}

// errCutOff ends a compressed file that ends too early.
var errCutOff = errors.New("the compressed input ends too early: it was cut off")

// inflater reads a file that may be compressed by gzip: its first bytes tell. It reads no more than it must, so that
// the rows of a pipe come as they are written, and holds one window of the text, however much that is.
type inflater struct {
	file *bufio.Reader
	zip  *gzip.Reader
	text io.Reader // nil: the first bytes were not looked at
}

// Read reads decompressed text.
func (z *inflater) Read(p []byte) (n int, err error) {
	if z.text == nil {
		if err := z.begin(); err != nil {
			return 0, err
		}
	}
	n, err = z.text.Read(p)
	if z.zip != nil {
		err = unzipped(err)
	}
	return n, err
}

// begin looks at the first bytes.
func (z *inflater) begin() error {
	magic, err := z.file.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !bytes.Equal(magic, []byte("\x1f\x8b")) {
		z.text = z.file
		return nil
	}
	if z.zip, err = gzip.NewReader(z.file); err != nil {
		if errors.Is(err, io.EOF) { // within the header
			err = io.ErrUnexpectedEOF
		}
		return unzipped(err)
	}
	z.text = z.zip
	return nil
}

// unzipped returns an error of decompression in the words of users.
func unzipped(err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errCutOff
	case errors.Is(err, gzip.ErrHeader):
		return errors.New("the compressed input is followed by something else, or damaged")
	case errors.Is(err, gzip.ErrChecksum):
		return errors.New("the compressed input is damaged: its checksum is wrong")
	}
	return err
}
