"""`python -m flows.service.launch MODULE WORD...`: run a module in a process that has imported it already.

The server that the environment names (`flows.service.fork_server`) forks that process. This one stays beside it, passes
on what signals it gets, ends as the other ends, and takes it along when it is killed: who started this one sees one
process that runs the module. Without a server, or when that refuses, this one becomes the module itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
from contextlib import suppress

FORK_SERVER = "HACPO_FORK_SERVER"
"""abstract address of the fork server, without its leading zero byte"""
FORKED = b"+"
LENGTH = struct.Struct("!I")
STATUS = struct.Struct("!i")
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def main() -> None:
    """Run the module that the command line names; never returns."""
    arguments = sys.argv[1:]
    address = os.environ.get(FORK_SERVER)
    if address:
        with suppress(OSError):
            _stand_in(address, arguments)
    os.execv(sys.executable, [sys.executable, "-m", *arguments])


def _stand_in(address: str, arguments: list[str]) -> None:
    """Return only if the server did not fork.

    Raises:
        OSError: likewise.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"\0{address}")
        if not is_own(connection):
            return
        request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
        content = json.dumps(request).encode()
        socket.send_fds(connection, [LENGTH.pack(len(content))], [0, 1, 2])
        connection.sendall(content)
        # A signal that ends this process until then takes the fork along, which has not begun yet.
        _, forks, _, _ = socket.recv_fds(connection, len(FORKED), 1)
        if forks:
            for number in _PASSED_ON:
                signal.signal(number, lambda number, _frame: _pass_on(forks[0], number))
            _end_like(connection.recv(STATUS.size))


def _pass_on(fork: int, number: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(fork, number)


def _end_like(status: bytes) -> None:
    if not status:
        sys.exit("the run's process has ended, and nobody knows how: the fork server is gone")
    (code,) = STATUS.unpack(status)
    if code < 0:
        with suppress(OSError):  # SIGKILL's action cannot be set, nor need it be
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def is_own(connection: socket.socket) -> bool:
    """Whether the other end is a process of the same user; an abstract address is open to all of the machine."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1]) == os.getuid()


if __name__ == "__main__":
    main()
