"""All exception types of the project.

The type tells who can fix the error (the author of a configuration, the owner of a file, the operator of the machine).
The message says what was found, what was expected and what to do.
"""

import difflib
from collections.abc import Collection


class HacpoError(Exception):
    """Base of all errors with a remedy in their message; the command line prints them without a traceback."""


class ConfigError(HacpoError, ValueError):
    """A configuration field is unknown, out of range, without effect, or contradicts another one."""


class MethodError(HacpoError, ValueError):
    """A class of a method, or a reward function, cannot be found, failed, or returned an invalid value."""


class CapacityError(HacpoError, ValueError):
    """The configured hardware has too little memory for the experiment."""


class DataError(HacpoError, ValueError):
    """A data file is missing, corrupt or has unexpected contents."""


class ModelError(HacpoError, ValueError):
    """A model folder cannot become an agent: no weights, no tokenizer, no chat template, unsafe format."""


class EngineError(HacpoError):
    """A sampler or a learner failed, or a configured engine is not installed."""


class AgentLostError(EngineError):
    """A process with an agent's weights died; a new one can resume from the last checkpoint."""


class ServerError(HacpoError):
    """A server (Prefect's) does not respond, rejects a request or does not start; the experiment is intact."""


class TrackingError(HacpoError):
    """MLflow's store does not respond, cannot be opened or rejects data; the experiment is intact."""


class VerificationError(HacpoError):
    """Verification failed as a whole: the workers do not start, or too many responses are unscored."""


class StoreError(HacpoError):
    """The step store or a checkpoint cannot be written, is corrupt, or was altered."""


class LockedError(StoreError):
    """Another process is writing to the same experiment."""


class ReplayError(StoreError):
    """An update that was replayed from stored rollouts gave different weights than the first time."""


OUT_OF_MEMORY = (
    "memory ran out; lower rollout.batch_size or engine.micro_batch_tokens, train fewer at a time, or use other "
    "hardware (docs/scaling.md)"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on a GPU or not, and no error of ours says so: of various types, texts decide."""
    is_said = any(words in str(error) for words in ("out of memory", "allocate memory"))
    return isinstance(error, MemoryError) or (is_said and not isinstance(error, HacpoError))


def first_line(error: BaseException) -> str:
    """First line of another library's error message; the error's type if the message is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def did_you_mean(name: str, names: Collection[str], *, ending: str = "") -> str:
    """Hint at similar names, with `ending` behind each; "" if there is none. It ends in a question mark."""
    close = difflib.get_close_matches(name, names, n=2)
    return f"did you mean {' or '.join(found + ending for found in close)}?" if close else ""
