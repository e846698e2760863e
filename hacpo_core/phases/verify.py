"""Phase verify.<agent> (verify-<n>.<agent> in later rounds): rewards of an agent's responses."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

from hacpo_core.errors import VerificationError
from hacpo_core.experiment import Experiment
from hacpo_core.responses import Verdicts
from hacpo_core.stopwatch import Stopwatch
from hacpo_core.store.ledger import VerifiedBatch
from hacpo_core.store.steps import phase_name

_log = logging.getLogger(__name__)


def verify(experiment: Experiment, step: int, agent: str, *, round: int = 0) -> None:
    """Verify an agent's responses of a step, or of one round of it.

    Raises:
        VerificationError: all responses are unscored, or more than `verifier.max_unscored_fraction` of them, rounded
            up.
        MethodError: a reward function returned no reward.
    """
    if experiment.ledger.has(step, phase_name("verify", agent, round)):
        return
    responses = experiment.ledger.sampled_round(step, agent, round).responses
    problems = [experiment.problem(problem_id) for problem_id in responses.problem_id]
    with Stopwatch() as watch:
        verdicts = Verdicts.of(experiment.rewards.judge(problems, responses.text, list(responses.row_keys())))
    num_unscored, most = int((~verdicts.is_scored_R).sum()), experiment.config.verifier.max_unscored_fraction
    if num_unscored:
        _log.warning("step %d, %s: %d of %d responses are unscored", step, agent, num_unscored, len(verdicts))
    if num_unscored and (num_unscored == len(verdicts) or num_unscored > math.ceil(most * len(verdicts))):
        raise VerificationError(
            f"step {step}, {agent}: {num_unscored} of {len(verdicts)} responses are unscored, expected not all and at "
            f"most verifier.max_unscored_fraction={most} of them (first reason: "
            f"{next(filter(None, verdicts.reason), 'none given')}); resume to try again, fix the reward function, or "
            "start a new experiment with a larger verifier.timeout_s, verifier.memory_mb or reward.timeout_s"
        )
    batch = VerifiedBatch(replace(responses, verdicts=verdicts), watch.cost())
    experiment.ledger.save_verdicts(step, agent, batch, round)
