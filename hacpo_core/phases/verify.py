"""Phase verify.<agent>: an agent's responses get their rewards."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

from hacpo_core.errors import VerificationError
from hacpo_core.experiment import Experiment
from hacpo_core.responses import Verdicts
from hacpo_core.stopwatch import Stopwatch
from hacpo_core.store.ledger import VerifiedBatch

_log = logging.getLogger(__name__)


def verify(x: Experiment, step: int, agent: str) -> None:
    """Verify an agent's responses.

    Raises:
        VerificationError: more responses than `verifier.max_unscored_fraction`, rounded up, are unscored, or all.
        MethodError: a reward function returned no reward.
    """
    if x.ledger.has(step, f"verify.{agent}"):
        return
    responses = x.ledger.rollouts(step, agent).responses
    problems = [x.problem(problem_id) for problem_id in responses.problem_id]
    with Stopwatch() as watch:
        verdicts = Verdicts.of(x.rewards.judge(problems, responses.text))
    num_unscored, most = int((~verdicts.is_scored_R).sum()), x.config.verifier.max_unscored_fraction
    if num_unscored:
        _log.warning("step %d, %s: %d of %d responses are unscored", step, agent, num_unscored, len(verdicts))
    if num_unscored == len(verdicts) or num_unscored > math.ceil(most * len(verdicts)):
        raise VerificationError(
            f"step {step}, {agent}: {num_unscored} of {len(verdicts)} responses are unscored, all of them or more than "
            f"verifier.max_unscored_fraction={most} (first: {next(filter(None, verdicts.reason), 'no reason')}); "
            "resume to try once more, or begin anew with a larger verifier.timeout_s or verifier.memory_mb"
        )
    x.ledger.save_verdicts(step, agent, VerifiedBatch(replace(responses, verdicts=verdicts), watch.cost()))
