"""`pretrieve browse`: a local page that searches a finished run and shows its queries, negatives and pseudo-queries."""
