"""What one learner trains on in one step: own and shared responses as rows, cut into mini-batches.

Shapes: L learner, P problem, A agent, G response.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, NamedTuple

import numpy as np

from hacpo_core.algo.methods import JointAdvantages
from hacpo_core.data.retokenize import Retokenizer, SharedResponse, without_eos
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


@dataclass(frozen=True, slots=True)
class Minibatch:
    """The rows of one update; those that its passes leave out count in its normalisers."""

    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """What happened to responses on the way into a learner's mini-batches.

    `num_unscored` and `num_empty` count those that were left out, own ones too, `num_truncated` cross-agent ones that
    were cut at the learner's limit; `num_control_dropped` control tokens that others' texts spelled and that the
    learner's tokenizer could not write in any other way; `length_drift_mean` is the mean of
    (learner tokens - source tokens) / source tokens over retokenised responses, 0 when none was.
    """

    num_unscored: int = 0
    num_truncated: int = 0
    num_empty: int = 0
    length_drift_mean: float = 0.0
    num_control_dropped: int = 0


@dataclass(frozen=True, slots=True)
class LearnerBatch:
    """A learner's mini-batches and what happened on the way into them."""

    minibatches: tuple[Minibatch, ...]
    counts: BatchCounts


class Slot(NamedTuple):
    """Whose response to which problem of the batch: indices."""

    source: int
    problem: int
    sample: int


def minibatch_slots(
    *,
    num_problems: int,
    num_samples: int,
    sources: Sequence[int],
    num_minibatches: int,
    order: Literal["mixed", "own_first"],
    seed_parts: Sequence[int | str],
) -> list[list[Slot]]:
    """Which response goes into which mini-batch: a function of the seed parts alone.

    The problems are shuffled once; all sources follow that order, so that a mini-batch holds whole groups wherever
    the numbers allow it. `mixed` deals mini-batches of one size in which the sources' shares differ by one row at most;
    `own_first` cuts the learner's own rows first, then the others', problem by problem.

    Args:
        num_problems: P.
        num_samples: G.
        sources: agent indices, the learner first.
        num_minibatches: updates in the step; for own_first a multiple of the number of sources.
        order: see above.
        seed_parts: for example (seed, "minibatch", step, learner name).

    Returns:
        one list of slots per update; of `mixed` source by source, the learner's own first.
    """
    permutation = generator(*seed_parts).permutation(num_problems).tolist()
    own, *others = sources
    if order == "own_first" and others:
        share = num_minibatches // len(sources)
        first = [Slot(own, p, i) for p in permutation for i in range(num_samples)]
        then = [Slot(j, p, i) for p in permutation for j in others for i in range(num_samples)]
        return [*_cut(first, share), *_cut(then, num_minibatches - share)]
    together = [Slot(j, p, i) for p in permutation for i in range(num_samples) for j in sources]
    place = {j: position for position, j in enumerate(sources)}
    return [sorted(piece, key=lambda slot: place[slot.source]) for piece in _cut(together, num_minibatches)]


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
    eos_ids: Mapping[int, frozenset[int]],
    drops_eos: bool,
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
        eos_ids: EOS ids of every source.
        drops_eos: remove the EOS at the end of own responses, and its log-probability from every source's
            (`retokenize.eos: drop`); a response of EOS alone keeps it.

    Returns:
        the mini-batches; responses that are unscored or became empty are left out and counted.
    """
    num_samples = is_scored_PAG.shape[2]
    num_unscored = num_empty = 0
    shared: list[SharedResponse] = []
    minibatches = []
    advantage_PAG, weight_A = joint.advantage_LPAG[learner].numpy(), joint.weight_LA[learner].numpy()
    for piece in slots:
        kept = [slot for slot in piece if is_scored_PAG[slot.problem, slot.source, slot.sample]]
        num_unscored += len(piece) - len(kept)
        responses = [rollouts[slot.source][slot.problem * num_samples + slot.sample] for slot in kept]
        converted = _converted(kept, responses, retokenizers)
        shared += converted.values()
        rows = []
        for position, (slot, response) in enumerate(zip(kept, responses, strict=True)):
            old = response.logprobs if response.old_logprobs is None else response.old_logprobs
            if drops_eos:
                old = old[: len(without_eos(response.token_ids, eos_ids[slot.source]))]
            is_own = slot.source == learner
            ids = response.token_ids[: len(old)] if is_own else converted[position].token_ids
            if not ids or not old:
                num_empty += 1
                continue
            rows.append(
                Row(
                    source=slot.source,
                    problem=slot.problem,
                    index=slot.sample,
                    is_own=is_own,
                    prompt_ids=response.prompt_ids if is_own else prompt_ids[slot.problem],
                    response_ids=ids,
                    advantage=float(advantage_PAG[slot.problem, slot.source, slot.sample]),
                    cross_weight=float(weight_A[slot.source]),
                    old_mean_logprob=fmean(old),
                    old_logprobs=old if is_own else None,
                )
            )
        minibatches.append(Minibatch(tuple(rows)))
    drifts = [response.length_drift for response in shared if not response.is_passed_through]
    counts = BatchCounts(
        num_unscored=num_unscored,
        num_truncated=sum(response.status == "truncated" for response in shared),
        num_empty=num_empty,
        length_drift_mean=fmean(drifts) if drifts else 0.0,
        num_control_dropped=sum(response.num_control_dropped for response in shared),
    )
    return LearnerBatch(tuple(minibatches), counts)


def _converted(
    slots: Sequence[Slot], responses: Sequence[Rollout], retokenizers: Mapping[int, Retokenizer]
) -> dict[int, SharedResponse]:
    """Others' responses in the learner's tokens, by position."""
    found: dict[int, SharedResponse] = {}
    for j, retokenizer in retokenizers.items():
        positions = [position for position, slot in enumerate(slots) if slot.source == j]
        shared = retokenizer.convert_batch([responses[position] for position in positions])
        found |= zip(positions, shared, strict=True)
    return found
