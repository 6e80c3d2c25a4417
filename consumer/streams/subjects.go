package streams

import "strings"

// covers reports whether filter matches everything that subject (a subject or a filter itself) matches.
func covers(filter, subject string) bool {
	for {
		f, restF, moreF := strings.Cut(filter, ".")
		s, restS, moreS := strings.Cut(subject, ".")
		switch {
		case f == ">":
			return s != ""
		case s == ">", f != "*" && f != s:
			return false
		case !moreF || !moreS:
			return moreF == moreS
		}
		filter, subject = restF, restS
	}
}

// Overlap reports whether some subject matches both filters.
func Overlap(a, b string) bool {
	for {
		x, restA, moreA := strings.Cut(a, ".")
		y, restB, moreB := strings.Cut(b, ".")
		switch {
		case x == ">" || y == ">":
			return true
		case x != "*" && y != "*" && x != y:
			return false
		case !moreA || !moreB:
			return moreA == moreB
		}
		a, b = restA, restB
	}
}
