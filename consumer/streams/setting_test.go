package streams

import (
	"errors"
	"fmt"
	"testing"
)

func TestExplainNamesSettingsAtAnyDepth(t *testing.T) {
	variable := func(f Field) string { return "STAGE_" + string(f) }
	cause := errors.New("cause")
	inner := NewSettingError(FieldInputSubject, "change %s (%w)", FieldInputSubject, cause)
	outer := NewSettingError(FieldInputStream, "%s: stream %s: %w", FieldInputStream, "ROWS", findings{errors.New("is sealed"), inner})
	for _, c := range []struct {
		err             error
		want, explained string
	}{
		{cause, "cause", "cause"},
		{inner, "change InputSubject (cause)", "change STAGE_InputSubject (cause)"},
		{fmt.Errorf("start: %w", inner), "start: change InputSubject (cause)", "start: change STAGE_InputSubject (cause)"},
		{outer, "InputStream: stream ROWS: is sealed; change InputSubject (cause)", "STAGE_InputStream: stream ROWS: is sealed; change STAGE_InputSubject (cause)"},
		{errors.Join(cause, &UnfitError{outer}), "cause\nInputStream: stream ROWS: is sealed; change InputSubject (cause)", "cause\nSTAGE_InputStream: stream ROWS: is sealed; change STAGE_InputSubject (cause)"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
		if got := Explain(c.err, variable); got != c.explained {
			t.Errorf("got %q, want %q", got, c.explained)
		}
		if !errors.Is(c.err, cause) {
			t.Errorf("%v does not wrap its cause", c.err)
		}
	}
	if e, ok := errors.AsType[*SettingError](outer); !ok || e.Field != FieldInputStream {
		t.Errorf("got %v, want the error about %s", e, FieldInputStream)
	}
}
