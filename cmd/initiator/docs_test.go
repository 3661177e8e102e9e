package main

import (
	"testing"

	"oneshot/internal/doctest"
)

// The documents show only commands and flags that exist.
func TestDocumentedCommands(t *testing.T) { doctest.Commands(t, rootCommand()) }

// The help of each command says what the command does, and shows an example.
func TestHelp(t *testing.T) { doctest.Help(t, rootCommand()) }
