"""What an update moves through host memory and between ranks: nothing that grows with its passes, except at stage 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flows.planning.compose import compose
from hacpo_core.config import DeepspeedConfig, EngineConfig, OptimizerConfig
from tests.engines.deepspeed.test_grad_dtype import WIDE, rows
from tests.engines.ranks import on_ranks
from tests.engines.small import minibatch, small_model

pytest.importorskip("deepspeed", reason="needs the deepspeed extra")
pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]


class HostCopies(TorchDispatchMode):
    """Counts bytes that are copied into or out of tensors of host memory, known by their storages."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, Any] = {}
        self.num_bytes = 0

    def add(self, tensors: Iterator[torch.Tensor]) -> None:
        for tensor in tensors:
            self.storages[tensor.untyped_storage().data_ptr()] = tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default and any(
            tensor.untyped_storage().data_ptr() in self.storages for tensor in args[:2]
        ):
            self.num_bytes += args[0].nbytes
        return func(*args, **(kwargs or {}))


def host_bytes_a_weight(engine: EngineConfig, *, num_passes: int) -> float:
    """Of one update's gradients, once AdamW's state is there."""
    import deepspeed

    from hacpo_core.engines.deepspeed.learner import DeepspeedLearner

    model = small_model(num_layers=2).to(torch.bfloat16)
    with pytest.MonkeyPatch.context() as patch:  # to get DeepSpeed's own engine
        made: list[Any] = []
        initialize = deepspeed.initialize
        patch.setattr(deepspeed, "initialize", lambda **words: made.append(initialize(**words)) or made[0])
        learner = DeepspeedLearner(model, optimizer=OptimizerConfig(), engine=engine, temperature=1.0, total_updates=4)
    batch = minibatch(rows()[:num_passes], WIDE)
    learner.update([batch], WIDE)
    zero = made[0][0].optimizer
    copies = HostCopies()
    copies.add(iter(zero.accumulated_grads_in_cpu.values()))  # the gradients that lie in host memory
    copies.add(group.grad for group in zero.single_partition_of_fp32_groups)
    with copies:
        learner.update([batch], WIDE)
    learner.close()
    return copies.num_bytes / sum(parameter.numel() for parameter in model.parameters())


def reduced_bytes_a_weight(engine: EngineConfig) -> tuple[float, float]:
    """Bytes of gradients that are summed over the ranks in an update of 4 passes, and of 32."""
    from deepspeed import comm

    from hacpo_core.engines.deepspeed.learner import DeepspeedLearner

    model = small_model(num_layers=2).to(torch.bfloat16)
    learner = DeepspeedLearner(model, optimizer=OptimizerConfig(), engine=engine, temperature=1.0, total_updates=4)
    num_bytes: list[float] = []
    for num_passes in (4, 32):
        num_bytes.append(0.0)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("all_reduce", "reduce", "reduce_scatter_tensor", "reduce_scatter_fn"):
                patch.setattr(comm, name, _counted(getattr(comm, name), num_bytes))
            learner.update([minibatch(rows()[: 2 * num_passes], WIDE)], WIDE)
    learner.close()
    num_weights = sum(parameter.numel() for parameter in model.parameters())
    return num_bytes[0] / num_weights, num_bytes[1] / num_weights


def _counted(function: Any, num_bytes: list[float]) -> Any:
    def counted(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if tensor.numel() > 1:  # not a norm
            num_bytes[-1] += tensor.nbytes
        return function(tensor, *arguments, **options)

    return counted


@pytest.mark.parametrize("stage", [1, 2])
def test_ranks_sum_their_gradients_once_an_update_at_stage_one(stage: int) -> None:
    engine = EngineConfig(
        learner="deepspeed",
        dtype="bfloat16",
        grad_dtype="float32",
        micro_batch_tokens=1,
        deepspeed=DeepspeedConfig(stage=stage),
    )
    (few, many), _ = on_ranks(2, reduced_bytes_a_weight, engine)
    assert few == pytest.approx(4 if stage == 1 else 2 * 4, rel=0.01)
    assert many == pytest.approx(4 if stage == 1 else 2 * 32, rel=0.01)


def test_gradients_cross_to_the_host_once_an_update_with_one_gpu() -> None:
    hardware = compose("qwen3-1.7b-base+qwen3-4b-base", "hacpo", hardware="one_gpu").engine
    engine = replace(
        hardware, device="cpu", num_threads=1, gpu_memory_gb=None, micro_batch_tokens=1, gradient_checkpointing=True
    )
    few, many = (host_bytes_a_weight(engine, num_passes=number) for number in (4, 32))
    assert few == many == 4, "the fp32 gradient on its way to the optimizer"
    # Stage 2, with gradients summed in bfloat16, reads its sum from host memory and writes it back in every pass.
    stage_two = replace(engine, deepspeed=replace(engine.deepspeed, stage=2), grad_dtype="same")
    few, many = (host_bytes_a_weight(stage_two, num_passes=number) for number in (4, 32))
    assert (few, many) == (4 + 4 * 4, 4 + 4 * 32)
