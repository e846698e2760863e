"""Unsharded fp32 weights and AdamW states of a model that DeepSpeed has sharded, by parameter name.

    stage 0     every rank updates every parameter, or its fp32 master
    stages 1-2  a rank updates its shard of one flat tensor of all parameters
    stage 3     a rank updates its shard of each parameter

Tensors are read and set whole, independent of the number of ranks and the stage. All ranks must read and set together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hacpo_core.engines.models.tensor_files import TensorPart

MOMENTS = ("exp_avg", "exp_avg_sq")


class ZeroState:
    """Reads and sets the tensors that DeepSpeed shards."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], engine: Any, adamw: torch.optim.AdamW, *, stage: int, utils: Any
    ) -> None:
        """
        Args:
            parameters: the model's trained parameters.
            engine: DeepSpeed's engine.
            adamw: the engine's optimizer.
            stage: ZeRO's.
            utils: the module deepspeed.utils.
        """
        self.trainable, self._optimizer, self._adamw = parameters, engine.optimizer, adamw
        self._stage, self._utils = stage, utils
        self._has_masters = any(parameter.dtype != torch.float32 for parameter in parameters.values())
        self._device = engine.device

    def weight(self, name: str) -> Tensor:
        """A whole fp32 weight: the master if there is one."""
        parameter = self.trainable[name]
        if self._stage == 0:
            return self._stepped()[name].detach()
        if self._stage < 3 and not self._has_masters:
            return parameter.detach()
        whole: Tensor = self._utils.safe_get_full_fp32_param(parameter).detach()
        if self._stage < 3:  # DeepSpeed adds shards to zeros, which turns -0 into 0
            whole.masked_fill_((whole == 0) & parameter.detach().signbit(), -0.0)
        return whole

    def parts(self) -> Iterator[TensorPart]:
        """AdamW's moments and step counts, and master weights if there are any; gathered when they are read."""
        for name, parameter in self.trainable.items():
            shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
            kinds = ["master"] if self._has_masters else []
            for kind in [*kinds, *(MOMENTS if self._adamw.state else ())]:
                yield TensorPart(f"{kind}.{name}", torch.float32, shape, partial(self._whole, kind, name))
            if self._adamw.state:
                step = torch.tensor(float(next(iter(self._adamw.state.values()))["step"]))
                yield TensorPart(f"step.{name}", torch.float32, (), step.clone)

    def _whole(self, kind: str, name: str) -> Tensor:
        return self.weight(name) if kind == "master" else self._moment(name, kind)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Set tensors from `parts`."""
        steps = {float(tensors[key]) for key in tensors if key.startswith("step.")}
        self._adamw.state.clear()
        if steps:
            self._make_moments(step=max(steps))
        for key, value in tensors.items():
            kind, _, name = key.partition(".")
            if kind == "master":
                self._set(name, value)
            elif kind in MOMENTS:
                self._set(name, value, kind)

    def _stepped(self) -> dict[str, Tensor]:
        """Tensors that the optimizer updates at stage 0: the parameters themselves, or their fp32 masters."""
        return dict(zip(self.trainable, self._adamw.param_groups[0]["params"], strict=True))

    def _moment(self, name: str, key: str) -> Tensor:
        if self._stage == 0:
            moment: Tensor = self._adamw.state[self._stepped()[name]][key]
        else:
            moment = self._utils.safe_get_full_optimizer_state(self.trainable[name], key)
        return moment

    def _make_moments(self, *, step: float) -> None:
        """Create zero moments for every tensor that AdamW updates on this rank, as its first step would."""
        if self._stage == 0:
            stepped = list(self._stepped().values())
        elif hasattr(self._optimizer, "single_partition_of_fp32_groups"):
            stepped = self._optimizer.single_partition_of_fp32_groups
        elif self._stage == 1:  # with sums in fp32, DeepSpeed has another class
            stepped = self._optimizer.fp32_groups_flat_partition
        else:
            stepped = self._optimizer.fp32_partitioned_groups_flat
        for tensor in stepped:
            state = {"step": torch.tensor(step, device=tensor.device)}
            self._adamw.state[tensor] = state | {key: torch.zeros_like(tensor) for key in MOMENTS}
        if self._stage in (1, 2):
            self._optimizer._hp_optimizer_states_linked = False
            self._optimizer._lazy_init_hp_params_optimizer_state()

    def _set(self, name: str, value: Tensor, key: str | None = None) -> None:
        """Set a whole moment, or the fp32 weight if `key` is None."""
        parameter, utils = self.trainable[name], self._utils
        value = value.to(self._device, torch.float32)
        if self._stage == 0:
            target = self._stepped()[name]
            with torch.no_grad():
                (target if key is None else self._adamw.state[target][key]).copy_(value)
        elif self._stage < 3:
            if key is None:
                utils.safe_set_full_fp32_param(parameter, value)
            else:
                utils.safe_set_full_optimizer_state(parameter, value, key)
        else:  # the last rank's shard is padded with zeros
            size: int = parameter.ds_tensor.numel()  # type: ignore[attr-defined]
            padded_value = nn.functional.pad(value.flatten(), (0, size * dist.get_world_size() - value.numel()))
            part = padded_value[dist.get_rank() * size :][:size]
            if key is None:
                utils.safe_set_local_fp32_param(parameter, part)
            else:
                utils.safe_set_local_optimizer_state(parameter, part, key)
