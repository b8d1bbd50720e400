"""Pseudo-query corpora: one file a command."""
