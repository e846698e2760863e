"""The sum of many passes' gradients."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from hacpo_core.config import DeepspeedConfig, EngineConfig, OptimizerConfig
from hacpo_core.engines.learning.learner import BaseLearner
from hacpo_core.engines.learning.torch_learner import TorchLearner
from hacpo_core.methods.objectives.sequence_clip import SequenceClip
from tests.engines.small import VOCAB_SIZE, Row, minibatch, own_row, small_model
from tests.engines.training import LINEAR, optimizer_tensors

pytestmark = pytest.mark.system

NUM_PASSES = 192
BF16 = EngineConfig(dtype="bfloat16", micro_batch_tokens=1)  # every row a pass of its own
WIDE = SequenceClip(sequence_low=0.9, sequence_high=10.0)


def rows() -> list[Row]:
    random = torch.Generator().manual_seed(3)
    found = []
    for i in range(NUM_PASSES):
        ids = torch.randint(VOCAB_SIZE, (9,), generator=random).tolist()
        found.append(own_row(tuple(ids[:3]), tuple(ids[3:]), 1.0 + i % 3, old_logprobs=(-2.0,) * 6, index=i))
    return found


def learner_of(engine: EngineConfig) -> BaseLearner:
    from hacpo_core.engines.deepspeed.learner import DeepspeedLearner

    kind: Any = DeepspeedLearner if engine.learner == "deepspeed" else TorchLearner
    model = small_model(num_layers=2).to(torch.bfloat16)
    learner: BaseLearner = kind(
        model, optimizer=OptimizerConfig(**LINEAR), engine=engine, temperature=1.0, total_updates=4
    )
    return learner


def step_of(engine: EngineConfig) -> torch.Tensor:
    """Change of the fp32 masters by one update, which is proportional to the gradient."""
    learner = learner_of(engine)
    before = {name: p.detach().double() for name, p in learner.model.named_parameters()}
    learner.update([minibatch(rows(), WIDE)], WIDE)
    masters = {key: value for key, value in optimizer_tensors(learner).items() if key.startswith("master.")}
    change = [masters[f"master.{name}"].double() - before[name] for name in sorted(before)]
    learner.close()
    return torch.cat([part.flatten() for part in change])


@pytest.fixture(scope="module")
def exact() -> torch.Tensor:
    """The same change from the float64 sum of the very gradients that the passes give in bfloat16."""
    learner = learner_of(BF16)
    sums = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in learner.model.named_parameters()}

    def add(loss: torch.Tensor) -> None:
        learner.model.zero_grad()
        loss.backward()
        for name, parameter in learner.model.named_parameters():
            if parameter.grad is not None:
                sums[name] += parameter.grad.double()

    learner.backward = add  # type: ignore[method-assign]
    learner.passes(minibatch(rows(), WIDE), WIDE, 0)
    gradient = torch.cat([sums[name].flatten() for name in sorted(sums)])
    # AdamW's first step from LINEAR: rate * m / (sqrt(v) + epsilon), with m = g and v = g^2.
    return -LINEAR["learning_rate"] * gradient / (gradient.abs() + LINEAR["epsilon"])


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


def test_gradients_of_bfloat16_are_summed_in_float32(exact: torch.Tensor) -> None:
    assert error(step_of(BF16), exact) < 1e-4, "5e-3 and more if the sum were bfloat16"


@pytest.mark.deepspeed
@pytest.mark.parametrize("stage", [1, 2])
def test_deepspeed_sums_in_float32_too(exact: torch.Tensor, stage: int) -> None:
    pytest.importorskip("deepspeed", reason="needs the deepspeed extra")
    assert error(step_of(replace(BF16, learner="deepspeed", deepspeed=DeepspeedConfig(stage=stage))), exact) < 1e-4
