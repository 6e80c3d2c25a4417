package config

import "errors"

// Error is an error in how the program was called or configured: only the user can fix it, so a retry fails again. Its
// text explains what is wrong and how to fix it.
type Error struct{ Err error }

// Error returns the text of what is wrong.
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

// IsInvalid reports whether err has an [*Error] in its chain.
func IsInvalid(err error) bool {
	_, is := errors.AsType[*Error](err)
	return is
}
