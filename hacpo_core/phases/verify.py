"""Phase verify.<agent> (verify-<n>.<agent> in later rounds): rewards of an agent's responses.

Shapes: R response of one agent.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace

from hacpo_core.errors import VerificationError
from hacpo_core.experiment import Experiment
from hacpo_core.records import Verdict
from hacpo_core.stopwatch import Stopwatch
from hacpo_core.store.ledger import Committed
from hacpo_core.store.steps import phase_name

_log = logging.getLogger(__name__)


def verify(experiment: Experiment, step: int, agent: str, *, round_index: int = 0) -> None:
    """Verify an agent's responses of a step, or of one round of it.

    Raises:
        VerificationError: all responses are unscored, or more than `verifier.max_unscored_fraction` of them, rounded
            up.
        MethodError: a reward function returned something that is not a reward.
    """
    if experiment.ledger.has(step, phase_name("verify", agent, round_index)):
        return
    responses = experiment.ledger.sampled_round(step, agent, round_index).value
    problems = [experiment.problem(problem_id) for problem_id in responses.problem_id]
    with Stopwatch() as watch:
        verdicts = experiment.rewards.judge(problems, responses.text, list(responses.row_keys()))
    check_scored(verdicts, f"step {step}, {agent}", max_fraction=experiment.config.verifier.max_unscored_fraction)
    verified = Committed(replace(responses, verdicts=tuple(verdicts)), watch.cost())
    experiment.ledger.save_verdicts(step, agent, verified, round_index)


def check_scored(
    verdicts: Sequence[Verdict],
    place: str,
    *,
    max_fraction: float,
    num_before: int = 0,
    num_responses: int | None = None,
) -> int:
    """Warn of unscored responses, and stop if they are too many.

    Args:
        verdicts: of the responses of a phase.
        place: step, agent and, in an evaluation, benchmark, for the message.
        max_fraction: `verifier.max_unscored_fraction`.
        num_before: unscored responses of earlier phases that count together with these.
        num_responses: responses of all these phases; None: of this one.

    Returns:
        the number of unscored responses of this phase.

    Raises:
        VerificationError: all responses are unscored, or more than this share of them, rounded up.
    """
    reasons = [verdict.reason for verdict in verdicts if verdict.reward is None]
    num_unscored_here, total = len(reasons), len(verdicts) if num_responses is None else num_responses
    if not num_unscored_here:
        return 0
    num_unscored = num_before + num_unscored_here
    _log.warning("%s: %d of %d responses are unscored", place, num_unscored, total)
    if num_unscored == total or num_unscored > math.ceil(max_fraction * total):
        raise VerificationError(
            f"{place}: {num_unscored} of {total} responses are unscored, expected not all and at most "
            f"verifier.max_unscored_fraction={max_fraction} of them (first reason: "
            f"{next(filter(None, reasons), 'none given')}); resume to try again, fix the reward function, or "
            "raise verifier.max_unscored_fraction, verifier.timeout_s or reward.timeout_s in a new experiment"
        )
    return num_unscored_here
