// Package must ends a test that cannot go on with an error. It is apart from stagetest for
// packages that need no NATS server, so that none is linked into their test binaries.
package must

// failer is a [testing.TB], or what rapid has for it.
type failer interface {
	Helper()
	Fatal(args ...any)
}

// Do ends a test that cannot go on with an error.
func Do(t failer, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Value is [Do] for a call with a result, which it returns: Value(os.ReadFile(path))(t).
func Value[T any](v T, err error) func(failer) T {
	return func(t failer) T {
		t.Helper()
		Do(t, err)
		return v
	}
}
