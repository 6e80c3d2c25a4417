// Package jinja renders the templates of Jinja's own tests with our engine and compares
// the output of both. It contains none of these templates: record.py runs the tests from
// a source tree of Jinja and writes down what they compile and render.
//
//	make test-jinja
//	make test-jinja JINJA=jinja-3.1.6
//	make test-jinja UPDATE=1             # writes the table of results.md
//
// Without JINJA the source comes from the Debian archive, which needs the network and a
// Debian, so the test is compiled only with the build tag jinja. It also needs Python and
// its package markupsafe, which are installed if they are missing and the user may. It
// takes some seconds.
package jinja
