"""Where several hosts meet: an address of the first host, on a network that is declared trusted."""

import socket
from pathlib import Path

import pytest

from storage.errors import UserError
from storage.store.store import Store
from tasks.runtime import heartbeat
from tasks.runtime.heartbeat import rendezvous_address
from tasks.runtime.ranks import run_together
from tasks.session import Execution, Session, session
from tests import warm
from tests.ports import free_port
from tests.tasks import together


def on_trusted_network(rendezvous: str | None) -> Execution:
    return Execution(threads=1, device="cpu", hosts=2, rendezvous=rendezvous, trusted_network=True)


@pytest.mark.parametrize("address", [None, "", "gpu-1", "gpu-1:99999", ":29400", "http://gpu-1:29400"])
def test_a_meeting_place_is_a_host_and_a_port(address: str | None) -> None:
    with pytest.raises(UserError, match=r"execution.rendezvous: expected HOST:PORT of this host, where 2 hosts meet"):
        rendezvous_address(on_trusted_network(address))


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    assert rendezvous_address(on_trusted_network("[::1]:29401")) == ("::1", 29401)
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = other.getsockname()[1]

        current = Session(Store(tmp_path), on_trusted_network(f"localhost:{port}"))
        refused = pytest.raises(UserError, match=f"execution.rendezvous.*port {port} cannot be used there")
        with session(current), refused:
            run_together(
                together.complain, tmp_path, (), together.TrainingSettings(kinds=[], chunk=None), current.store
            )


def test_the_first_host_listens_at_the_rendezvous_only() -> None:
    port = free_port()
    with heartbeat.listen(on_trusted_network(f"127.0.0.2:{port}")), socket.socket() as elsewhere:
        elsewhere.bind(("127.0.0.1", port))  # which is taken where something listens on every address


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("127.1", "127.1 is 127.0.0.1 here, which no other host reaches: give an address"),
        ("192.0.2.77", "cannot be used there"),
        ("no-such-host.invalid", "no-such-host.invalid has no address here"),
    ],
)
def test_a_rendezvous_that_is_not_an_address_of_this_host_is_refused(host: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        heartbeat.listen(on_trusted_network(f"{host}:{free_port()}"))


def test_several_hosts_need_a_network_that_is_declared_trusted(tmp_path: Path) -> None:
    wanted = ["plan", "quickstart", "--set", "execution.hosts=2", "--set", "execution.rendezvous=127.0.0.1:29400"]

    refused = warm.run(tmp_path, *wanted)

    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1
    assert "trusted_network" in refused.stderr
    assert "without passwords or encryption" in refused.stderr
