"""The commands for the Prefect server and its workers. Their work is imported when they run."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.command_options import DEFAULT_STORE, StoreFolder


def register(app: typer.Typer, panel: str) -> None:
    """Add the commands to the command line, in a panel of its help."""
    app.command(rich_help_panel=panel, epilog="Example: pretrieve up --port 4300")(up)
    app.command(rich_help_panel=panel, epilog="Example: pretrieve status")(status)
    app.command(rich_help_panel=panel, epilog="Example: pretrieve down --drain")(down)
    app.command(rich_help_panel=panel, epilog="Example: pretrieve worker gpu --name gpu-host-0")(worker)
    app.command(rich_help_panel=panel, epilog="Example: pretrieve notify --test")(notify)
    app.command("register", rich_help_panel=panel, epilog="Example: pretrieve register")(register_deployments)
    app.command(rich_help_panel=panel, epilog="Example: pretrieve join --store /mnt/shared/artifacts")(join)


def up(
    store: StoreFolder = DEFAULT_STORE,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="The server's port; 4200, if not given.")] = None,
    reports_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The reports' port; the server's plus one, if not given.")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(metavar="URL", help="postgresql://user:password@host/name for the server; sqlite for SQLite."),
    ] = None,
) -> None:
    """Start a Prefect server and workers on this machine.

    They run in the background, and every deployment is registered. PRETRIEVE_DATABASE, or the file that
    PRETRIEVE_DATABASE_FILE names, has the database's address where its password must not be in the list of processes.
    """
    from flows.prefect_server.up import up as start

    start(store, port, reports_port, database)


def status(store: StoreFolder = DEFAULT_STORE) -> None:
    """Show which services of `pretrieve up` run for a store.

    Prints each service's process, address and log, and changes nothing. The exit code is 1 where none or not all run.
    """
    from flows.prefect_server.status import status as show

    show(store)


def down(
    store: StoreFolder = DEFAULT_STORE,
    drain: Annotated[bool, typer.Option("--drain", help="Start no new run, and wait for those that run.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel what runs; Retry resumes it later.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Stop all at once, without asking the server.")] = False,
) -> None:
    """Stop what `pretrieve up` has started."""
    from flows.prefect_server.down import down as stop

    stop(store, drain=drain, cancel=cancel, force=force)


def worker(
    pool: Annotated[str, typer.Argument(metavar="POOL", help="The work pool: cpu or gpu.")],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The worker's name; random, if not given.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The number of runs at a time.")] = 1,
    run_once: Annotated[bool, typer.Option("--run-once", help="Take what is scheduled now, and end.")] = False,
    healthcheck: Annotated[bool, typer.Option("--with-healthcheck", help="Serve /health on port 8080.")] = False,
) -> None:
    """Start a worker for the server at PREFECT_API_URL.

    It stays in the foreground. A run is not taken for dead while its process lives, and a retry of such a run attaches
    to its process.
    """
    import os

    from flows.prefect_server.register import check_server
    from flows.prefect_server.services import worker_command

    check_server()
    options = [*(["--run-once"] if run_once else []), *(["--with-healthcheck"] if healthcheck else [])]
    command = [*worker_command(pool, name, limit), *options]
    os.execv(command[0], command)  # Prefect's worker handles signals in its own way


def notify(
    test: Annotated[bool, typer.Option("--test", help="Only send a test message, and end.")] = False,
) -> None:
    """Report runs that fail, by webhook and e-mail.

    PRETRIEVE_WEBHOOK is an address that takes {"text": ...}; PRETRIEVE_MAIL_TO has e-mail addresses, and
    PRETRIEVE_SMTP the server that takes the mail. It stays in the foreground; `pretrieve up` starts it.
    """
    from flows.prefect_server.notify import notify as report

    report(test=test)


def register_deployments() -> None:
    """Register work pools, deployments and automations.

    They are registered with the Prefect server at PREFECT_API_URL.
    """
    from flows.prefect_server.register import register_all

    register_all()


def join(store: StoreFolder = DEFAULT_STORE) -> None:
    """Take part in training over several hosts.

    Waits for trainings in a store that the hosts share, and joins each one.
    """
    from flows.prefect_server.join_training import join as take_part

    take_part(store)
