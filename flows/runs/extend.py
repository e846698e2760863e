"""Continue a complete run to more steps, as another experiment that begins with the first one's steps."""

import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

from flows.planning.plans import Plan, contents_of, plan, save_plan
from flows.runs.opening import THREADS_FILE
from flows.runs.results import read_final
from hacpo_core.config.counts import keeps_optimizer
from hacpo_core.config.identity import experiment_id
from hacpo_core.errors import ConfigError
from hacpo_core.files import make_folder
from hacpo_core.store.lock import ExperimentLock
from hacpo_core.store.steps import REPLAYS_FILE, StepStore

_FOLDERS, _FILES = ("checkpoints", "steps"), (THREADS_FILE, REPLAYS_FILE)


def extend(shorter: Plan, num_steps: int) -> Plan:
    """Plan a run of `num_steps` steps that begins with those of a complete one; a former call's is found again.

    Files are linked, so that both runs hold them and either can be deleted. On the CPU the result has the bits of one
    run of that length; the former last step keeps its evaluation on `evaluate.final`.

    Raises:
        ConfigError: the run cannot be extended.
        HacpoError: a model or a data file cannot be used, or the disk is full.
    """
    why = why_not_extended(shorter, num_steps)
    if why is not None:
        raise ConfigError(f"{shorter.id}: {why}")
    longer = plan(replace(shorter.config, train=replace(shorter.config.train, num_steps=num_steps)))
    with ExperimentLock(longer.root):
        num_complete = StepStore(longer.root).num_complete()
        if (longer.root / "steps").is_dir() and num_complete < shorter.config.train.num_steps:
            raise ConfigError(
                f"{longer.id} has steps of its own, up to {num_complete}; go on with `hacpo resume {longer.id}`, or "
                f"delete {longer.root} and try again"
            )
        for name in _FOLDERS:
            fill = partial(shutil.copytree, shorter.root / name, copy_function=_link, dirs_exist_ok=True)
            make_folder(longer.root / name, fill)
        for name in _FILES:
            if (shorter.root / name).is_file() and not (longer.root / name).exists():
                _link(shorter.root / name, longer.root / name)
        save_plan(longer)
    return longer


def why_not_extended(shorter: Plan, num_steps: int) -> str | None:
    """Why a run cannot be continued to so many steps; None if it can."""
    config = shorter.config
    anew = f"train the whole length anew, `hacpo train` with train.num_steps={num_steps}"
    if num_steps <= config.train.num_steps:
        return f"--steps: got {num_steps}, expected more than its {config.train.num_steps}"
    if read_final(shorter.root) is None:
        return "is not complete; finish it first, `hacpo resume`"
    if config.train.stop.metric is not None:
        return f"train.stop ends it by its accuracies, whatever its number of steps; {anew} and train.stop.metric=null"
    if config.optimizer.schedule != "constant":
        return (
            f"its learning rates depend on the number of steps (optimizer.schedule={config.optimizer.schedule}), so a "
            f"longer run differs from the first step on; {anew}"
        )
    if not keeps_optimizer(config):
        return f"its optimizer's states went when it was complete; {anew} and checkpoint.keep_optimizer=true"
    if experiment_id(config, contents_of(config)) != shorter.id:
        return f"its models, data or code changed since, or it is of another version of hacpo; {anew}"
    return None


def _link(source: str | Path, target: str | Path) -> None:
    """Another name for a file, none of which is ever changed in place; a copy on a file system without links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
