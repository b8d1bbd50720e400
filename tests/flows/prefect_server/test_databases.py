"""Which database a server of `pretrieve up` uses; tests/services start one on PostgreSQL."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from flows.prefect_server.databases import ADDRESS, MANY_LOCKED, choose_database, sqlite_warning
from flows.prefect_server.services import DATABASE, ServicePaths, service_environment, worker_environment
from storage.errors import UserError
from tests.ports import free_port
from tests.services.own_postgres import BINARIES, postgres


@pytest.fixture
def paths(tmp_path: Path) -> ServicePaths:
    built = ServicePaths(tmp_path)
    built.folder.mkdir(parents=True)
    return built


@pytest.mark.parametrize(
    "address", ["mysql://u:xyzzy@h/db", "postgresql://u:xyzzy@h", "postgresql://u:xyzzy@h:port/db", "db.sqlite"]
)
def test_another_address_than_postgresqls_is_refused_without_its_password(address: str, paths: ServicePaths) -> None:
    with pytest.raises(UserError, match="expected postgresql://") as refused:
        choose_database(address, paths, False)

    assert "xyzzy" not in str(refused.value)


def test_a_database_that_does_not_answer_is_one_line(paths: ServicePaths) -> None:
    with pytest.raises(UserError, match="start PostgreSQL, or correct the address") as refused:
        choose_database(f"postgresql://u:xyzzy@127.0.0.1:{free_port()}/db", paths, False)

    assert "xyzzy" not in str(refused.value)
    assert not paths.database.exists()


@pytest.mark.parametrize("name", ["HOST", "CONNECTION_URL"])
@pytest.mark.parametrize("beginning", ["PREFECT_SERVER_DATABASE_", "PREFECT_API_DATABASE_"])
def test_only_the_server_knows_the_database_whatever_the_shell_says(
    name: str, beginning: str, paths: ServicePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{beginning}{name}", "another")
    monkeypatch.setenv(ADDRESS, "postgresql://u:p@h/db")
    foreign = {ADDRESS, f"{beginning}{name}", DATABASE}
    assert not foreign & service_environment("server", paths, 1).keys()
    paths.database.write_text("postgresql+asyncpg://u:p@h/db")

    own = service_environment("server", paths, 1)

    assert own[DATABASE] == "postgresql+asyncpg://u:p@h/db"
    assert foreign & own.keys() == {DATABASE}
    for others in (service_environment("reports", paths, 1), worker_environment(paths, 1, 2)):
        assert not foreign & others.keys()


def test_the_database_changes_only_while_no_server_runs(paths: ServicePaths) -> None:
    paths.database.write_text("postgresql+asyncpg://u:p@h/db")
    with pytest.raises(UserError, match="the server runs with another database"):
        choose_database("sqlite", paths, True)
    choose_database(None, paths, True)
    choose_database("sqlite", paths, False)
    assert not paths.database.exists()


@pytest.mark.skipif(not BINARIES, reason="`make test-services` installs PostgreSQL")
def test_an_address_is_kept_as_the_servers_driver_takes_it(paths: ServicePaths) -> None:
    with postgres() as (host, password):
        given = f"postgresql://prefect:{password}@{host}/prefect"
        choose_database(f"{given}?sslmode=disable", paths, False)

        assert paths.database.read_text() == f"postgresql+asyncpg://prefect:{password}@{host}/prefect?ssl=disable"
        assert stat.S_IMODE(paths.database.stat().st_mode) == 0o600
        for query, reason in (("sslmode=require", "rejected SSL"), ("connect_timeout=3", r"no parameter but ssl")):
            with pytest.raises(UserError, match=reason) as refused:
                choose_database(f"{given}?{query}", paths, False)
            assert password not in str(refused.value)


def test_a_warning_names_why_sqlite_is_not_suitable(paths: ServicePaths) -> None:
    assert sqlite_warning(paths, 2) == ""
    paths.log("server").parent.mkdir(parents=True)
    paths.log("server").write_text("database is locked\n" * MANY_LOCKED)

    warning = sqlite_warning(paths, 9)

    assert f"`database is locked` {MANY_LOCKED} times" in warning
    assert "9 workers" in warning
    assert "pretrieve up --database" in warning
    paths.database.write_text("postgresql+asyncpg://u:p@h/db")
    assert sqlite_warning(paths, 9) == ""
