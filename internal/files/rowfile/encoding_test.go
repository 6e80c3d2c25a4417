package rowfile

import (
	"encoding/binary"
	"strings"
	"testing"
	"unicode/utf16"
)

// encoded returns a text in an encoding.
func encoded(text string, order binary.AppendByteOrder, bits int) string {
	var b []byte
	if bits == 32 {
		for _, r := range text {
			b = order.AppendUint32(b, uint32(r))
		}
		return string(b)
	}
	for _, u := range utf16.Encode([]rune(text)) {
		b = order.AppendUint16(b, u)
	}
	return string(b)
}

func TestOtherEncodingsAreRefusedByName(t *testing.T) {
	texts := []string{
		"id,text\n1,a\n", "id,text\r\n1,a\r\n", "{\"id\":1}\n{\"id\":2}\n", "[{\"id\":1}]", "имя,текст\nа,б\n", "名前,感想\n一,上\n",
		"नाम;पाठ\nक;ख\n", "\"שם\"\n", "语\n上\n", "下,上\n一,a\n", "emoji,x\n😀,1\n", "a", "[{\"t\":\"上é\"}]",
	}
	for _, text := range texts {
		for _, e := range []struct {
			name  string
			order binary.AppendByteOrder
			bits  int
		}{{"UTF-16LE", binary.LittleEndian, 16}, {"UTF-16BE", binary.BigEndian, 16}, {"UTF-32LE", binary.LittleEndian, 32}, {"UTF-32BE", binary.BigEndian, 32}} {
			for _, mark := range []string{"", "\ufeff"} {
				is, iconv := e.name, e.name
				if mark != "" {
					is, iconv = e.name+" with a byte order mark", e.name[:len("UTF-16")]
				}
				want := "line 1: the input is " + is + ": convert it to UTF-8, as iconv -f " + iconv + " -t UTF-8 does"
				for _, format := range []Format{"", FormatCSV, FormatJSONL, FormatJSON} {
					_, err := NewReader(strings.NewReader(encoded(mark+text, e.order, e.bits)), Layout{Format: format}, 100).Next()
					if err == nil || err.Error() != want {
						t.Errorf("%q in %s as %q: got %v, want %s", text, is, format, err, want)
					}
				}
			}
		}
	}
}

// Tables that were exported from a database have single NULs.
func TestSingleNULsAreText(t *testing.T) {
	for _, text := range []string{
		"id,flag\n1,\"\x00\"\n2,\"\x00\"\n", "a\x00b,c\n1,2\n", "name,x\nabc\x00,1\nde\x00,2\n", "abcd\x00\nefgh\x00\n", "ab\x00\ncd\x00\n", "\x00",
		"\x00\x00\x00\x00\x00\x00\x00\x00", "é\x00,b\n1,2\n", "id,text\n1,\xff\x00\n",
	} {
		if name, _ := encodingOf([]byte(text)); name != "" {
			t.Errorf("%q is taken for %s", text, name)
		}
	}
}
