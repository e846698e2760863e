"""Training with DeepSpeed's ZeRO. Only this file imports DeepSpeed.

    all rows ─deal─▶ this rank's rows ─passes─▶ gradient, averaged over ranks by DeepSpeed ─step─▶ this rank's shard
                          └─▶ outcomes, gathered: every rank returns those of all rows

Every rank of a torch.distributed group has a learner; all ranks call the same methods with the same arguments. Row
weights refer to the whole mini-batch, so the ranks' gradients add up to the gradient of a single process.

Shapes: B row of a mini-batch, N response token of all rows.
"""

import atexit
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _set_pg_timeout

from hacpo_core.columns import Ragged, TokenRows
from hacpo_core.config.engine import RANKS_LIMIT_S
from hacpo_core.data.batches import Minibatch
from hacpo_core.engines.deepspeed.settings import zero_settings
from hacpo_core.engines.deepspeed.zero_state import ZeroState
from hacpo_core.engines.learning.learner import BaseLearner, OptimizerStep
from hacpo_core.engines.learning.optimizer import adamw
from hacpo_core.engines.learning.weights import Fingerprint, fingerprint
from hacpo_core.engines.models.tensor_files import TensorPart
from hacpo_core.engines.passes.layouts import row_groups
from hacpo_core.engines.passes.logprobs import TokenScores
from hacpo_core.engines.passes.scoring import ScoringHead
from hacpo_core.engines.ranks import all_ranks
from hacpo_core.errors import EngineError
from hacpo_core.methods.build import TrainedRows
from hacpo_core.methods.objective import Objective

_PADDING = TokenRows.of([[0], [0]], [[0, 0], [0, 0]])
"""of an empty pass; torch.compile would specialise on a size of 1"""


def deal(lengths: Sequence[int], *, num_ranks: int) -> list[list[int]]:
    """Row positions of each rank: rows are dealt longest first, each to the rank with the fewest tokens so far."""
    tokens = [0] * num_ranks
    shares: list[list[int]] = [[] for _ in range(num_ranks)]
    for position in sorted(range(len(lengths)), key=lambda position: -lengths[position]):
        rank = tokens.index(min(tokens))
        shares[rank].append(position)
        tokens[rank] += lengths[position]
    return [sorted(share) for share in shares]


class _Scorer(nn.Module):
    """Model and head in one module, so that DeepSpeed gathers all weights needed by a forward and backward pass."""

    def __init__(self, head: ScoringHead) -> None:
        super().__init__()
        self.model, self.head = head.model, head
        self.call: Callable[[], TokenScores] | None = None

    def forward(self) -> tuple[Tensor, Tensor]:
        assert self.call is not None
        scores = self.call()
        return scores.logprob_N, scores.entropy_N


class _EngineHead:
    """Scores through DeepSpeed's engine."""

    def __init__(self, engine: Any, scorer: _Scorer) -> None:
        self._engine, self._scorer = engine, scorer

    def scores(self, *arguments: Any, **options: Any) -> TokenScores:
        """As `ScoringHead.scores`. The arguments bypass the engine, which warns about anything but tensors."""
        self._scorer.call = partial(self._scorer.head.scores, *arguments, **options)
        return TokenScores(*self._engine())


class DeepspeedLearner(BaseLearner):
    """Trains a model together with the other ranks.

    `deepspeed.stage` determines what is sharded: optimizer states and fp32 master weights (1), also gradients (2).
    """

    def _start(self) -> None:
        """Start DeepSpeed's engine; the learner's arguments must be the same on all ranks.

        Raises:
            EngineError: DeepSpeed is not installed or cannot start.
        """
        deepspeed = _import(self._device)
        assert isinstance(self.head, ScoringHead)
        if not dist.is_initialized():
            backend = "nccl" if self._device.type == "cuda" else "gloo"
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
            atexit.register(_leave_group)
        self._rank, self._num_ranks = dist.get_rank(), dist.get_world_size()
        scorer = _Scorer(self.head)
        self._adamw = adamw(list(self.trainable.values()), self._config)
        num_elements = sum(parameter.numel() for parameter in self.trainable.values())
        settings = zero_settings(self._engine, self._config, num_elements=num_elements)
        self._deepspeed = _started(deepspeed, scorer, self._adamw, settings, device=self._device)
        self._adamw.state.clear()
        self._state = ZeroState(self.trainable, self._deepspeed, self._adamw, utils=deepspeed.utils)
        self.head = _EngineHead(self._deepspeed, scorer)

    def close(self) -> None:
        """Remove DeepSpeed's hooks from the model, which cannot be scored or trained afterwards."""
        self._deepspeed.destroy()

    # --- a share of the rows ---

    def logprobs(self, rows: TokenRows) -> Ragged:
        """As `BaseLearner`, each rank its share; every rank returns those of all rows."""
        shares = self._deal(rows)
        own_logprobs = super().logprobs(rows.take(shares[self._rank]))
        with torch.no_grad():
            for _ in range(self._missing_passes(rows, shares)):
                self._score_nothing()
        return Ragged.joined(all_ranks(own_logprobs)).take(_inverse(shares))

    def logprobs_of_each(self, rows: TokenRows) -> Ragged:
        """As `logprobs`, but each rank passes its own rows; all ranks score all of them together."""
        rows_of_ranks: list[TokenRows] = all_ranks(rows)
        num_before = sum(len(part) for part in rows_of_ranks[: self._rank])
        return self.logprobs(TokenRows.joined(rows_of_ranks)).take(range(num_before, num_before + len(rows)))

    def passes(self, rows: Minibatch, objective: Objective, update: int) -> TrainedRows:
        """As `BaseLearner`, each rank its share; what was measured is in the order of a single process."""
        shares = self._deal(rows.tokens)
        trained = super().passes(rows.take(shares[self._rank]), objective, update)
        for _ in range(self._missing_passes(rows.tokens, shares)):
            self.backward(self._score_nothing())
        all_trained = TrainedRows.joined(all_ranks(trained))
        position = {key: place for place, key in enumerate(all_trained.key_B)}
        return all_trained.take([position[rows.keys[row]] for group in self._row_groups(rows.tokens) for row in group])

    def _row_groups(self, rows: TokenRows) -> list[list[int]]:
        """Rows of each pass that a single process would make."""
        engine = self._engine
        budget = engine.micro_batch_tokens
        return row_groups(rows, layout=self.layout, max_tokens=budget, max_places=engine.max_places)

    def _deal(self, rows: TokenRows) -> list[list[int]]:
        return deal(rows.lengths_B.tolist(), num_ranks=self._num_ranks)

    def _missing_passes(self, rows: TokenRows, shares: Sequence[Sequence[int]]) -> int:
        """Empty passes that this rank adds: ranks communicate in each pass, so all make the same number, at least 1."""
        num_passes = [len(self._row_groups(rows.take(share))) for share in shares]
        return max(1, *num_passes) - num_passes[self._rank]

    def _score_nothing(self) -> Tensor:
        """An empty pass: its value and gradient are 0."""
        (scores,) = (scores for _, scores in self._score_groups(self.head, _PADDING))
        return (0.0 * scores.logprob_N).sum()

    # --- gradient and step ---

    def backward(self, loss: Tensor) -> None:
        """Add the gradient, summed over ranks: DeepSpeed averages, but the row weights require a sum."""
        self._deepspeed.backward(loss * self._num_ranks)

    def optimizer_step(self) -> OptimizerStep:
        rate = self._rate()
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._deepspeed.step()
        norm = float(self._deepspeed.get_global_grad_norm())
        self._check_norm(norm)
        self.num_updates += 1
        return OptimizerStep(norm, rate)

    # --- whole weights and optimizer state ---

    def fingerprint(self) -> Fingerprint:
        """Identity of the trained weights, or of their fp32 masters if there are any; the same on all ranks."""
        all_ranks(None)  # another rank may still be reading its part of a checkpoint
        return fingerprint((name, self._state.weight(name)) for name in sorted(self.trainable))

    def optimizer_parts(self) -> Iterator[TensorPart]:
        """AdamW's moments and step counts, and fp32 master weights; each is gathered on all ranks when it is read."""
        return self._state.parts()

    def load_optimizer_tensors(self, tensors: Mapping[str, Tensor], *, num_updates: int) -> None:
        """Set tensors from `optimizer_parts`, which may have been saved with another number of ranks or stage.

        Raises:
            EngineError: the tensors belong to a different model.
        """
        for key in tensors:
            self._check_name(key.partition(".")[2])
        self._state.load(tensors)
        self.num_updates = num_updates


def _inverse(shares: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Position of each row in the concatenation of the shares."""
    return np.argsort(np.concatenate([np.asarray(share, np.int64) for share in shares]))


def _started(
    deepspeed: Any, scorer: _Scorer, optimizer: torch.optim.AdamW, settings: dict[str, Any], *, device: torch.device
) -> Any:
    """DeepSpeed's engine."""
    os.environ["LOCAL_RANK"] = str(device.index or 0)  # DeepSpeed reads the device from it in each pass
    all_ranks(None)  # wait for ranks that are still loading: DeepSpeed's own group times out after ten minutes
    try:
        engine, *_ = deepspeed.initialize(model=scorer, optimizer=optimizer, config=settings, dist_init_required=False)
    except Exception as error:  # DeepSpeed raises many types
        message = " ".join(str(error).split()) or type(error).__name__
        raise EngineError(
            f"DeepSpeed: the engine did not start: {message[:400]}; if memory is short, raise engine.deepspeed.stage "
            "or offload; `hacpo doctor` checks whether DeepSpeed works here"
        ) from error
    # DeepSpeed clones the world's group without its timeout; ranks wait there while one writes a large checkpoint.
    _set_pg_timeout(timedelta(seconds=RANKS_LIMIT_S), deepspeed.utils.groups._get_data_parallel_group())
    return engine


def _leave_group() -> None:
    """End the group of one process that a learner created, unless vLLM in this process has already ended it."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _import(device: torch.device) -> Any:
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    try:
        import deepspeed
        from deepspeed.accelerator import get_accelerator, set_accelerator
        from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
        from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator
    except ImportError as error:
        raise EngineError(
            f"engine.learner: deepspeed cannot be imported ({error}); pip install 'hacpo[deepspeed]', or set "
            "engine.learner=torch"
        ) from error
    if get_accelerator().device_name() != device.type:  # it was imported before, for another device
        set_accelerator(CPU_Accelerator() if device.type == "cpu" else CUDA_Accelerator())
    # In every pass, it calls functions that torch 2.13 has deprecated.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    # On the CPU, it would compile a shared-memory reduction at the first run, for half a minute; gloo works as well.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed
