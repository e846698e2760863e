"""A model's decoder layers, compiled with torch.compile for the passes of a learner.

Norms, rotations, activations and sums of a layer become a few kernels; matrix products and `attend` stay what they are.
A sampler that shares the model calls its layers with a KV cache, for which they are not compiled.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from hacpo_core.engines.passes.attention import NAME, attend
from hacpo_core.engines.passes.logprobs import compiled_function
from hacpo_core.errors import EngineError, first_line


class CompiledLayers:
    """The compiled forward functions of a model's decoder layers; each is compiled at its first call."""

    def __init__(self, model: PreTrainedModel) -> None:
        """
        Raises:
            EngineError: the model's class does not say which modules are its layers.
        """
        kinds = model._no_split_modules or ()
        layers: list[nn.Module] = [module for module in model.modules() if type(module).__name__ in kinds]
        if not layers:
            raise EngineError(f"engine.compile: {type(model).__name__} does not name its layers; set it to false")
        self._forwards = [(layer, compiled_function(layer.forward)) for layer in layers]
        self._attend: Any = torch.compiler.disable(attend)  # its loop over blocks would be compiled for each number
        self._is_used = False

    @contextmanager
    def used(self) -> Iterator[None]:
        """In the block, which must include backward passes, the model's layers are the compiled ones.

        Raises:
            EngineError: they, or other functions in the block, cannot be compiled.
        """
        from torch._dynamo.exc import TorchDynamoException  # slow to import, and torch.compile needs it anyway

        if self._is_used:
            yield
            return
        self._is_used = True
        AttentionInterface.register(NAME, self._attend)  # which models that share rows may have replaced meanwhile
        for layer, forward in self._forwards:
            layer.forward = forward
        try:
            yield
        except TorchDynamoException as error:
            reason = first_line(getattr(error, "inner_exception", error))
            raise EngineError(
                f"engine.compile: got true, but torch.compile failed ({reason}); set it to false. "
                "`hacpo doctor` says whether a C compiler is missing"
            ) from error
        finally:
            self._is_used = False
            for layer, _ in self._forwards:
                del layer.forward
