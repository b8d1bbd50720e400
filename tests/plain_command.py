"""The command line without Prefect, for tests of what stages build: no server, no flow run and no task runs.

It is the module of a process that `tests.warm` has forked. Commands, plans, stages and reports are the product's.
"""

from __future__ import annotations


def without_prefect() -> None:
    """Let the commands of this process run their stages directly; to be called before it imports their modules."""
    import flows.evaluate.evaluate
    import flows.matrix.run
    import flows.queries.build
    import flows.reproduce

    for module in (flows.evaluate.evaluate, flows.matrix.run, flows.queries.build, flows.reproduce):
        module.as_flow = lambda *given: given[-1]()
    flows.reproduce.build_and_show = flows.reproduce.build


if __name__ == "__main__":
    without_prefect()
    import flows.cli

    flows.cli.main()
