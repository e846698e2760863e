"""Unsharded fp32 weights and AdamW states of a model that DeepSpeed has sharded, by parameter name.

A rank updates its shard of one flat tensor of all parameters.

Tensors are read and set whole, independent of the number of ranks and the stage. All ranks must read and set together.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hacpo_core.engines.models.tensor_files import TensorPart

MOMENTS = ("exp_avg", "exp_avg_sq")


class ZeroState:
    """Reads and sets the tensors that DeepSpeed shards."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], engine: Any, adamw: torch.optim.AdamW, *, utils: Any
    ) -> None:
        """
        Args:
            parameters: the model's trained parameters.
            engine: DeepSpeed's engine.
            adamw: the engine's optimizer.
            utils: the module deepspeed.utils.
        """
        self.trainable, self._optimizer, self._adamw = parameters, engine.optimizer, adamw
        self._utils = utils
        self._has_masters = any(parameter.dtype != torch.float32 for parameter in parameters.values())
        self._device = engine.device

    def weight(self, name: str) -> Tensor:
        """A whole fp32 weight: the master if there is one."""
        parameter = self.trainable[name]
        if not self._has_masters:
            return parameter.detach()
        whole: Tensor = self._utils.safe_get_full_fp32_param(parameter).detach()
        # DeepSpeed adds shards to zeros, which turns -0 into 0.
        return whole.masked_fill_((whole == 0) & parameter.detach().signbit(), -0.0)

    def parts(self) -> Iterator[TensorPart]:
        """AdamW's moments and step counts, and master weights if there are any; gathered when they are read."""
        for name, parameter in self.trainable.items():
            kinds = ["master"] if self._has_masters else []
            for kind in [*kinds, *(MOMENTS if self._adamw.state else ())]:
                yield TensorPart(
                    f"{kind}.{name}", torch.float32, tuple(parameter.shape), partial(self._whole, kind, name)
                )
            if self._adamw.state:
                step = torch.tensor(float(next(iter(self._adamw.state.values()))["step"]))
                yield TensorPart(f"step.{name}", torch.float32, (), step.clone)

    def _whole(self, kind: str, name: str) -> Tensor:
        if kind == "master":
            return self.weight(name)
        moment: Tensor = self._utils.safe_get_full_optimizer_state(self.trainable[name], kind)
        return moment

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

    def _make_moments(self, *, step: float) -> None:
        """Create zero moments for every tensor that AdamW updates on this rank, as its first step would."""
        if hasattr(self._optimizer, "single_partition_of_fp32_groups"):
            stepped = self._optimizer.single_partition_of_fp32_groups
        else:  # at stage 1 with sums in fp32, DeepSpeed has another class
            stepped = self._optimizer.fp32_groups_flat_partition
        for tensor in stepped:
            state = {"step": torch.tensor(step, device=tensor.device)}
            self._adamw.state[tensor] = state | {key: torch.zeros_like(tensor) for key in MOMENTS}
        self._optimizer._hp_optimizer_states_linked = False
        self._optimizer._lazy_init_hp_params_optimizer_state()

    def _set(self, name: str, value: Tensor, key: str | None = None) -> None:
        """Set a whole moment, or the fp32 weight if `key` is None."""
        parameter, value = self.trainable[name], value.to(self._device, torch.float32)
        if key is None:
            self._utils.safe_set_full_fp32_param(parameter, value)
        else:
            self._utils.safe_set_full_optimizer_state(parameter, value, key)
