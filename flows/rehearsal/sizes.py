"""The numbers of passages of a rehearsal's runs. The command imports them, so this file imports nothing."""

FEWEST = 1000
"""The passages of the smallest run, which is not measured."""
SHARE = 4
"""The smaller of the measured runs has one passage in four of the larger one's."""
