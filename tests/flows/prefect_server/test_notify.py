"""Reports of failed runs: real HTTP and SMTP servers receive them, and each failure is reported once."""

from __future__ import annotations

import email
import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.policy import default
from typing import Any

import httpx
import pytest

from flows.prefect_server.api import PAGE, Api
from flows.prefect_server.automations import SILENT
from flows.prefect_server.messages import Mail, Webhook, from_environment, recipients
from flows.prefect_server.notify import Sent, ended_runs, message, notify, report_all
from storage.errors import UserError

RUN = "0b7c2f6e-0000-4000-8000-000000000001"


class Posts(http.server.BaseHTTPRequestHandler):
    """Keeps what is posted; answers with the server's status."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append(json.loads(body))  # type: ignore[attr-defined]
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


class Letters(socketserver.StreamRequestHandler):
    """SMTP without extensions (RFC 5321): keeps each message with its recipients."""

    def handle(self) -> None:
        to = list[str]()
        self.wfile.write(b"220 test\r\n")
        while line := self.rfile.readline().strip():
            verb = line[:4].upper()
            if verb == b"RCPT":
                to.append(line.partition(b"<")[2].partition(b">")[0].decode())
            if verb == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                lines = iter(lambda: self.rfile.readline(), b".\r\n")
                text = b"".join(line.removeprefix(b".") if line.startswith(b"..") else line for line in lines)
                self.server.received.append((to, email.message_from_bytes(text, policy=default)))  # type: ignore[attr-defined]
            self.wfile.write(b"221 bye\r\n" if verb == b"QUIT" else b"250 ok\r\n")
            if verb == b"QUIT":
                return


def serving(server: Any) -> Iterator[Any]:
    server.received, server.status = [], 200
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def hook() -> Iterator[Any]:
    yield from serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Posts))


@pytest.fixture
def post_office() -> Iterator[Any]:
    yield from serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Letters))


def address(server: Any, scheme: str) -> str:
    return f"{scheme}://127.0.0.1:{server.server_address[1]}"


class Server:
    """What a Prefect server has of runs, as its API gives it."""

    url = "http://127.0.0.1:4200/api"
    locked = False
    """Whether its database takes no labels."""
    filter_all = Api.filter_all

    def __init__(self, *runs: dict[str, Any]) -> None:
        self.runs = list(runs)

    def send(self, method: str, path: str, body: Any) -> Any:
        if method == "PATCH" and self.locked:
            request = httpx.Request(method, f"{self.url}/{path}")
            raise httpx.HTTPStatusError("locked", request=request, response=httpx.Response(500, request=request))
        if method == "PATCH":
            [run] = [run for run in self.runs if path == f"flow_runs/{run['id']}/labels"]
            run["labels"] |= body
            return None
        kinds, tags = body["flow_runs"]["state"]["type"]["any_"], set(body["flow_runs"]["tags"]["all_"])
        matches = [run for run in self.runs if run["state_type"] in kinds and tags <= set(run["tags"])]
        return matches[body["offset"] :][: body["limit"]]


def run(kind: str = "FAILED", said: str = "line 3 of d.jsonl", **changed: Any) -> dict[str, Any]:
    state = {"message": said, "timestamp": datetime.now(UTC).isoformat()}
    row = {"id": RUN, "name": "quickstart seed=7", "state_type": kind, "state_name": kind.title(), "state": state,
           "state_id": "first", "labels": {}, "tags": ["pretrieve"], "total_run_time": 75.0}  # fmt: skip
    return row | changed


def test_a_failed_run_is_reported_once_by_each_way(hook: Any, post_office: Any) -> None:
    given = {"PRETRIEVE_WEBHOOK": address(hook, "http"), "PRETRIEVE_MAIL_TO": "ops@x.org, ml@x.org",
             "PRETRIEVE_SMTP": address(post_office, "smtp"), "PRETRIEVE_MAIL_FROM": "runs@x.org"}  # fmt: skip
    server: Any = Server(run())

    for _ in range(3):
        report_all(server, recipients(given), lambda line: None, set())

    [post], [(to, mail)] = hook.received, post_office.received
    assert to == ["ops@x.org", "ml@x.org"]
    assert mail["From"] == "runs@x.org"
    assert mail["Subject"] == "pretrieve: quickstart seed=7 is Failed after 1 min 15 s"
    for text in (post["text"], mail.get_content()):
        assert "line 3 of d.jsonl" in text
        assert "Retry on the run's page resumes it" in text
        assert f"http://127.0.0.1:4200/v2/runs/flow-run/{RUN}" in text

    server.runs[0]["state_id"] = "second"  # it was retried and failed again
    report_all(server, recipients(given), lambda line: None, set())
    assert len(hook.received) == len(post_office.received) == 2


def test_a_message_that_is_not_accepted_is_sent_again_and_does_not_stop_the_others(hook: Any, post_office: Any) -> None:
    ways: list[Any] = recipients({
        "PRETRIEVE_WEBHOOK": address(hook, "http"), "PRETRIEVE_MAIL_TO": "ops@x.org",
        "PRETRIEVE_SMTP": address(post_office, "smtp"),
    })  # fmt: skip
    server, lines = Server(run()), list[str]()
    hook.status = 500

    report_all(server, ways, lines.append, set())  # type: ignore[arg-type]
    hook.status = 200
    report_all(server, ways, lines.append, set())  # type: ignore[arg-type]
    report_all(server, ways, lines.append, set())  # type: ignore[arg-type]

    assert lines[0] == "quickstart seed=7: could not be reported (PRETRIEVE_WEBHOOK: HTTP 500); trying again"
    assert (len(hook.received), len(post_office.received)) == (2, 1)


def test_a_message_is_not_sent_again_where_the_server_cannot_note_it(hook: Any) -> None:
    server: Any = Server(run(), run(id="later"))
    server.locked = True
    sent, lines = set[Sent](), list[str]()
    ways = recipients({"PRETRIEVE_WEBHOOK": address(hook, "http")})

    report_all(server, ways, lines.append, sent)
    report_all(server, ways, lines.append, sent)
    assert len(hook.received) == 2
    assert lines[1] == "quickstart seed=7: the server cannot note the report (HTTPStatusError); trying again"
    server.locked = False
    report_all(server, ways, lines.append, sent)

    assert [row["labels"] for row in server.runs] == [{"pretrieve.reported.webhook": "first"}] * 2
    assert len(hook.received) == 2


def test_successes_are_reported_on_request_only(hook: Any) -> None:
    done = run("COMPLETED", "All states completed.")
    server: Any = Server(done, done | {"id": "x", "tags": ["pretrieve", "report"]}, done | {"id": "y", "tags": []})

    assert [row["id"] for row in ended_runs(server, success=False)] == ["x"]
    assert {row["id"] for row in ended_runs(server, success=True)} == {RUN, "x"}
    assert "Retry" not in message(done, server.url)[1]


def test_all_failed_runs_are_reported_where_the_server_answers_in_pages() -> None:
    server: Any = Server(*(run(id=str(number)) for number in range(2 * PAGE + 1)))

    assert [row["id"] for row in ended_runs(server, success=False)] == [row["id"] for row in server.runs]


def test_a_run_that_may_be_alive_is_not_reported_yet() -> None:
    silent = run("CRASHED", SILENT)
    server: Any = Server(silent)

    assert ended_runs(server, success=False) == []
    silent["state"]["timestamp"] = (datetime.now(UTC) - timedelta(minutes=2)).isoformat()
    assert len(ended_runs(server, success=False)) == 1


def test_secrets_may_be_in_files(tmp_path: Any) -> None:
    (tmp_path / "hook").write_text("https://example.org/secret\n")

    assert recipients({"PRETRIEVE_WEBHOOK_FILE": str(tmp_path / "hook")}) == [Webhook("https://example.org/secret")]
    assert from_environment("A", {"A": "1", "A_FILE": "none"}) == "1"
    with pytest.raises(UserError, match=r"PRETRIEVE_SMTP_FILE=.*No such file"):
        from_environment("PRETRIEVE_SMTP", {"PRETRIEVE_SMTP_FILE": str(tmp_path / "none")})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"PRETRIEVE_WEBHOOK": "example.org"}, "begins with http"),
        ({"PRETRIEVE_WEBHOOK": "http://host:x/hook"}, "with a host"),
        ({"PRETRIEVE_WEBHOOK": "https:///hook"}, "with a host"),
        ({"PRETRIEVE_MAIL_TO": "nobody"}, "expected addresses such as"),
        ({"PRETRIEVE_MAIL_TO": "a@b", "PRETRIEVE_SMTP": "mail.example.org"}, "expected smtp://"),
        ({"PRETRIEVE_MAIL_TO": "a@b", "PRETRIEVE_SMTP": "smtp://host:port"}, "expected smtp://"),
    ],
)
def test_wrong_addresses_are_refused(given: dict[str, str], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        recipients(given)


def test_an_unreachable_address_is_an_error_without_its_secret() -> None:
    with pytest.raises(OSError, match=r"PRETRIEVE_WEBHOOK: ConnectError$"):
        Webhook("http://127.0.0.1:9/xyzzy").send("a", "b")
    with pytest.raises(OSError, match=r"PRETRIEVE_WEBHOOK: InvalidURL$"):
        Webhook("http://host:x/xyzzy").send("a", "b")
    [way] = recipients({"PRETRIEVE_MAIL_TO": "a@b", "PRETRIEVE_SMTP": "smtp://u:xyzzy@127.0.0.1:9"})
    assert isinstance(way, Mail)
    with pytest.raises(OSError, match="PRETRIEVE_SMTP: ") as refused:
        way.send("a", "b")
    assert "xyzzy" not in str(refused.value)


def test_a_test_message_needs_no_prefect_server(
    hook: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("PRETRIEVE_WEBHOOK", "PRETRIEVE_MAIL_TO", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="no recipient of reports"):
        notify(test=True)
    monkeypatch.setenv("PRETRIEVE_WEBHOOK", address(hook, "http"))

    notify(test=True)

    assert "a test message was sent to webhook" in capsys.readouterr().out
    assert len(hook.received) == 1
