"""The server in `daybook standalone` that answers the requests of `control`."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import trio

from daybook.clients.cli.control import COMMANDS
from daybook.clients.cli.supervisor import Keeper, PartFailedError, Supervisor

_REQUEST_BYTES_MAX = 4096
_REQUEST_TIMEOUT_S = 5.0
_START_TIMEOUT_S = 180.0


async def serve_control(
    supervisor: Supervisor,
    path: Path,
    task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve requests until cancelled."""
    sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    await sock.bind(str(path))
    os.chmod(path, 0o600)  # before `listen`: no other user may connect, not even briefly
    sock.listen(8)

    async def serve(stream: trio.SocketStream) -> None:
        await serve_stream(supervisor, stream)

    await trio.serve_listeners(serve, [trio.SocketListener(sock)], task_status=task_status)


async def serve_stream(supervisor: Supervisor, stream: trio.abc.Stream) -> None:
    """Answer the one request of a connection.  A bad request affects no other connection."""
    try:
        await stream.send_all(json.dumps(await _answer(supervisor, stream)).encode() + b"\n")
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return  # The client did not wait for the answer.


async def _answer(supervisor: Supervisor, stream: trio.abc.Stream) -> dict[str, Any]:
    line = b""
    with trio.move_on_after(_REQUEST_TIMEOUT_S):
        while not line.endswith(b"\n") and len(line) < _REQUEST_BYTES_MAX:
            chunk = await stream.receive_some(_REQUEST_BYTES_MAX)
            if not chunk:
                break
            line += chunk
    try:
        request: Any = json.loads(line)
        command, name = str(request["command"]), request.get("name")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {"error": "This is not a request."}
    if not isinstance(name, str | None):
        return {"error": "The name of a part is a string."}
    if command not in COMMANDS:
        return {"error": f"There is no command {command}."}
    keepers = supervisor.keepers
    if name is not None and name not in keepers:
        return {"error": f"There is no {name}; the parts are {', '.join(keepers)}."}
    if command != "status":
        if name is None:
            return {"error": f"{command}: name a part, one of {', '.join(keepers)}."}
        try:
            await _carry_out(keepers[name], command)
        except PartFailedError as error:
            return {"error": f"{str(error).rstrip('.')}."}
    chosen = list(keepers) if name is None else [name]
    return {
        "ok": True,
        "parts": [keepers[each].facts() for each in chosen],
        "ack_quorum": supervisor.ack_quorum,
    }


async def _carry_out(keeper: Keeper, command: str) -> None:
    # One command at a time: two that wait for opposite states of a part would never end.
    async with keeper.lock:
        match command:
            case "kill":
                await keeper.kill()
            case "stop":
                await keeper.stop()
            case "start":
                with trio.move_on_after(_START_TIMEOUT_S):
                    await keeper.start()
                    return
                raise PartFailedError(
                    f"{keeper.part.name} is not ready after {_START_TIMEOUT_S:g} s,"
                    f" see {keeper.part.log}"
                )
            case "pause":
                keeper.pause()
            case _:
                keeper.resume()
