"""The plain torch learner: AdamW on one device, in fp32 or in bf16 with fp32 master weights.

Shapes: B row of a mini-batch.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from hacpo_core.data.batches import Minibatch
from hacpo_core.engines.learning.learner import BaseLearner, OptimizerStep
from hacpo_core.engines.learning.optimizer import adamw
from hacpo_core.engines.learning.weights import Fingerprint, fingerprint
from hacpo_core.engines.models.tensor_files import TensorPart
from hacpo_core.methods.objective import Objective, RowKind


class TorchLearner(BaseLearner):
    """Trains a model with AdamW on one device.

    With `engine.dtype: bfloat16`, the optimizer updates fp32 master weights, which are copied into the model after each
    update: steps with a learning rate of 1e-6 would be rounded away in bf16. Log-softmax is always fp32; gradients are
    accumulated in fp32 on the masters.
    """

    def _start(self) -> None:
        self._is_partial = len(self.trainable) < sum(1 for _ in self.model.parameters())
        is_bf16 = any(p.dtype != torch.float32 for p in self.trainable.values())
        self.masters = {name: p.detach().float().clone() for name, p in self.trainable.items()} if is_bf16 else {}
        self._trained = self.masters or self.trainable
        self._optimizer = adamw(list(self._trained.values()), self._config)

    def close(self) -> None:
        """Do nothing."""

    def backward(self, loss: Tensor) -> None:
        """Add the gradient, in fp32."""
        loss.backward()
        for name, master in self.masters.items():
            parameter = self.trainable[name]
            if parameter.grad is not None:
                wide = parameter.grad.float()
                master.grad = wide if master.grad is None else master.grad.add_(wide)
                parameter.grad = None

    def gradient_cosine(self, rows: Minibatch, objective: Objective) -> float | None:
        """As `BaseLearner`; one gradient is kept on the host, and none remains."""
        own, others = (rows.take(np.flatnonzero((rows.kind_B == RowKind.FOREIGN) == side)) for side in (False, True))
        if not len(own) or not len(others):
            return None
        gradients = []
        for part in (own, others):
            self.passes(part, objective, 0)
            gradients.append(
                [(torch.zeros_like(p) if p.grad is None else p.grad).cpu().flatten() for p in self._trained.values()]
            )
            self._zero_gradients()
        (own_square, cross), (_, other_square) = (
            [sum(float(a.double() @ b.double()) for a, b in zip(one, other, strict=True)) for other in gradients]
            for one in gradients
        )
        return cross / math.sqrt(own_square * other_square) if own_square * other_square > 0 else None

    def _zero_gradients(self) -> None:
        self.model.zero_grad()
        for master in self.masters.values():
            master.grad = None

    def optimizer_step(self) -> OptimizerStep:
        """Clip, update, and copy master weights into the model."""
        rate = self._rate()
        for trained in self._trained.values():
            if trained.grad is None:
                trained.grad = torch.zeros_like(trained)
        norm = float(clip_grad_norm_(list(self._trained.values()), self._config.max_grad_norm))
        self._check_norm(norm)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        with torch.no_grad():
            for name, master in self.masters.items():
                self.trainable[name].copy_(master)
        self._zero_gradients()
        self.num_updates += 1
        return OptimizerStep(norm, rate)

    def fingerprint(self) -> Fingerprint:
        """Identity of the trained weights, or of their fp32 masters if there are any."""
        return fingerprint((name, self._trained[name]) for name in sorted(self._trained))

    def optimizer_parts(self) -> Iterator[TensorPart]:
        """AdamW's moments and step counts, and the fp32 master weights, by parameter name.

        If only some weights (adapters) are trained, these are included, because a model folder has them merged.
        """
        tensors = {f"master.{name}": master for name, master in self.masters.items()}
        if self._is_partial:
            tensors |= {f"trained.{name}": parameter.detach() for name, parameter in self.trainable.items()}
        for name, parameter in self._trained.items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                tensors[f"{key}.{name}"] = value
        for name, tensor in tensors.items():
            yield TensorPart(name, tensor.dtype, tuple(tensor.shape), tensor.detach)

    def load_optimizer_tensors(self, tensors: Mapping[str, Tensor], *, num_updates: int) -> None:
        """Set tensors from `optimizer_parts`.

        Raises:
            EngineError: the tensors belong to a different model.
        """
        self._optimizer.state.clear()
        for key, value in tensors.items():
            kind, _, name = key.partition(".")
            self._check_name(name)
            if kind in ("master", "trained"):
                with torch.no_grad():
                    (self.masters if kind == "master" else self.trainable)[name].copy_(value)
                continue
            self._optimizer.state[self._trained[name]][kind] = value.to(self._device).clone()
        self.num_updates = num_updates
