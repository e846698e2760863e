"""Prefect's command line for the managed server: it ends with its folder, and its transactions lock SQLite at once.

Prefect begins most transactions as DEFERRED: they read first and take the lock at their first write. If another
connection has written in between, SQLite refuses that write at once with "database is locked", whatever its time limit.
Each poll of a worker starts two such transactions side by side (`mark_work_queues_ready`, `mark_deployments_ready`), so
every few polls one of them failed and left a traceback of 80 lines in the log. An IMMEDIATE transaction waits instead.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from prefect.cli import app
from prefect.server.database.configurations import AioSqliteConfiguration
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

from flows.service.processes import inode_of

LOOK_EVERY_S = 2.0
_deferred = AioSqliteConfiguration.begin_transaction


@asynccontextmanager
async def _begin_immediate(
    self: AioSqliteConfiguration, session: AsyncSession, with_for_update: bool = False
) -> AsyncGenerator[AsyncSessionTransaction, None]:
    async with _deferred(self, session, with_for_update=True) as transaction:
        yield transaction


AioSqliteConfiguration.begin_transaction = _begin_immediate  # type: ignore[method-assign]


def _end_with(home: Path, inode: int) -> None:
    """End this process as soon as its folder is deleted, or is another one."""
    while inode_of(home) == inode:
        time.sleep(LOOK_EVERY_S)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    folder = Path(os.environ["PREFECT_HOME"])
    threading.Thread(target=_end_with, args=[folder, folder.stat().st_ino], daemon=True).start()
    app()
