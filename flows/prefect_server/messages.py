"""Send a message to people: a post to a webhook, and e-mail through an SMTP server.

The environment says where to. A secret may be in a file instead, which the variable with `_FILE` at its end names, as
container platforms provide secrets.
"""

from __future__ import annotations

import os
import smtplib
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import make_msgid
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from storage.errors import UserError

WEBHOOK, MAIL_TO, MAIL_FROM, SMTP = "PRETRIEVE_WEBHOOK", "PRETRIEVE_MAIL_TO", "PRETRIEVE_MAIL_FROM", "PRETRIEVE_SMTP"
PORTS = {"smtp": 587, "smtps": 465}
SECONDS = 30.0


@dataclass(frozen=True)
class Webhook:
    """An address that takes `{"text": ...}`, such as the incoming webhooks of Slack and Mattermost."""

    address: str

    def send(self, subject: str, text: str) -> None:
        """Post the text, which begins with the subject. Raises OSError where it is not accepted."""
        import httpx

        try:
            answer = httpx.post(self.address, json={"text": f"{subject}\n{text}"}, timeout=SECONDS)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise OSError(f"{WEBHOOK}: {type(error).__name__}") from None  # its text may have the secret address
        if answer.status_code >= 300:
            raise OSError(f"{WEBHOOK}: HTTP {answer.status_code}")


@dataclass(frozen=True)
class Mail:
    """Recipients, and the SMTP server that takes their mail."""

    server: SplitResult
    """smtp://user:password@host:port, with STARTTLS where there is a password; or smtps://…"""
    sender: str
    recipients: tuple[str, ...]

    def send(self, subject: str, text: str) -> None:
        """Send a message in plain text. Raises OSError where the server does not take it."""
        message = EmailMessage()
        message["Subject"], message["From"], message["To"] = subject, self.sender, ", ".join(self.recipients)
        message["Message-ID"] = make_msgid(domain=self.sender.rpartition("@")[2])
        message.set_content(text)
        try:
            with self._connection() as connection:
                if self.server.password is not None:
                    if self.server.scheme == "smtp":
                        connection.starttls(context=ssl.create_default_context())
                    connection.login(unquote(self.server.username or ""), unquote(self.server.password))
                connection.send_message(message)
        except (smtplib.SMTPException, OSError) as error:
            raise OSError(f"{SMTP}: {type(error).__name__}: {error}") from None

    def _connection(self) -> smtplib.SMTP:
        host, port = self.server.hostname or "", self.server.port or PORTS[self.server.scheme]
        if self.server.scheme == "smtps":
            return smtplib.SMTP_SSL(host, port, timeout=SECONDS, context=ssl.create_default_context())
        return smtplib.SMTP(host, port, timeout=SECONDS)


def recipients(environment: Mapping[str, str] = os.environ) -> list[Webhook | Mail]:
    """Return where messages go to, by the environment; none where it names nothing. Raises UserError for bad values."""
    channels = list[Webhook | Mail]()
    if address := from_environment(WEBHOOK, environment):
        if not _is_address(address, ("http", "https")):
            raise UserError(f"{WEBHOOK} must be an address that begins with http:// or https://, with a host")
        channels.append(Webhook(address))
    if to := from_environment(MAIL_TO, environment):
        channels.append(_mail(to, from_environment(SMTP, environment), from_environment(MAIL_FROM, environment)))
    return channels


def from_environment(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return a variable's value, or the content of the file that `NAME_FILE` names; "" where neither is set."""
    file = environment.get(f"{name}_FILE")
    if environment.get(name) or not file:
        return environment.get(name, "")
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UserError(f"{name}_FILE={file}: {error.strerror or error}; expected a file with the value") from None


def _mail(to: str, server: str, sender: str) -> Mail:
    people = tuple(person.strip() for person in to.split(","))
    if not all("@" in person and " " not in person for person in (*people, sender or "a@b")):
        raise UserError(f"{MAIL_TO} and {MAIL_FROM}: expected addresses such as name@example.org, with commas between")
    server = server or "smtp://127.0.0.1:25"
    if not _is_address(server, PORTS):
        raise UserError(f"{SMTP}: expected smtp://user:password@host:587 or smtps://user:password@host:465")
    return Mail(urlsplit(server), sender or people[0], people)


def _is_address(text: str, schemes: Collection[str]) -> bool:
    """Return whether a URL has one of the schemes, a host, and a port that is a number, if it has one."""
    try:
        parts = urlsplit(text)
        return parts.scheme in schemes and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
