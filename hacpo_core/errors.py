"""Every exception that the project raises on purpose.

One class per remedy: the type says who must act (the author of a configuration, the owner of a file, the operator of
the machine), the message says what was found, what was expected and what to do.
"""


class HacpoError(Exception):
    """Base of all errors that carry a remedy in their message; the command line prints them without a traceback."""


class ConfigError(HacpoError, ValueError):
    """A configuration field is unknown, out of range, inert or contradicts another one."""


class MethodError(HacpoError, ValueError):
    """An implementation of a seam, or a reward function, cannot be found or returned something that is none."""


class CapacityError(HacpoError, ValueError):
    """The hardware that a configuration names cannot hold what it asks for."""


class DataError(HacpoError, ValueError):
    """A data file is missing, broken or holds something other than it should."""


class ModelError(HacpoError, ValueError):
    """A model folder cannot become an agent: no weights, no tokenizer, no chat template, unsafe format."""


class EngineError(HacpoError):
    """A sampler or a learner failed, or an engine that a configuration asks for is not installed."""


class AgentLostError(EngineError):
    """A process that held an agent's weights died; a new one can go on from the last checkpoint."""


class ServerError(HacpoError):
    """A server that others bring back (Prefect's) is silent, refuses, or does not start; the experiment is sound."""


class TrackingError(HacpoError):
    """MLflow's store is silent, cannot be opened or refuses what it is sent; the experiment is sound."""


class VerificationError(HacpoError):
    """Verification as a whole cannot be trusted: the workers do not start, or too many answers are unscored."""


class StoreError(HacpoError):
    """The step store or a checkpoint cannot be written, is torn, or was altered."""


class LockedError(StoreError):
    """Another process is writing to the same experiment."""


class ReplayError(StoreError):
    """An update that was replayed from stored rollouts ended in other weights than the first time."""


def first_line(error: BaseException) -> str:
    """What an error of another library says first, for a message of ours; its type where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
