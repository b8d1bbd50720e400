"""The login page of Prefect's UI: an address that `pretrieve up` prints gives the browser the password, once."""

from __future__ import annotations

import hmac
import json
import time
from pathlib import Path

LOGIN = "/pretrieve/login"
LOGIN_FILE = "PRETRIEVE_LOGIN"
"""The variable that names the file with the code that the login page accepts."""
# The code is in the address's fragment, which a browser does not send: it is in no log. The page exchanges it for the
# password and stores that where Prefect's pages read it.
LOGIN_PAGE = """<!doctype html>
<meta charset="utf-8"><title>pretrieve</title>
<p id="state">Logging in.</p>
<script>
  const code = location.hash.slice(1)
  history.replaceState(null, "", location.pathname)
  fetch(location.pathname, {method: "POST", body: code}).then(async answer => {
    if (!answer.ok) throw new Error()
    localStorage.setItem("prefect-password", btoa(await answer.text()))
    location.replace("/v2/deployments")
  }).catch(() => {
    document.getElementById("state").textContent =
      "This address has been used, or is too old: `pretrieve up` prints a new one."
  })
</script>
"""


def redeem(file: Path, code: bytes) -> bool:
    """Return whether the code is that of the file and not too old. A code is used up by the first call."""
    try:
        issued = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return False
    if not hmac.compare_digest(issued["code"].encode(), code) or time.time() > issued["until"]:
        return False
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True
