"""Agents on the tasks of lm-eval-harness: `hacpo evaluate --with lm-eval TASK ...`. Nothing but this file imports it.

    checkpoint ─export─▶ temporary folder ─lm_eval.simple_evaluate─▶ lm-eval/000010/<agent>.<time>.json

These figures are lm-eval's own: its prompts, its sampling, its way to read an answer. They are kept apart from the
step store's evaluations, and no report reads them.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.exports.export import ExportedModel, export_agent, find_model_of
from flows.planning.plans import Plan
from flows.service.slots import gpu_slots
from hacpo_core.config import AgentConfig
from hacpo_core.engines.models.loading import check_device
from hacpo_core.errors import ConfigError, EngineError, first_line
from hacpo_core.store.files import write_json

NAME = "lm-eval"
"""of the harness on the command line, and of the folder of its results in an experiment's folder"""


@dataclass(frozen=True, slots=True)
class HarnessOptions:
    """What lm-eval is asked for; None: what each task declares."""

    tasks: Sequence[str]
    limit: int | None = None
    """problems of each task; None: all"""
    num_fewshot: int | None = None
    include_path: str | None = None
    """folder with YAML files of more tasks"""
    batch_size: str = "1"
    """sequences at a time, or "auto" """
    apply_chat_template: bool = False


def check_options(options: HarnessOptions) -> None:
    """Raise a ConfigError where an option has no meaning."""
    if not options.tasks:
        raise ConfigError("--with lm-eval: got no task; name some, for example gsm8k")
    if options.include_path is not None and not Path(options.include_path).is_dir():
        raise ConfigError(f"--include-path: {options.include_path} is no folder; name one that holds YAML files")
    if not re.fullmatch(r"auto(:\d+)?|[1-9]\d*", options.batch_size):
        raise ConfigError(f"--batch-size: got {options.batch_size!r}, expected a number such as 8, or auto")


def run_harness(
    plan: Plan, options: HarnessOptions, *, agent: str | None = None, step: int | None = None
) -> list[dict[str, Any]]:
    """Evaluate agents of a checkpoint with lm-eval and keep everything that it returns as JSON.

    Args:
        plan: of the experiment.
        options: of the harness.
        agent: this one alone; None: all.
        step: training step that the checkpoint was taken after; None: the last checkpoint.

    Returns:
        rows of a table: agent, step, task, metric, filter, num_fewshot, value, stderr.

    Raises:
        ConfigError: an option, an agent, a step or a task that there is not, or this machine lacks the device.
        EngineError: lm-eval is not installed, or fails.
        StoreError: an agent cannot be exported, or the results cannot be written.
    """
    check_options(options)
    names = [agent] if agent is not None else list(plan.config.pair.agents)
    for name in names:
        find_model_of(plan, name, step=step)
    manager = _task_manager(options)
    check_device(plan.config.engine.device)
    rows: list[dict[str, Any]] = []
    with gpu_slots(plan.config):
        for name in names:
            with tempfile.TemporaryDirectory(prefix="hacpo-lm-eval-") as folder:
                model = export_agent(plan, name, Path(folder) / name, step=step)
                found = _evaluate(plan, model, options, manager)
            time = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
            asked = {"experiment": plan.id, "agent": name, "step": model.step, "weights": model.digest}
            path = plan.root / NAME / f"{model.step:06d}" / f"{name}.{time}.json"
            write_json(path, {**asked, "options": asdict(options), **found})
            rows += _rows(model, found)
    return rows


def _task_manager(options: HarnessOptions) -> Any:
    """lm-eval's index of tasks.

    Raises:
        EngineError: lm-eval is not installed.
        ConfigError: it knows no task of a name.
    """
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise EngineError(
            f"--with lm-eval: lm_eval cannot be imported ({error}); pip install 'hacpo[lm-eval]'"
        ) from error
    manager = TaskManager(include_path=options.include_path)
    unknown = [task for task in options.tasks if task not in manager.all_tasks and not Path(task).is_file()]
    if unknown:
        raise ConfigError(
            f"--with lm-eval: no task is named {', '.join(unknown)}; `lm-eval ls tasks` lists them, and --include-path "
            "names a folder with more"
        )
    return manager


def _evaluate(plan: Plan, model: ExportedModel, options: HarnessOptions, manager: Any) -> dict[str, Any]:
    """What lm-eval returns, as a JSON-able value."""
    from lm_eval import simple_evaluate
    from lm_eval.utils import handle_non_serializable

    device = plan.config.engine.device
    try:
        found = simple_evaluate(
            model="hf",
            model_args=_model_arguments(plan.config.pair.agents[model.agent], model.folder),
            tasks=list(options.tasks),
            task_manager=manager,
            num_fewshot=options.num_fewshot,
            limit=options.limit,
            batch_size=options.batch_size,
            apply_chat_template=options.apply_chat_template,
            device="cuda:0" if device == "cuda" else device,
            log_samples=False,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise EngineError(
            f"lm-eval failed for {model.agent} on {', '.join(options.tasks)}: {type(error).__name__}: "
            f"{first_line(error)}; look at the task's data and at the options"
        ) from error
    value: dict[str, Any] = json.loads(json.dumps(found, default=handle_non_serializable))
    return value


def _model_arguments(agent: AgentConfig, folder: Path) -> dict[str, Any]:
    arguments: dict[str, Any] = {"pretrained": str(folder), "trust_remote_code": agent.trust_remote_code}
    of_template = {key: value for key, value in agent.chat_template_kwargs.items() if value is not None}
    return {**arguments, "chat_template_args": of_template} if of_template else arguments


def _rows(model: ExportedModel, found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One row per task and metric; lm-eval names a metric "acc,none", its standard error "acc_stderr,none"."""
    for task, figures in found["results"].items():
        for label, value in figures.items():
            metric, comma, name = label.partition(",")
            if not comma or metric.endswith("_stderr"):
                continue
            error = figures.get(f"{metric}_stderr,{name}")
            yield {
                "agent": model.agent,
                "step": model.step,
                "task": task,
                "metric": metric,
                "filter": name,
                "num_fewshot": found["n-shot"].get(task),
                "value": value,
                "stderr": error if isinstance(error, float) else None,
            }
