"""Prefect's command line for the managed server: it ends with its folder or idle; transactions lock SQLite at once.

Prefect begins most transactions as DEFERRED: they read first and take the lock at their first write. If another
connection has written in between, SQLite refuses that write at once with "database is locked", whatever its time limit.
Each poll of a worker starts two such transactions side by side (`mark_work_queues_ready`, `mark_deployments_ready`), so
every few polls one of them failed and left a traceback of 80 lines in the log. An IMMEDIATE transaction waits instead.
"""

import math
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from prefect.cli import app
from prefect.server.api import server as api
from prefect.server.database.configurations import AioSqliteConfiguration
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

from flows.service.prefect_server import IDLE, IDLE_END_S
from flows.service.processes import Record, inode_of

LOOK_EVERY_S = 2.0
_deferred = AioSqliteConfiguration.begin_transaction


@asynccontextmanager
async def _begin_immediate(
    self: AioSqliteConfiguration, session: AsyncSession, with_for_update: bool = False
) -> AsyncGenerator[AsyncSessionTransaction, None]:
    async with _deferred(self, session, with_for_update=True) as transaction:
        yield transaction


AioSqliteConfiguration.begin_transaction = _begin_immediate  # type: ignore[method-assign]


class _Use:
    """When the server was asked last, once it was asked; its own calls to itself do not count."""

    last_at = math.inf

    @classmethod
    def noted(cls, settings: Any = None, **options: Any) -> Any:
        """Prefect's app, whose requests are noted."""
        app = _create_app(settings, **options)

        async def noting_app(scope: Any, receive: Any, send: Any) -> None:
            cls.last_at = time.monotonic()
            await app(scope, receive, send)

        return noting_app if options.get("final") else app


_create_app = api.create_app
api.create_app = _Use.noted  # type: ignore[assignment]


def _end_in_time(home: Path) -> None:
    """End this process when its folder is deleted or is another one, or when nothing uses it any more."""
    inode, record = inode_of(home), Record(home, "server")
    while inode_of(home) == inode:
        idle_s = (record.read() or {}).get(IDLE, IDLE_END_S)
        if idle_s is not None and time.monotonic() - _Use.last_at > idle_s:
            break
        time.sleep(LOOK_EVERY_S)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_in_time, args=[Path(os.environ["PREFECT_HOME"])], daemon=True).start()
    app()
