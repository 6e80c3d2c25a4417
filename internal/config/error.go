package config

import "errors"

// Error is an error in the way the program was called or configured: the user can fix it, and doing the same again
// meets it again. Its text names what is wrong and how to fix it.
type Error struct{ Err error }

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *Error) Unwrap() error { return e.Err }

// Invalid returns err as a [*Error]; nil for nil.
func Invalid(err error) error {
	if err == nil {
		return nil
	}
	return &Error{Err: err}
}

// IsInvalid reports whether err says that the program was called or configured wrongly.
func IsInvalid(err error) bool {
	_, is := errors.AsType[*Error](err)
	return is
}
