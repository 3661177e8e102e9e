package main

import (
	"testing"

	"oneshot/internal/doctest"
)

// What the documents show of this program exists.
func TestDocumentedCommands(t *testing.T) { doctest.Commands(t, rootCommand()) }
