"""Command of a flow run, `python -I -S launch.py SOCKET COMMAND...`: has `preloaded` fork it, and stands in for it.

Imports the standard library alone, to start at once. Where nobody answers on the socket, it becomes COMMAND itself.
"""

import json
import os
import signal
import socket
import sys
from contextlib import suppress

_ANSWER_LIMIT_S = 60.0
_PASSED_ON = (signal.SIGTERM, signal.SIGINT)


def address(path: str) -> str:
    """Address of a socket in a folder whose name may be longer than the 107 bytes of an address."""
    folder, name = os.path.split(path)
    return f"/proc/self/fd/{os.open(folder, os.O_PATH)}/{name}"


def main(path: str, *command: str) -> None:
    """Have the flow run forked, pass signals on to it, and end as it does."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_ANSWER_LIMIT_S)
    job = json.dumps({"environment": dict(os.environ), "folder": os.getcwd()}).encode()
    try:
        connection.connect(address(path))
        socket.send_fds(connection, [len(job).to_bytes(8, "little")], [0, 1, 2])
        connection.sendall(job)
        has_begun = connection.recv(1)
    except OSError:
        has_begun = b""
    if not has_begun:
        os.execv(command[0], command)
    connection.settimeout(None)

    def pass_on(number: int, _: object) -> None:
        with suppress(OSError):  # the run has ended
            connection.send(bytes([number]))

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    answer = b""
    with suppress(ConnectionResetError):
        answer = connection.recv(8)
    code = int.from_bytes(answer, "little", signed=True) if answer else 1  # 1: its keeper was killed
    if code < 0:  # by a signal
        for number in _PASSED_ON:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
