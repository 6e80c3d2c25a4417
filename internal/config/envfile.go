package config

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"
)

// EnvFile is a file of variables, as docker and shells read it.
type EnvFile struct {
	Path   string
	Values map[string]string // by variable

	lines map[string]int // where each variable is
	label string         // where the settings of one stage of several are, see [ReadStages]
	// bad has the variables whose values could not be taken from a list of stages. A
	// misspelled one is here under the name that was probably meant.
	bad map[string]bool
	// maxConcurrency is the limit of the whole process, which the list of stages gives;
	// see [Config.MaxConcurrency].
	maxConcurrency int
}

// Label names the stage that has these settings, by its name or by the place in the file.
func (f *EnvFile) Label() string {
	if name := f.Values["STAGE_NAME"]; name != "" {
		return "stage " + name
	}
	return f.label
}

// Follows reports whether a problem of the settings may follow from one that was found
// while the list of stages was read. For example, an entry with template_fiel has no
// template, and one problem is enough to say so.
func (f *EnvFile) Follows(problem string) bool {
	for variable := range f.bad {
		if strings.Contains(problem, variable) {
			return true
		}
	}
	return false
}

const (
	// envFileBytesMax bounds a file of variables.
	envFileBytesMax = 1 << 20
	// envFileProblems bounds how many problems of one file are listed.
	envFileProblems = 20
)

// ReadEnvFile reads a file of lines NAME=VALUE. Blank lines and lines that begin with #
// are skipped; export before the name is allowed. A value in single quotes is as it
// stands; in double quotes \n, \t, \", \\ and \$ are escapes; both may go over several
// lines. A bare value ends before a # that follows a space. Nothing is expanded: a $
// stays. The error lists every problem by its line, and repeats no value.
func ReadEnvFile(path string) (EnvFile, error) {
	file := EnvFile{Path: path, Values: make(map[string]string), lines: make(map[string]int)}
	text, err := readBounded(path, envFileBytesMax)
	if err != nil {
		return file, err
	}
	return file, file.parse(string(text))
}

// readBounded reads a file of UTF-8 text of at most so many bytes. It reads one byte
// more, to notice a larger file, and removes a byte order mark, which editors of Windows
// write.
func readBounded(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, plainPathError(err)
	}
	defer f.Close() //nolint:errcheck // nothing was written
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	switch {
	case err != nil:
		return nil, plainPathError(err)
	case int64(len(text)) > most:
		return nil, fmt.Errorf("%s: larger than %v", path, Size(most))
	case !utf8.Valid(text):
		return nil, fmt.Errorf("%s: not UTF-8 text", path)
	}
	return bytes.TrimPrefix(text, []byte("\uFEFF")), nil
}

// where returns the file and line of a variable, for problems.
func (f *EnvFile) where(variable string) string {
	return fmt.Sprintf("%s line %d", f.Path, f.lines[variable])
}

// parse reads all lines. Line n counts those that a value in quotes takes, too; a problem
// names the first line of its variable.
func (f *EnvFile) parse(text string) error {
	var problems []error
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, envFileBytesMax+1)
	for n := 1; lines.Scan() && len(problems) < envFileProblems; n++ {
		// A space at the end may be quoted.
		line := strings.TrimLeft(strings.TrimSuffix(lines.Text(), "\r"), " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		first := n
		name, value, err := parseVariable(line, func() (string, bool) {
			if !lines.Scan() {
				return "", false
			}
			n++
			return strings.TrimSuffix(lines.Text(), "\r"), true
		})
		if err != nil {
			problems = append(problems, fmt.Errorf("%s line %d: %w", f.Path, first, err))
			continue
		}
		f.Values[name], f.lines[name] = value, first
	}
	return errors.Join(problems...)
}

// parseVariable reads NAME=VALUE. next returns the following line, which a value in
// quotes may need; ok is false at the end of the file.
func parseVariable(line string, next func() (string, bool)) (name, value string, err error) {
	if rest, ok := strings.CutPrefix(line, "export"); ok && rest != "" &&
		(rest[0] == ' ' || rest[0] == '\t') {
		line = strings.TrimLeft(rest, " \t")
	}
	name, rest, ok := strings.Cut(line, "=")
	name = strings.TrimRight(name, " \t")
	switch {
	case !ok && variableName.MatchString(name):
		return "", "", fmt.Errorf("%s has no value: write %s=VALUE", name, name)
	case !ok || !variableName.MatchString(name):
		return "", "", errors.New("not NAME=VALUE: a name has letters, digits and _; " +
			"put # before a comment")
	}
	rest = strings.TrimLeft(rest, " \t")
	if rest == "" || rest[0] != '"' && rest[0] != '\'' {
		return name, bareValue(rest), nil
	}
	value, err = quotedValue(rest, next)
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return name, value, err
}

// variableName matches the names that a shell takes.
var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// bareValue removes the comment behind a value without quotes. A # within a word is part
// of the value: a#b stays, and a #b becomes a.
func bareValue(text string) string {
	for i := range text {
		if text[i] == '#' && (i == 0 || text[i-1] == ' ' || text[i-1] == '\t') {
			text = text[:i]
			break
		}
	}
	return strings.TrimSpace(text)
}

// quotedValue reads a value that begins with a quote and continues to the next such
// quote, over several lines if need be. Only double quotes have escapes.
func quotedValue(text string, next func() (string, bool)) (string, error) {
	escapes := strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\"`, `"`, `\\`, `\`, `\$`, "$")
	quote, text := text[0], text[1:]
	var b strings.Builder
	for {
		end := closing(text, quote)
		if end >= 0 {
			b.WriteString(text[:end])
			if rest := strings.TrimSpace(text[end+1:]); rest != "" && rest[0] != '#' {
				return "", errors.New("text follows the closing quote: " +
					"put the whole value into the quotes")
			}
			break
		}
		b.WriteString(text + "\n")
		line, ok := next()
		if !ok {
			return "", fmt.Errorf("the quote %c is not closed", quote)
		}
		text = line
	}
	if quote == '"' {
		return escapes.Replace(b.String()), nil
	}
	return b.String(), nil
}

// closing returns the index of the closing quote, or -1 if it is not in this line. In
// double quotes a backslash takes the next character out of play, so \" does not close
// the value.
func closing(text string, quote byte) int {
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == quote:
			return i
		case text[i] == '\\' && quote == '"':
			i++
		}
	}
	return -1
}
