"""Pseudo-query corpora: one file for each command."""
