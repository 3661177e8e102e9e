"""Stands in for pytest-metadata, which Debian has not, either."""

metadata_key = object()
