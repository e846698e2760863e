"""Process-wide settings for training and monitoring."""

import atexit
import functools
import gc
import logging
import os
import sys
from contextlib import suppress
from typing import Any, TextIO, cast


@functools.cache
def configure_process() -> None:
    """Configure garbage collection, CUDA device order, paths and a library's log. Later calls do nothing.

    Every command, flow and service of ours calls this first, unlike Prefect's server and the verifier's workers.

    The imports create about a million objects that live until exit. Python's default collection, after every 700 new
    objects, costs a sixth of the import time, and collecting at exit costs two seconds (docs/history.md).
    """
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # querying GPUs must not fix the visible devices
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # same numbering as nvidia-smi
    # Beside other work, threads that spin while they wait take the core of the one they wait for: docs/decisions.md.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # bars of libraries, whose redraws would fill a log
    if path := os.environ.get("PYTHONPATH"):  # a worker runs in another folder
        os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, path.split(os.pathsep)))
    logging.getLogger("huggingface_hub.utils._http").setLevel(logging.ERROR)  # it tells every retry, twice


def ignore_broken_output() -> None:
    """Discard further output once nobody reads it: a run goes on when the worker that read its output was killed.

    Otherwise the next progress bar of a library would end the run with a broken pipe.
    """
    sys.stdout, sys.stderr = cast(TextIO, _UnbreakableStream(sys.stdout)), cast(TextIO, _UnbreakableStream(sys.stderr))


class _UnbreakableStream:
    """A text stream that ignores a broken pipe."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(BrokenPipeError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(BrokenPipeError):
            self._stream.flush()
