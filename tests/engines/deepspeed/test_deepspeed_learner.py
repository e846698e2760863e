"""DeepSpeed against the torch learner: the same update on one and on two ranks, at every stage, and after a restart."""

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # it looks for one when it is imported
pytest.importorskip("deepspeed", reason="needs the deepspeed extra")

from deepspeed.accelerator import get_accelerator, set_accelerator
from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

from hacpo_core.config import DeepspeedConfig, EngineConfig, OptimizerConfig
from hacpo_core.engines.deepspeed.learner import DeepspeedLearner, deal
from hacpo_core.engines.learning.learner import BaseLearner
from hacpo_core.engines.learning.torch_learner import TorchLearner
from hacpo_core.engines.passes.layouts import micro_batches
from hacpo_core.errors import EngineError
from tests.engines.ranks import on_ranks
from tests.engines.small import scored, small_model
from tests.engines.training import GRPO, HACPO, LINEAR, Seen, optimizer_tensors, requests, rows_of, run, weights

pytestmark = [pytest.mark.deepspeed, pytest.mark.system]
STAGES = (1, 2)
TOLERANCE = 1e-5
ADAM = {"learning_rate": 1e-3, "warmup_updates": 3, "schedule": "cosine", "max_grad_norm": 0.5}


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds of a learner."""

    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    num_updates: int


@dataclass(frozen=True)
class Job:
    """A learner and its updates, one for each seed of rows, two a step; stage None is the torch learner."""

    stage: int | None
    seeds: Sequence[int] = (0, 1)
    optimizer: Mapping[str, Any] = field(default_factory=lambda: ADAM)
    dtype: str = "float32"
    family: str = "qwen3"
    method: str = "hacpo"
    tokens: int = 12  # of a micro-batch: three passes on one of two ranks, two on the other
    offloads: bool = False
    checkpoints: bool | int = False
    skips_all: bool = False
    num_rows: int = 8
    has_reference: bool = False
    objective: Mapping[str, Any] = field(default_factory=dict)
    bucket: int | None = None  # elements that DeepSpeed reduces at once
    start: Saved | None = None


@dataclass(frozen=True)
class Trained:
    """What is left of a job."""

    stage: int | None
    weights: Tensor
    saved: Saved
    outcome: Seen
    digest: str
    scores: list[tuple[float, ...]]


def learner_of(job: Job) -> BaseLearner:
    model = small_model(job.family, num_layers=2).to(getattr(torch, job.dtype))
    if job.start is not None:
        model = small_model(job.family, num_layers=2, seed=9).to(getattr(torch, job.dtype))
        model.load_state_dict(job.start.weights)
    deepspeed = DeepspeedConfig(stage=job.stage or 2, offload_optimizer=job.offloads)
    engine = EngineConfig(
        micro_batch_tokens=job.tokens,
        dtype=job.dtype,
        gradient_checkpointing=job.checkpoints,
        learner="torch" if job.stage is None else "deepspeed",
        deepspeed=deepspeed,
    )
    learner = (TorchLearner if job.stage is None else DeepspeedLearner)(
        model,
        optimizer=OptimizerConfig(**job.optimizer),
        engine=engine,
        temperature=1.0,
        total_updates=20,
        reference=small_model(job.family, num_layers=2, seed=1) if job.has_reference else None,
    )
    if job.start is not None:
        learner.load_optimizer_tensors(job.start.optimizer, num_updates=job.start.num_updates)
    return learner


def train(job: Job) -> Trained:
    with pytest.MonkeyPatch.context() as patch:
        if job.bucket is not None:
            patch.setattr("hacpo_core.engines.deepspeed.settings.MAX_BUCKET", job.bucket)
        return trained_by(learner_of(job), job)


def trained_by(learner: BaseLearner, job: Job) -> Trained:
    kl_coef = 0.1 if job.has_reference else 0.0
    method = replace(GRPO if job.method == "grpo" else HACPO, kl_coef=kl_coef, **job.objective)
    source = small_model(job.family, num_layers=2)
    rows = [
        rows_of(num_cross=0 if job.method == "grpo" else 3, seed=seed, model=source)[: job.num_rows]
        for seed in job.seeds
    ]
    if job.skips_all:
        rows = [[replace(row, advantage=0.0) for row in batch] for batch in rows]
    steps = [run(learner, rows[start : start + 2], method) for start in range(0, len(rows), 2)]
    scores = scored(learner, requests())
    state = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    optimizer = {name: tensor.clone() for name, tensor in optimizer_tensors(learner).items()}
    return Trained(
        stage=job.stage,
        weights=weights(learner.model),
        saved=Saved(state, optimizer, learner.num_updates),
        outcome=Seen(
            tuple(minibatch for step in steps for minibatch in step.minibatches),
            tuple(row for step in steps for row in step.rows),
        ),
        digest=learner.fingerprint().digest,
        scores=scores,
    )


def train_on(num_ranks: int, job: Job) -> list[Trained]:
    return on_ranks(num_ranks, train, job) if num_ranks > 1 else [train(job)]


def assert_same_training(found: Trained, expected: Trained, *, tolerance: float = TOLERANCE) -> None:
    """Weights, optimizer, outcomes of updates and rows, and scores."""
    assert (found.weights - expected.weights).abs().max() <= tolerance
    assert found.saved.num_updates == expected.saved.num_updates
    assert found.saved.optimizer.keys() == expected.saved.optimizer.keys()
    for name, tensor in expected.saved.optimizer.items():
        assert found.saved.optimizer[name].dtype == tensor.dtype
        torch.testing.assert_close(found.saved.optimizer[name], tensor, rtol=0.0, atol=tolerance)
    for ours, theirs in zip(found.outcome.minibatches, expected.outcome.minibatches, strict=True):
        assert vars_of(ours) == pytest.approx(vars_of(theirs), rel=1e-5, abs=tolerance)
    assert [(r.update, r.index, r.source) for r in found.outcome.rows] == [
        (r.update, r.index, r.source) for r in expected.outcome.rows
    ]
    for row, other in zip(found.outcome.rows, expected.outcome.rows, strict=True):
        assert vars_of(row) == pytest.approx(vars_of(other), rel=1e-5, abs=tolerance)
    for logprobs, others in zip(found.scores, expected.scores, strict=True):
        assert logprobs == pytest.approx(others, abs=10 * tolerance)


def vars_of(outcome: Any) -> dict[str, float]:
    values = {field.name: getattr(outcome, field.name) for field in fields(outcome)}
    return {name: float(value) for name, value in values.items() if value is not None}


def test_deepspeed_that_was_imported_for_a_gpu_trains_a_model_on_the_cpu() -> None:
    expected = get_accelerator()
    set_accelerator(CUDA_Accelerator())
    try:
        assert train(Job(3, seeds=(0,))).digest.startswith("sums128:")
        assert get_accelerator().device_name() == "cpu"
    finally:
        set_accelerator(expected)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_updates_are_those_of_one_process(num_ranks: int, stage: int) -> None:
    expected = train(Job(None))
    ranks = train_on(num_ranks, Job(stage))
    for found in ranks:
        assert_same_training(found, expected)
        assert found.digest == ranks[0].digest
        assert found.outcome == ranks[0].outcome
        assert found.scores == ranks[0].scores
    assert (expected.weights - weights(small_model(num_layers=2))).abs().max() > 1e-3
    assert expected.outcome.minibatches[0].grad_norm > 2 * ADAM["max_grad_norm"]  # type: ignore[operator]
    assert {m.num_skipped for m in expected.outcome.minibatches} == {2}


@pytest.mark.parametrize(("stage", "offloads"), [(1, True), (2, False), (2, True)])
def test_parameters_above_the_bucket_are_trained_as_well(stage: int, offloads: bool) -> None:
    largest = max(parameter.numel() for parameter in small_model(num_layers=2).parameters())
    expected, bucket = train(Job(None)), largest // 3
    assert bucket > 100, "most parameters are below it"
    for found in train_on(2, Job(stage, offloads=offloads, bucket=bucket)):
        assert_same_training(found, expected)


@pytest.mark.parametrize(("family", "stage"), [("llama", 2), ("gpt_neox", 1)])
def test_gradient_of_two_ranks_is_that_of_one_process(family: str, stage: int) -> None:
    expected = train(Job(None, seeds=(0,), family=family, method="grpo", has_reference=True, optimizer=LINEAR))
    job = Job(stage, seeds=(0,), family=family, method="grpo", has_reference=True, optimizer=LINEAR)
    for found in train_on(2, job):
        assert_same_training(found, expected)
    before = weights(small_model(family, num_layers=2))
    # LINEAR's step is the gradient: had DeepSpeed's average over two ranks been kept, half of it would be missing
    assert ((expected.weights - before) / 2).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("stage", STAGES)
def test_entropy_terms_of_two_ranks_are_those_of_one_process(stage: int) -> None:
    terms = {"entropy_coef": 0.1}
    plain = train(Job(None, method="grpo"))
    expected = train(Job(None, method="grpo", objective=terms))
    assert (expected.weights - plain.weights).abs().max() > 100 * TOLERANCE
    for found in train_on(2, Job(stage, method="grpo", objective=terms)):
        assert_same_training(found, expected)


def train_without_the_factor(job: Job) -> Trained:
    learner = learner_of(job)
    backward = learner.backward
    learner.backward = lambda loss: backward(loss / 2)  # type: ignore[method-assign]
    return trained_by(learner, job)


def test_forgetting_the_number_of_ranks_would_be_seen() -> None:
    expected = train(Job(None, seeds=(0,), optimizer=LINEAR))
    found = on_ranks(2, train_without_the_factor, Job(2, seeds=(0,), optimizer=LINEAR))[0]
    halved = found.outcome.minibatches[0].grad_norm / expected.outcome.minibatches[0].grad_norm
    assert halved == pytest.approx(0.5, rel=1e-5)
    with pytest.raises(AssertionError):
        assert_same_training(found, expected)


@pytest.mark.parametrize("stage", STAGES)
def test_update_without_any_advantage_decays_weights_and_moments(stage: int) -> None:
    options = {"learning_rate": 0.1, "weight_decay": 0.5}
    expected = train(Job(None, skips_all=True, optimizer=options))
    for found in train_on(2 if stage == 2 else 1, Job(stage, skips_all=True, optimizer=options)):
        assert_same_training(found, expected)
        assert [m.num_trained_tokens for m in found.outcome.minibatches] == [0, 0]
    torch.testing.assert_close(expected.weights, weights(small_model(num_layers=2)) * 0.95**2)


@pytest.mark.parametrize("stage", STAGES)
def test_bf16_model_has_fp32_masters_that_are_saved(stage: int) -> None:
    """One rank adds up the same bf16 gradients; two add them up in another order, so only they are compared."""
    job = Job(stage, dtype="bfloat16", optimizer={"learning_rate": 1e-5, "weight_decay": 0.5})
    expected, found = train(replace(job, stage=None)), train(job)
    assert_same_training(found, expected)
    moved = found.saved.optimizer["master.model.embed_tokens.weight"]
    assert not torch.equal(moved, moved.bfloat16().float())
    ranks = on_ranks(2, train, job)
    assert ranks[0].digest == ranks[1].digest
    resumed = on_ranks(2, train, replace(job, seeds=(), start=ranks[0].saved))
    assert [rank.digest for rank in resumed] == [ranks[0].digest] * 2
    assert train(replace(job, stage=None, seeds=(), start=ranks[0].saved)).digest == ranks[0].digest


@pytest.mark.parametrize("stage", STAGES)
def test_offloading_and_gradient_checkpointing_change_nothing(stage: int) -> None:
    expected = train(Job(None))
    assert_same_training(train(Job(stage, offloads=True)), expected)
    assert_same_training(train(Job(stage, checkpoints=True)), expected)
    assert_same_training(train(Job(stage, checkpoints=1)), expected)


def test_offloading_and_gradient_checkpointing_on_two_ranks_change_nothing() -> None:
    expected = train(Job(None))
    for stage in STAGES:
        assert_same_training(on_ranks(2, train, Job(stage, offloads=True, checkpoints=1))[1], expected)


@pytest.fixture(scope="module")
def interrupted() -> Trained:
    """Two updates on two ranks at stage 2."""
    return on_ranks(2, train, Job(2))[0]


@pytest.fixture(scope="module")
def undisturbed() -> Trained:
    """Four updates, on two ranks at stage 2."""
    return on_ranks(2, train, Job(2, seeds=(0, 1, 2, 3)))[0]


@pytest.mark.parametrize(("num_ranks", "stage"), [(2, 2), (1, 1), (1, None), (3, 2)], ids=str)
def test_checkpoint_of_two_ranks_goes_on_anywhere(
    num_ranks: int, stage: int | None, interrupted: Trained, undisturbed: Trained
) -> None:
    found = train_on(num_ranks, Job(stage, seeds=(2, 3), start=interrupted.saved))[0]
    assert (found.weights - undisturbed.weights).abs().max() <= TOLERANCE
    assert found.outcome.minibatches[-1].learning_rate == undisturbed.outcome.minibatches[-1].learning_rate
    for name, tensor in undisturbed.saved.optimizer.items():
        torch.testing.assert_close(found.saved.optimizer[name], tensor, rtol=0.0, atol=TOLERANCE)
    steps = {float(tensor) for name, tensor in found.saved.optimizer.items() if name.startswith("step.")}
    assert (steps, found.saved.num_updates) == ({4.0}, 4)
    if (num_ranks, stage) == (2, 2):  # as it was interrupted: to the bit
        assert found.digest == undisturbed.digest
        assert found.outcome.rows == undisturbed.outcome.rows[len(interrupted.outcome.rows) :]
        assert all(torch.equal(found.saved.optimizer[n], t) for n, t in undisturbed.saved.optimizer.items())


def test_rank_without_a_row_takes_part() -> None:
    """Three ranks divide no width of this model evenly."""
    expected = train(Job(None, num_rows=1))
    for stage in STAGES:
        for found in on_ranks(3, train, Job(stage, num_rows=1)):
            assert_same_training(found, expected)


def test_moments_that_were_lost_would_be_seen(interrupted: Trained, undisturbed: Trained) -> None:
    forgetful = replace(interrupted.saved, optimizer={})
    found = train(Job(2, seeds=(2, 3), start=forgetful))
    assert (found.weights - undisturbed.weights).abs().max() > 10 * TOLERANCE


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("stage", STAGES)
def test_restart_on_one_rank_is_bit_identical(stage: int, dtype: str) -> None:
    whole = train(Job(stage, seeds=(0, 1, 2, 3), dtype=dtype))
    first = train(Job(stage, dtype=dtype))
    second = train(Job(stage, seeds=(2, 3), dtype=dtype, start=first.saved))
    assert second.digest == whole.digest
    assert torch.equal(second.weights, whole.weights)
    assert second.outcome.minibatches == whole.outcome.minibatches[2:]


def spoilt(stage: int, advantage: float) -> list[str]:
    """An update whose gradient is not finite, because of a row of one rank alone."""
    learner = learner_of(Job(stage))
    before = learner.fingerprint().digest
    rows = rows_of()
    with pytest.raises(EngineError) as caught:
        run(learner, [[replace(rows[0], advantage=advantage), *rows[1:]]])
    return [
        str(caught.value),
        "same" if learner.fingerprint().digest == before else "changed",
        str(learner.num_updates),
    ]


@pytest.mark.parametrize("stage", STAGES)
def test_gradient_that_is_not_finite_stops_every_rank(stage: int) -> None:
    found = [spoilt(stage, math.nan), spoilt(stage, math.inf)]
    if stage == 2:
        found += on_ranks(2, spoilt, stage, math.nan)
    for message, state, num_updates in found:
        assert message.startswith("gradient norm is ")
        assert message.endswith(" at update 0, expected a finite one; lower optimizer.learning_rate")
        assert (state, num_updates) == ("same", "0")


def test_optimizer_state_of_another_model_is_refused() -> None:
    learner = learner_of(Job(2))
    with pytest.raises(EngineError, match=r"no\.such\.weight.*use its own checkpoint"):
        learner.load_optimizer_tensors({"exp_avg.no.such.weight": torch.zeros(1)}, num_updates=1)


def test_ranks_of_these_tests_would_make_unequal_numbers_of_passes() -> None:
    lengths = [len(row.prompt_ids) + len(row.response_ids) for row in rows_of() if row.advantage != 0.0]
    shares = [[lengths[position] for position in share] for share in deal(lengths, num_ranks=2)]
    assert [len(micro_batches(share, max_tokens=Job(2).tokens)) for share in shares] == [3, 2]


def test_rows_are_dealt_by_their_tokens() -> None:
    assert deal([9, 5, 4, 1], num_ranks=2) == [[0, 3], [1, 2]]
    assert deal([3, 3, 3], num_ranks=2) == [[0, 2], [1]]
    assert deal([], num_ranks=2) == [[], []]
    assert deal([7, 2], num_ranks=1) == [[0, 1]]


def _late_rank(late_s: float) -> str:
    """Digest of a rank whose partner loads for that long, where DeepSpeed's own groups wait for two seconds."""
    distributed_c10d.default_pg_timeout = timedelta(seconds=2)  # what a group gets that is made without one
    if dist.get_rank() == 1:
        time.sleep(late_s)
    learner = learner_of(Job(stage=2))
    found = learner.fingerprint().digest
    learner.close()
    return found


def _slow_writer(slow_s: float) -> list[float]:
    """Sums of a checkpoint's tensors, of ranks of which one writes the first for that long."""
    distributed_c10d.default_pg_timeout = timedelta(seconds=2)
    learner = learner_of(Job(stage=2))
    run(learner, [rows_of(num_cross=0, seed=0, model=small_model(num_layers=2))], GRPO)
    sums = []
    for number, part in enumerate(learner.optimizer_parts()):
        sums.append(float(part.read().double().sum()))
        if number == 0 and dist.get_rank() == 0:
            time.sleep(slow_s)
    learner.close()
    return sums


def test_ranks_wait_for_one_that_writes_for_longer_than_deepspeeds_own_groups_wait() -> None:
    one, other = on_ranks(2, _slow_writer, 5.0)
    assert one == other and len(one) > 3


def test_rank_that_loads_for_longer_than_deepspeeds_own_groups_wait_is_waited_for() -> None:
    one, other = on_ranks(2, _late_rank, 5.0)
    assert one == other
