package app

// ConfigError is an error in the way the program was called or configured: the user can fix it, and doing the same again
// meets it again. Its text names what is wrong and how to fix it.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *ConfigError) Unwrap() error { return e.Err }

// invalid returns err as a [*ConfigError]; nil for nil.
func invalid(err error) error {
	if err == nil {
		return nil
	}
	return &ConfigError{Err: err}
}
