"""Evaluate agents on tasks of lm-eval-harness: `hacpo evaluate --with lm-eval TASK ...`. Only this file imports it.

    checkpoint ─export─▶ temporary folder ─lm_eval.simple_evaluate─▶ lm-eval/000010/<agent>.<time>.json

Results use lm-eval's own prompts, sampling and answer extraction. They are stored apart from hacpo's evaluations and
are not used in reports.
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
from flows.service.gpu_locks import gpu_locks
from hacpo_core.config import AgentConfig
from hacpo_core.engines.models.loading import check_device
from hacpo_core.errors import ConfigError, EngineError, first_line
from hacpo_core.files import write_json

NAME = "lm-eval"
"""name of the harness on the command line, and of its results folder in an experiment's folder"""


@dataclass(frozen=True, slots=True)
class HarnessOptions:
    """Options of lm-eval; None: the task's own setting."""

    tasks: Sequence[str]
    limit: int | None = None
    """problems per task; None: all"""
    num_fewshot: int | None = None
    include_path: str | None = None
    """folder with YAML files of more tasks"""
    batch_size: str = "1"
    """sequences per batch, or "auto" """
    apply_chat_template: bool = False


def check_options(options: HarnessOptions) -> None:
    """Raise a ConfigError if an option is invalid."""
    if not options.tasks:
        raise ConfigError("--with lm-eval: got no task; name some, for example gsm8k")
    if options.include_path is not None and not Path(options.include_path).is_dir():
        raise ConfigError(f"--include-path: {options.include_path} is not a folder; name one that holds YAML files")
    if not re.fullmatch(r"auto(:\d+)?|[1-9]\d*", options.batch_size):
        raise ConfigError(f"--batch-size: got {options.batch_size!r}, expected a number such as 8, or auto")


def run_harness(
    plan: Plan, options: HarnessOptions, *, agent: str | None = None, step: int | None = None
) -> list[dict[str, Any]]:
    """Evaluate agents of a checkpoint with lm-eval and save its complete output as JSON.

    Args:
        plan: of the experiment.
        options: of the harness.
        agent: evaluate only this agent; None: all.
        step: training step of the checkpoint; None: the last checkpoint.

    Returns:
        rows of a table: agent, step, task, metric, filter, num_fewshot, value, stderr.

    Raises:
        ConfigError: an invalid option, an unknown agent, step or task, or a device that this machine lacks.
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
    with gpu_locks(plan.config):
        for name in names:
            with tempfile.TemporaryDirectory(prefix="hacpo-lm-eval-") as folder:
                model = export_agent(plan, name, Path(folder) / name, step=step)
                output = _evaluate(plan, model, options, manager)
            time = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
            subject = {"experiment": plan.id, "agent": name, "step": model.step, "weights": model.digest}
            path = plan.root / NAME / f"{model.step:06d}" / f"{name}.{time}.json"
            write_json(path, {**subject, "options": asdict(options), **output})
            rows += harness_rows(model, output)
    return rows


def _task_manager(options: HarnessOptions) -> Any:
    """lm-eval's index of tasks.

    Raises:
        EngineError: lm-eval is not installed.
        ConfigError: a task is unknown.
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
            f"--with lm-eval: no task is named {', '.join(unknown)}; `lm-eval ls tasks` lists the tasks, and "
            "--include-path adds a folder with more"
        )
    return manager


def _evaluate(plan: Plan, model: ExportedModel, options: HarnessOptions, manager: Any) -> dict[str, Any]:
    """lm-eval's output as a JSON-serialisable value."""
    from lm_eval import simple_evaluate
    from lm_eval.utils import handle_non_serializable

    device = plan.config.engine.device
    try:
        output = simple_evaluate(
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
            f"{first_line(error)}; check the task's data and the options"
        ) from error
    value: dict[str, Any] = json.loads(json.dumps(output, default=handle_non_serializable))
    return value


def _model_arguments(agent: AgentConfig, folder: Path) -> dict[str, Any]:
    arguments: dict[str, Any] = {"pretrained": str(folder), "trust_remote_code": False}
    template_arguments = {key: value for key, value in agent.chat_template_kwargs.items() if value is not None}
    return {**arguments, "chat_template_args": template_arguments} if template_arguments else arguments


def harness_rows(model: ExportedModel, output: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One row per task and metric; lm-eval names a metric "acc,none", its standard error "acc_stderr,none"."""
    for task, figures in output["results"].items():
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
                "num_fewshot": output["n-shot"].get(task),
                "value": value,
                "stderr": error if isinstance(error, float) else None,
            }
