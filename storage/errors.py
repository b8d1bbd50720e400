"""Errors that say what is wrong, where, and what to do: one line each."""


class UserError(Exception):
    """Something the user can mend (exit code 2). The message is one line: what, where, expected, what to do."""
