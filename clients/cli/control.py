"""How `daybook local` talks to the `daybook standalone` of a directory, in lines of JSON.

    -> {"command": "kill", "name": "broker-1"}
    <- {"ok": true, "parts": [...], "ack_quorum": 2}       or  {"error": "one sentence"}

Both use a Unix socket that only the user can open.  A connection carries one request.  The answer
is sent when the command is carried out: `stop` when the part has ended, `start` when it is ready.
"""

import json
import socket
from pathlib import Path
from typing import Any

from daybook.clients.cli.directory import find_control_socket
from daybook.clients.cli.errors import UserError

COMMANDS = ("status", "kill", "stop", "start", "pause", "resume")


def ask(directory: Path, command: str, name: str | None) -> list[dict[str, Any]]:
    """Send a command, wait until it is carried out, and return the parts that it concerns."""
    parts: list[dict[str, Any]] = ask_for_all(directory, command, name)["parts"]
    return parts


def ask_for_all(directory: Path, command: str, name: str | None) -> dict[str, Any]:
    """Do the same and return the whole answer.  Raise `UserError` if the command is refused."""
    path = find_control_socket(directory)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(str(path))
            sock.sendall(json.dumps({"command": command, "name": name}).encode() + b"\n")
            with sock.makefile("rb") as answers:
                line = answers.readline()
    except OSError as error:
        raise UserError(f"No standalone cluster runs in {directory}: {error.strerror}.") from None
    if not line:
        raise UserError(
            "The standalone cluster ended before it answered: `daybook standalone` starts it again."
        )
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise UserError(answer["error"])
    return answer
