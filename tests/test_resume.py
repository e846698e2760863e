"""A run killed at any moment and resumed is, to the bit, the run that was never killed."""

import errno
import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flows.planning.plans import Plan, find_plan
from flows.runs.evaluate import run_evaluation
from flows.runs.experiment import run_experiment
from flows.runs.tracking import sync
from hacpo_core.errors import LockedError, ReplayError, StoreError
from hacpo_core.evaluation.results import results
from hacpo_core.files import read_json
from hacpo_core.methods.base import State
from hacpo_core.methods.build import History
from hacpo_core.methods.builders.shuffled import Shuffled
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.placement import checkpoints
from hacpo_core.placement.checkpoints import save_checkpoint
from hacpo_core.records import RowKey
from hacpo_core.store.lock import ExperimentLock
from hacpo_core.store.steps import REPLAYS_FILE, StepStore
from tests.experiments_outcome import finish, mlflow_points, outcome
from tests.store.test_steps import noted_syncs

pytestmark = pytest.mark.slow

Outcome = Callable[[Plan], dict[str, Any]]


def count_and_kill(kill_at: tuple[str, int] | None, counts: dict[str, int]) -> None:
    """Make every interesting place of the code count its calls, and die by SIGKILL at one of them."""
    import flows.runs.mlflow_store as tracking
    import flows.runs.tracking as sending
    import hacpo_core.files as files
    import hacpo_core.store.steps as store
    from hacpo_core.engines.learning.torch_learner import TorchLearner
    from hacpo_core.engines.sampling.transformers_sampler import TransformersSampler

    def passing(name: str) -> None:
        counts[name] = counts.get(name, 0) + 1
        if kill_at == (name, counts[name]):
            os.kill(os.getpid(), signal.SIGKILL)

    def wrap(owner: Any, attribute: str, name: str) -> None:
        inner = getattr(owner, attribute)

        def outer(*args: Any, **kwargs: Any) -> Any:
            passing(f"before {name}")
            result = inner(*args, **kwargs)
            passing(f"after {name}")
            return result

        setattr(owner, attribute, outer)

    wrap(DirectRunner, "start", "phase")
    wrap(files, "write_atomically", "write")
    wrap(store, "write_atomically", "commit's write")
    wrap(Path, "rename", "rename")
    wrap(store.StepStore, "commit", "commit")
    wrap(TorchLearner, "optimizer_step", "optimizer step")
    wrap(TorchLearner, "logprobs", "old log-probabilities")
    wrap(TransformersSampler, "prefill", "sampling")
    wrap(checkpoints, "write_tensors", "checkpoint")
    wrap(tracking.MlflowClient, "log_batch", "tracking")
    sending.SEND_EVERY_S = 1e6  # all steps but the first wait for the end: the most that a kill can take


def train(root: str, runs_dir: str, kill_at: tuple[str, int] | None, connection: Any) -> None:
    """Body of the training process."""
    counts: dict[str, int] = {}
    count_and_kill(kill_at, counts)
    run_experiment(find_plan(Path(runs_dir), Path(root).name), DirectRunner())
    connection.send(counts)


def run_process(plan: Plan, kill_at: tuple[str, int] | None = None) -> tuple[int, dict[str, int]]:
    """Train in a process of its own; returns its exit code and the counts of its places."""
    context = multiprocessing.get_context("forkserver")
    preloaded = ["flows.runs.results", "flows.runs.mlflow_store", "mlflow.store.tracking.sqlalchemy_store"]
    context.set_forkserver_preload(["flows.runs.experiment", "tests.test_resume", *preloaded])
    receiver, sender = context.Pipe(duplex=False)
    arguments = (str(plan.root), plan.config.runtime.runs_dir, kill_at, sender)
    process = context.Process(target=train, args=arguments)
    process.start()
    sender.close()
    process.join(timeout=400)
    assert process.exitcode is not None, "the training process hangs"
    counts = receiver.recv() if process.exitcode == 0 else {}
    return process.exitcode, counts


def kill_points(counts: dict[str, int], num_kills: int) -> list[tuple[str, int]]:
    """Places to die at, drawn by seed: of as many kinds as there are kills, the rest anywhere."""
    rng = random.Random(20261121)
    places = [(name, rng.randint(1, count)) for name, count in sorted(counts.items())]
    if num_kills <= len(places):
        return rng.sample(places, num_kills)
    population = [(name, n) for name, count in sorted(counts.items()) for n in range(1, count + 1)]
    places += rng.sample(sorted(set(population) - set(places)), num_kills - len(places))
    return places


@pytest.mark.system
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("num_kills", [4, pytest.param(24, marks=pytest.mark.soak)])
def test_run_killed_anywhere_and_resumed_equals_undisturbed_run_to_the_bit(
    num_kills: int, small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    tracked = ("tracking.enabled=true",)
    reference = small_plan("hacpo", *tracked, runs_dir=tmp_path / "reference")
    exit_code, counts = run_process(reference)
    assert exit_code == 0
    expected, points = outcome(reference), mlflow_points(tmp_path / "reference" / "mlflow.db")
    assert set(points.values()) == {1}
    places = kill_points(counts, num_kills)
    assert len(places) == num_kills
    for position, place in enumerate(places):
        runs_dir = tmp_path / f"killed-{position}"
        killed = small_plan("hacpo", *tracked, runs_dir=runs_dir)
        exit_code, _ = run_process(killed, place)
        assert exit_code == -signal.SIGKILL, place
        exit_code, _ = run_process(killed)
        assert exit_code == 0, place
        assert outcome(killed) == expected, place
        sync(runs_dir, [killed.id])  # as the next command does, if the kill came after the result
        assert mlflow_points(runs_dir / "mlflow.db") == points, place
    print(f"\n{len(places)} of {len(places)} kills resumed to the same bits:", *places, sep="\n  ")


class _Stopped(Exception):
    """Raised by a runner instead of running a phase."""


class _Stopping(DirectRunner):
    def __init__(self, kind: str, step: int) -> None:
        self._at = kind, step

    def start(self, phase: Any, work: Callable[[], None], *, after: Any = ()) -> Any:
        if (phase.kind, phase.step) == self._at:
            raise _Stopped
        return super().start(phase, work, after=after)


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def break_off(plan: Plan, kind: str, step: int) -> None:
    with pytest.raises(_Stopped):
        run_experiment(plan, _Stopping(kind, step))


def test_damaged_rollouts_are_sampled_again_and_what_was_made_from_them(
    small_plan: Callable[..., Plan], undisturbed: Outcome, tmp_path: Path
) -> None:
    expected = undisturbed(small_plan("hacpo", runs_dir=tmp_path / "reference"))
    torn = small_plan("hacpo")
    break_off(torn, "update", 3)
    cut_in_half(torn.root / "steps" / "000003" / "rollouts.qwen.parquet")
    assert finish(torn) == expected
    phases = StepStore(torn.root).committed(3)
    after = phases[phases.index("rollout.qwen") :]
    assert {"verify.qwen", "advantage"} <= set(after), "made from rollouts that need not be the same"
    assert "rollout.llama" not in after, "nothing that was paid for is sampled again"


def test_damaged_files_are_made_again_to_the_same_bits(
    small_plan: Callable[..., Plan], undisturbed: Outcome, tmp_path: Path
) -> None:
    expected = undisturbed(small_plan("hacpo", runs_dir=tmp_path / "reference"))
    damages = {  # files of steps or checkpoints, and the step in whose rollout the run ends
        "checkpoint": (("checkpoints/000002/llama/model.safetensors",), ()),
        "advantages and manifest": (("steps/000002/advantages.json", "steps/000003/manifest.json"), ()),
        "evaluation": (("steps/000002/evaluate.dev.qwen.json",), ("checkpoint.every=4",)),
    }
    wrong = []
    for number, (name, (files, words)) in enumerate(damages.items()):
        broken = small_plan("hacpo", *words, runs_dir=tmp_path / f"broken-{number}")
        break_off(broken, "rollout", 4)
        for file in files:
            cut_in_half(broken.root / file)
        if finish(broken) != expected:
            wrong.append(name)
    assert wrong == []


def test_checkpoint_never_survives_a_power_cut_that_its_steps_do_not(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, synced, late = small_plan("gspo", "evaluate.final=[]"), noted_syncs(monkeypatch), []

    def saved(root: Path, *args: Any, **options: Any) -> None:
        files = {path for path in (root / "steps").rglob("*") if path.is_file()}
        assert files
        late.extend(files - synced)
        save_checkpoint(root, *args, **options)

    monkeypatch.setattr("hacpo_core.phases.checkpoint.save_checkpoint", saved)
    finish(plan)
    assert late == []


def test_scores_of_the_table_that_are_torn_later_are_made_again(small_plan: Callable[..., Plan]) -> None:
    plan = small_plan("hacpo")
    expected = finish(plan)
    (plan.root / "result.json").unlink()  # as if killed before its end
    for name in ("000000/evaluate.dev.llama.json", "000000/evaluate.test.qwen.json", "000004/evaluate.dev.qwen.json"):
        (plan.root / "steps" / name).write_text("", encoding="utf-8")
    assert finish(plan) == expected
    assert (plan.root / "result.json").is_file()


def test_altered_evaluation_names_the_command_that_makes_it_again(small_plan: Callable[..., Plan]) -> None:
    plan = small_plan("hacpo")
    finish(plan)
    (plan.root / "steps" / "000002" / "evaluate.dev.qwen.json").write_text("", encoding="utf-8")
    with pytest.raises(StoreError, match=rf"`hacpo evaluate {plan.id} --step 2`"):
        list(results(plan.root))
    run_evaluation(plan, 2, DirectRunner())
    assert {result.step for result in results(plan.root)} == {0, 2, 4}


def with_noise(monkeypatch: pytest.MonkeyPatch, *, noise: float = 5e-4) -> None:
    """Have updates repeat themselves only nearly, as on a GPU: noise is added, in units of the rms gradient of a row.

    Of a row, not of a parameter: gradients of an embedding's rows differ by orders of magnitude, and Adam makes a full
    step of noise where it is larger than the gradient.
    """
    import hacpo_core.placement.agents as agents
    from hacpo_core.engines.learning.torch_learner import TorchLearner

    inner, setup = TorchLearner.optimizer_step, agents.this_setup

    def noisy(self: TorchLearner) -> Any:
        for parameter in self.trainable.values():
            if parameter.grad is not None:
                size = parameter.grad.square().mean(dim=-1, keepdim=True).sqrt()
                parameter.grad += noise * size * torch.randn_like(parameter.grad)
        return inner(self)

    monkeypatch.setattr(TorchLearner, "optimizer_step", noisy)
    monkeypatch.setattr(agents, "this_setup", lambda *args, **kwargs: replace(setup(*args, **kwargs), is_exact=False))


def replays_of(plan: Plan) -> list[tuple[int, str, str]]:
    return [(found["step"], found["agent"], found["kind"]) for found in read_json(plan.root / REPLAYS_FILE)]


GRADED = "reward.functions=[tests.plugins:by_turns]"
"""a reward that differs between the responses of each group, so that every step has a gradient, whatever they are"""
PAPERS_CLIP = ("method.objective.sequence_low=3e-4", "method.objective.sequence_high=4e-4")


@pytest.mark.parametrize(("noise", "words"), [(5e-4, ()), (5e-3, PAPERS_CLIP)])
def test_run_on_a_device_that_repeats_itself_nearly_resumes_and_says_so(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, noise: float, words: tuple[str, ...]
) -> None:
    with_noise(monkeypatch, noise=noise)
    plan = small_plan("hacpo", *words, GRADED)
    break_off(plan, "rollout", 4)
    finish(plan)
    assert replays_of(plan) == [(3, "qwen", "near"), (3, "llama", "near")]


def test_replay_from_other_rows_is_an_error_on_such_a_device_too(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_noise(monkeypatch)
    plan = small_plan("hacpo")
    break_off(plan, "rollout", 4)

    def rows_of_the_step_before(_: Shuffled, history: History, state: State) -> tuple[list[list[RowKey]], State]:
        keys = [k for source in history.sources for k in history.responses(history.step - 1, source).row_keys()]
        return [keys[::2], keys[1::2]], state

    monkeypatch.setattr(Shuffled, "build", rows_of_the_step_before)
    with pytest.raises(ReplayError, match=r"replay of step 3, qwen: different, .*, expected at most 0.25; the rows"):
        run_experiment(plan, DirectRunner())


@pytest.mark.parametrize(("is_noisy", "factor"), [(False, 1.001), (True, 1.5)])
def test_replay_at_another_learning_rate_stops_the_run_unless_told_to_accept(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, is_noisy: bool, factor: float
) -> None:
    from hacpo_core.engines.learning import learner

    if is_noisy:
        with_noise(monkeypatch)
    changed = small_plan("hacpo")
    break_off(changed, "rollout", 4)
    inner = learner.learning_rate
    monkeypatch.setattr(learner, "learning_rate", lambda *args, **kwargs: factor * inner(*args, **kwargs))
    with pytest.raises(ReplayError, match=r"replay of step 3, qwen: different.*accept_divergence"):
        run_experiment(changed, DirectRunner())
    accepting = small_plan("hacpo", "checkpoint.accept_divergence=true")
    assert accepting.root == changed.root
    run_experiment(accepting, DirectRunner())
    kinds = [kind for _, _, kind in replays_of(changed)]
    assert kinds == ["different"] * 3, "once refused, then accepted for both agents"


def test_second_process_on_the_same_experiment_gets_a_clear_error(small_plan: Callable[..., Plan]) -> None:
    plan = small_plan("hacpo")
    with ExperimentLock(plan.root), pytest.raises(LockedError, match=rf"written by process {os.getpid()}"):
        run_experiment(plan, DirectRunner())


def test_full_disk_is_one_clear_error_and_the_run_goes_on_after_it(
    small_plan: Callable[..., Plan], undisturbed: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = undisturbed(small_plan("hacpo", runs_dir=tmp_path / "reference"))
    plan = small_plan("hacpo")
    inner, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 40:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        inner(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match=r"disk is full; free some space, then resume|free some space"):
            run_experiment(plan, DirectRunner())
    assert not list(plan.root.rglob("*.tmp"))
    assert finish(plan) == expected


def run_with_failed_update(plan: Plan, learner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run an experiment whose 14th optimizer step fails, and whose phases are repeated once."""
    inner, calls = learner.optimizer_step, []

    def failing(self: Any) -> Any:
        calls.append(1)
        if len(calls) == 14:
            raise RuntimeError("out of memory")
        return inner(self)

    class Retrying(DirectRunner):
        def start(self, phase: Any, work: Callable[[], None], *, after: Any = ()) -> Any:
            try:
                return super().start(phase, work, after=after)
            except RuntimeError:
                return super().start(phase, work, after=after)

    monkeypatch.setattr(learner, "optimizer_step", failing)
    run_experiment(plan, Retrying())
    assert len(calls) > 14


def test_update_that_fails_midway_is_repeated_from_the_state_before_it(
    small_plan: Callable[..., Plan], undisturbed: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hacpo_core.engines.learning.torch_learner import TorchLearner

    expected = undisturbed(small_plan("hacpo", runs_dir=tmp_path / "reference"))
    plan = small_plan("hacpo")
    run_with_failed_update(plan, TorchLearner, monkeypatch)
    assert outcome(plan) == expected
