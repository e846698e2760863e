"""Log-ratios of other agents' rows before a step's first update, and what an objective subtracts from them.

Shapes: B row.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hacpo_core.algo.ratios import LOG_RATIO_BOUND
from hacpo_core.columns import Ragged, TokenRows
from hacpo_core.data.batches import Minibatch
from hacpo_core.methods.objective import RowKind


def log_ratios_by_agent(
    minibatches: Sequence[Minibatch], logprobs: Callable[[TokenRows], Ragged]
) -> dict[str, NDArray[np.float64]]:
    """Log-ratio of every row that another agent sampled, by agent.

        log s[b] = mean of log pi_k over k's tokens - mean of log pi_j,old over j's tokens,   clamped to +-10

    A row that several mini-batches take counts once. They are scored in passes of their own, in the order of the
    mini-batches, so that neither own rows nor `engine.skip_zero_advantage` change a bit of the result.

    Args:
        minibatches: all of the step, with rows that have no advantage.
        logprobs: scores rows under the learner's current weights.

    Returns:
        nats per token; agents without rows are left out.
    Source: HACPO Eq. 51.
    """
    foreign = [minibatch.take(np.flatnonzero(minibatch.kind_B == RowKind.FOREIGN)) for minibatch in minibatches]
    keys = list(itertools.chain.from_iterable(part.keys for part in foreign))
    if not keys:
        return {}
    place = {key: row for row, key in reversed(list(enumerate(keys)))}
    rows = sorted(place.values())
    tokens = TokenRows.joined([part.tokens for part in foreign]).take(rows)
    old_B = np.concatenate([part.old_mean_logprob_B for part in foreign])[rows]
    log_ratio_B = np.clip(logprobs(tokens).means() - old_B, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    agents = [keys[row].agent for row in rows]
    return {
        agent: log_ratio_B[[row for row, name in enumerate(agents) if name == agent]] for agent in dict.fromkeys(agents)
    }


def with_log_centers(rows: Minibatch, centers: Mapping[str, float]) -> Minibatch:
    """The rows with the log-ratio that is subtracted for their source; 0 on the learner's own rows."""
    if not centers:
        return rows
    is_foreign_B = rows.kind_B == RowKind.FOREIGN
    log_center_B = np.array([centers.get(key.agent, 0.0) for key in rows.keys], np.float64)
    return replace(rows, log_center_B=np.where(is_foreign_B, log_center_B, 0.0))
