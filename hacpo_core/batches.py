"""What one learner trains on in one step: own and shared responses as rows, cut into mini-batches.

Shapes: L learner, P problem, A agent, G response.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import numpy as np

from hacpo_core.algo.methods import JointAdvantages
from hacpo_core.data.retokenize import Retokenizer, strip_eos
from hacpo_core.records import Rollout
from hacpo_core.seeds import generator


@dataclass(frozen=True, slots=True)
class Row:
    """One response as one learner sees it, in the learner's own tokens.

    `source`, `problem` and `index` say whose response it is (agent index, problem index in the batch, 0-based sample).
    `old_mean_logprob` is the sampling agent's mean log-probability per token (nats), on its own tokens;
    `old_logprobs` are the learner's own, on own rows only.
    """

    source: int
    problem: int
    index: int
    is_own: bool
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    advantage: float
    cross_weight: float
    old_mean_logprob: float
    old_logprobs: tuple[float, ...] | None

    @property
    def num_tokens(self) -> int:
        """Prompt and response together."""
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(frozen=True, slots=True)
class Minibatch:
    """The rows of one update; those that its passes leave out count in its normalisers."""

    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class LearnerBatch:
    """A learner's mini-batches and what happened on the way into them.

    `num_unscored` and `num_empty` count responses that were left out, own ones too, `num_truncated` cross-agent ones;
    `length_drift_mean` is the mean of (learner tokens - source tokens) / source tokens over retokenised responses, 0
    when none was.
    """

    minibatches: tuple[Minibatch, ...]
    num_unscored: int
    num_truncated: int
    num_empty: int
    length_drift_mean: float


Slot = tuple[int, int, int]


def minibatch_slots(
    *,
    num_problems: int,
    num_samples: int,
    sources: Sequence[int],
    num_minibatches: int,
    order: Literal["mixed", "own_first"],
    seed_parts: Sequence[int | str],
) -> list[list[Slot]]:
    """Which (source, problem, sample) goes into which mini-batch: a function of the seed parts alone.

    The problems are shuffled once; all sources follow that order, so that a mini-batch holds whole groups wherever
    the numbers allow it. `mixed` cuts each source into `num_minibatches` nearly equal shares (they differ by one row at
    most); `own_first` cuts the learner's own rows first, then the others', source by source.

    Args:
        num_problems: P.
        num_samples: G.
        sources: agent indices, the learner first.
        num_minibatches: updates in the step; for own_first a multiple of the number of sources.
        order: see above.
        seed_parts: for example (seed, "minibatch", step, learner name).

    Returns:
        one list of slots per update.
    """
    permutation = generator(*seed_parts).permutation(num_problems).tolist()
    slots_of = {j: [(j, p, i) for p in permutation for i in range(num_samples)] for j in sources}
    if order == "own_first":
        own, *others = sources
        share = num_minibatches // len(sources)
        groups = (slice(p * num_samples, (p + 1) * num_samples) for p in range(num_problems))
        other_slots = [slot for group in groups for j in others for slot in slots_of[j][group]]
        return [*_cut(slots_of[own], share), *(_cut(other_slots, num_minibatches - share) if others else [])]
    pieces = {j: _cut(slots, num_minibatches) for j, slots in slots_of.items()}
    return [[slot for j in sources for slot in pieces[j][m]] for m in range(num_minibatches)]


def _cut(slots: Sequence[Slot], num_pieces: int) -> list[list[Slot]]:
    """Consecutive pieces whose lengths differ by one at most."""
    edges = [len(slots) * piece // num_pieces for piece in range(num_pieces + 1)]
    return [list(slots[start:end]) for start, end in itertools.pairwise(edges)]


def learner_batch(
    *,
    learner: int,
    rollouts: Sequence[Sequence[Rollout]],
    is_scored_PAG: np.ndarray,
    joint: JointAdvantages,
    slots: Sequence[Sequence[Slot]],
    retokenizers: Mapping[int, Retokenizer],
    prompt_ids: Sequence[tuple[int, ...]],
    eos_ids: frozenset[int] | None,
    source_eos_ids: Mapping[int, frozenset[int]],
) -> LearnerBatch:
    """Build a learner's rows.

    Args:
        learner: index k.
        rollouts: per agent j, its responses in problem-major order (P x G of them).
        is_scored_PAG: True where the response has a verdict; others take part in nothing.
        joint: advantages and weights of the step.
        slots: from `minibatch_slots`.
        retokenizers: from each other agent's tokens to the learner's.
        prompt_ids: per problem, the prompt under the learner's tokenizer and chat template, for others' responses; the
            learner's own keep the one that they were sampled behind.
        eos_ids: EOS ids to remove at the end of own responses (`retokenize.eos: drop`), None to keep them.
        source_eos_ids: the same for every source, so that its old log-probabilities lose the EOS as well.

    Returns:
        the mini-batches; responses that are unscored or became empty are left out and counted.
    """
    num_samples = is_scored_PAG.shape[2]
    num_unscored = num_truncated = num_empty = 0
    drifts: list[float] = []
    minibatches = []
    advantage_PAG, weight_A = joint.advantage_LPAG[learner].numpy(), joint.weight_LA[learner].numpy()
    for piece in slots:
        kept = [slot for slot in piece if is_scored_PAG[slot[1], slot[0], slot[2]]]
        num_unscored += len(piece) - len(kept)
        responses = [rollouts[j][p * num_samples + i] for j, p, i in kept]
        converted: dict[int, tuple[int, ...]] = {}
        for j, retokenizer in retokenizers.items():
            positions = [position for position, slot in enumerate(kept) if slot[0] == j]
            shared = retokenizer.convert_batch([responses[position] for position in positions])
            for position, response in zip(positions, shared, strict=True):
                num_truncated += response.status == "truncated"
                converted[position] = response.token_ids
                if not response.is_passed_through:
                    drifts.append(response.length_drift)
        rows = []
        for position, ((j, p, i), response) in enumerate(zip(kept, responses, strict=True)):
            old = response.logprobs if response.old_logprobs is None else response.old_logprobs
            if eos_ids is not None:
                old = old[: len(strip_eos(response.token_ids, source_eos_ids[j]))]
            is_own = j == learner
            ids = response.token_ids[: len(old)] if is_own else converted[position]
            if not ids or not old:
                num_empty += 1
                continue
            rows.append(
                Row(
                    source=j,
                    problem=p,
                    index=i,
                    is_own=is_own,
                    prompt_ids=response.prompt_ids if is_own else prompt_ids[p],
                    response_ids=ids,
                    advantage=float(advantage_PAG[p, j, i]),
                    cross_weight=1.0 if is_own else float(weight_A[j]),
                    old_mean_logprob=fmean(old),
                    old_logprobs=old if is_own else None,
                )
            )
        minibatches.append(Minibatch(tuple(rows)))
    return LearnerBatch(
        minibatches=tuple(minibatches),
        num_unscored=num_unscored,
        num_truncated=num_truncated,
        num_empty=num_empty,
        length_drift_mean=fmean(drifts) if drifts else 0.0,
    )
