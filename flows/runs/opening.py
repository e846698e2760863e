"""Load everything that a planned experiment needs to run: models, data, verifier, store."""

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from flows.planning.disk import check_space
from flows.planning.memory import folder_shape
from flows.planning.plans import Plan, check_contents, initial_models, load_benchmarks
from flows.runs.verifier import check_golds, verifier_pool
from flows.service.gpu_locks import gpu_locks
from hacpo_core.config import AUTO, ExperimentConfig
from hacpo_core.config.counts import longest_sequence, train_set_counts
from hacpo_core.config.problems import SHIPPED_REWARDS
from hacpo_core.config.threads import num_threads, usable_cores
from hacpo_core.data.benchmarks import Benchmark
from hacpo_core.data.training import load_training
from hacpo_core.engines.learning.allocator import use_expandable_segments
from hacpo_core.engines.models.loading import check_device, check_lengths
from hacpo_core.errors import DataError, StoreError, first_line
from hacpo_core.evaluation.prompts import check_prompts
from hacpo_core.experiment import Experiment
from hacpo_core.files import read_json, write_json
from hacpo_core.placement.agent_tokenizer import AgentTokenizer
from hacpo_core.placement.base import Placement
from hacpo_core.placement.checkpoints import Checkpoint, checkpoint_steps, latest_checkpoint
from hacpo_core.records import Problem, WarmUpProgress
from hacpo_core.store.ledger import Ledger
from hacpo_core.store.lock import ExperimentLock
from hacpo_core.store.steps import StepStore
from hacpo_core.verify.pool import VerifierPool
from hacpo_core.verify.rewards import RewardFunction, Rewards, UserReward, VerifierReward

_log = logging.getLogger(__name__)
THREADS_FILE = "threads.json"
"""number of threads with which an experiment of `engine.num_threads: auto` started"""


@contextmanager
def open_experiment(
    plan: Plan, *, progress: Mapping[str, WarmUpProgress] | None = None, has_lock: bool = False
) -> Iterator[tuple[Experiment, dict[str, Benchmark]]]:
    """Lock the experiment's folder, load everything, and yield the experiment with its benchmarks by name.

    Args:
        plan: what to open.
        progress: callback per agent, called during a warm-up.
        has_lock: whether the caller holds the experiment's lock.

    Raises:
        HacpoError: another process holds the lock, or a device, a model or a data file cannot be used.
    """
    config = plan.config
    check_contents(plan)
    with nullcontext() if has_lock else ExperimentLock(plan.root), gpu_locks(config):
        config = with_threads(config, plan.root)
        if config.placement.kind == "local":
            use_expandable_segments(config.engine)  # before a warm-up starts CUDA
            check_device(config.engine.device)
        _remove_leftovers(plan.root)
        models, prompt = initial_models(config), config.rollout.max_prompt_tokens
        for name, model in models.items():  # before any warm-up
            check_lengths(model.make_base(), prompt=prompt, response=longest_sequence(config) - prompt, agent=name)
        initial = {name: model.make(progress=(progress or {}).get(name)) for name, model in models.items()}
        check_space(config, {name: folder_shape(folder) for name, folder in initial.items()}, plan.root)
        with closing(placement_of(config, plan.root, initial)) as placement:
            store = StepStore(plan.root)
            checkpoint = _open(placement, store)
            tokenizers = list(placement.tokenizers.values())
            train_sets = _train_sets(config, tokenizers)
            benchmarks = load_benchmarks(config)
            for tokenizer in tokenizers:
                check_prompts(list(benchmarks.values()), tokenizer, config, folder=initial[tokenizer.name])
            with verifier_pool(config, config.verifier.equality) as pool, rewards_of(config, pool) as rewards:
                experiment = Experiment(
                    id=plan.id,
                    config=plan.config,
                    train_sets=train_sets,
                    placement=placement,
                    ledger=Ledger(store, list(initial)),
                    verifier=pool,
                    rewards=rewards,
                    opened_at=checkpoint,
                )
                check_golds(plan.root, train_sets | {name: b.problems for name, b in benchmarks.items()}, pool)
                with _synced(experiment.ledger.store):
                    yield experiment, benchmarks


def _remove_leftovers(root: Path) -> None:
    for leftover in root.rglob(".*.tmp"):
        _log.info("removing %s, left by a process that was killed", leftover)
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def with_threads(config: ExperimentConfig, root: Path) -> ExperimentConfig:
    """The configuration with a number of threads in place of `engine.num_threads: auto`.

    It is the number with which the experiment started, so that a resumed run has the same bits whatever else runs now:
    all cores at most, since another machine may have fewer.
    """
    if config.engine.num_threads != AUTO:
        return config
    number, file = num_threads(config), root / THREADS_FILE
    if file.is_file():
        try:
            started = int(read_json(file)["num_threads"])
            return replace(config, engine=replace(config.engine, num_threads=min(started, usable_cores())))
        except (StoreError, KeyError, TypeError, ValueError) as error:
            _log.warning("%s is damaged (%s); training goes on with %d threads", file, first_line(error), number)
    write_json(file, {"num_threads": number})
    return replace(config, engine=replace(config.engine, num_threads=number))


def _open(placement: Placement, store: StepStore) -> Checkpoint | None:
    """Load the agents from the newest checkpoint before which no step is missing: a missing step is trained again."""
    num_complete, steps = store.num_complete(), checkpoint_steps(store.root)
    checkpoint = latest_checkpoint(store.root, end=num_complete if num_complete in steps[:1] else None)
    if checkpoint is not None and checkpoint.step > num_complete:
        _log.warning(
            "%s: step %d is missing or corrupt, before the checkpoint of step %d; training begins before it",
            *(store.root.name, num_complete + 1, checkpoint.step),
        )
        checkpoint = latest_checkpoint(store.root, at_most=num_complete)
    placement.open(checkpoint)
    return checkpoint


def rewards_of(config: ExperimentConfig, pool: VerifierPool) -> Rewards:
    """The configured reward functions; evaluations use the same pool."""

    def function(name: str) -> RewardFunction:
        if ":" in name:
            return UserReward(name, timeout_s=config.reward.timeout_s, memory_mb=config.reward.memory_mb)
        equality = SHIPPED_REWARDS[name] or config.verifier.equality
        if equality == config.verifier.equality:
            return VerifierReward(pool)
        return VerifierReward(verifier_pool(config, equality), owns_pool=True)

    names = config.reward.functions
    return Rewards([function(name) for name in names], config.reward.weights or [1.0] * len(names))


@contextmanager
def _synced(store: StepStore) -> Iterator[None]:
    """Flush everything committed in the block to disk at its end."""
    try:
        yield
    except BaseException:
        try:
            store.sync()
        except StoreError as consequence:
            _log.warning("%s", consequence)
        raise
    store.sync()


def placement_of(config: ExperimentConfig, root: Path, initial: Mapping[str, Path]) -> Placement:
    """The configured placement of the agents; nothing is loaded yet."""
    if config.placement.kind == "local":
        return Placement(config, root=root, initial=initial)
    from hacpo_core.placement.ray_actors import RayPlacement  # an extra; the import takes 0.3 s

    return RayPlacement(config, root=root, initial=initial)


def _train_sets(config: ExperimentConfig, tokenizers: Sequence[AgentTokenizer]) -> dict[str, list[Problem]]:
    """The training problems whose prompts are short enough for every agent, by the name of their set."""
    min_problems = train_set_counts(config)
    return {
        name: _short_enough(
            name, problems, tokenizers, config.rollout.max_prompt_tokens, min_problems=min_problems[name]
        )
        for name, problems in load_training(config.data).sets.items()
    }


def _short_enough(
    name: str, problems: list[Problem], tokenizers: Sequence[AgentTokenizer], limit: int, *, min_problems: int
) -> list[Problem]:
    """The problems of a set whose prompt has at most `limit` tokens for every agent; logs how many are dropped."""
    fitting_problems = problems
    for tokenizer in tokenizers:
        tokenizer.render(fitting_problems)
        fitting_problems = [problem for problem in fitting_problems if len(tokenizer.prompt_ids(problem)) <= limit]
    if len(fitting_problems) < len(problems):
        _log.warning(
            "dropped %d problems of %s with prompts over %d tokens", len(problems) - len(fitting_problems), name, limit
        )
    if len(fitting_problems) < min_problems:
        raise DataError(
            f"only {len(fitting_problems)} of {len(problems)} training problems of {name} have prompts of at most "
            f"{limit} tokens, but a step needs {min_problems}; raise rollout.max_prompt_tokens"
        )
    return fitting_problems
