package config

import (
	"fmt"
	"strings"
)

// suggest completes a message about an unknown word: with the known word that
// the user probably meant, or else with all known words.
func suggest(word string, known []string) string {
	if best := nearest(word, known); best != "" {
		return fmt.Sprintf("did you mean %q?", best)
	}
	return "known are " + enumerate(known)
}

// enumerate writes up to maxListed words one after the other.
func enumerate(known []string) string {
	if more := len(known) - maxListed; more > 0 {
		return strings.Join(known[:maxListed], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(known, ", ")
}

// A message lists up to maxListed known words. maxCompared words at most are compared with a wrong one.
const (
	maxListed   = 50
	maxCompared = 2000
)

// choices is like suggest for short lists of known words, which it always shows.
func choices(word string, known []string) string {
	all := "known are " + enumerate(known)
	if best := nearest(word, known); best != "" && len(known) > 1 {
		return fmt.Sprintf("did you mean %q? (%s)", best, all)
	}
	return all
}

// nearest returns the known word that differs from word in at most a third of
// its characters, or "".
func nearest(word string, known []string) string {
	best, bestDistance := "", max(1, len(word)/3)+1
	for _, k := range known[:min(len(known), maxCompared)] {
		if longer := len(word) - len(k); longer >= bestDistance || -longer >= bestDistance {
			continue // at least so many characters differ
		}
		if n := distance(strings.ToLower(word), strings.ToLower(k)); n < bestDistance && n < len(k) {
			best, bestDistance = k, n
		}
	}
	return best
}

// distance is the number of characters to insert, delete, replace or swap with
// their neighbour to get from a to b (optimal string alignment).
func distance(a, b string) int {
	var before, last []int // rows i-2 and i-1 of the table
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, row = last, row, make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replace := last[j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			row[j] = min(last[j]+1, row[j-1]+1, replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
