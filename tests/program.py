"""A text of Python, the first argument, run as `python -c` runs it: for `tests.warm`, which starts modules."""

import sys

exec(compile(sys.argv.pop(1), "<program>", "exec"), {"__name__": "__main__"})
