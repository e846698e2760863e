"""Raw rewards of responses: the verifier's verdict, exact match, a user's function, or a weighted mean of several.

responses ─▶ each function ─▶ numbers in [0, 1], or None ─▶ sum w r / sum w; unscored if any is None

A user's function gets whole batches, in a process that can be killed. A batch for which it raises or crashes is split
in half until the responses that cause it are isolated. A batch that times out is judged response by response, and costs
at most 1 + MAX_FAILURES time limits: what is left after so many timeouts is unscored.
"""

import logging
import math
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from hacpo_core.errors import MethodError
from hacpo_core.records import Problem, RowKey, Verdict
from hacpo_core.verify.pool import VerifierPool
from hacpo_core.verify.process import Worker

MAX_FAILURES = 4
"""after this many failed single responses in a row, the function itself is at fault: the rest of the batch is unscored
without a call, and later batches are not split; also the most timeouts of single responses in a batch"""
_log = logging.getLogger(__name__)


class RewardFunction(Protocol):
    """Judges responses in batches."""

    def judge(self, problems: Sequence[Problem], responses: Sequence[str], keys: Sequence[RowKey]) -> list[Verdict]:
        """Verdict on each response, in order."""

    def close(self) -> None:
        """Stop the processes."""


class VerifierReward:
    """1 if the answer is correct, else 0; the `VerifierPool` may be shared."""

    def __init__(self, pool: VerifierPool, *, owns_pool: bool = False) -> None:
        self._pool, self._owns_pool = pool, owns_pool

    def judge(self, problems: Sequence[Problem], responses: Sequence[str], keys: Sequence[RowKey]) -> list[Verdict]:
        """Verdicts of the pool."""
        return self._pool.verify(responses, [problem.gold for problem in problems])

    def close(self) -> None:
        """Close the pool if this object owns it."""
        if self._owns_pool:
            self._pool.close()


class UserReward:
    """A user's function `(problems, responses) -> numbers in [0, 1], or None if a response cannot be scored`."""

    def __init__(self, name: str, *, timeout_s: float, memory_mb: int) -> None:
        """The process starts on the first call.

        Args:
            name: `package.module:function`; its arguments are a list of `Problem` and a list of texts.
            timeout_s: wall-clock limit of one call, > 0, s.
            memory_mb: limit of the process's address space, MiB.
        """
        search_path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._name, self._timeout_s = name, timeout_s
        self._timeout = f"timeout after {timeout_s:g} s"
        message = f"reward.functions: {name} cannot be called: {{why}}; name a function of a module on PYTHONPATH"
        self._worker = Worker(name, memory_mb=memory_mb, environment=search_path, message=message)
        self._warned: set[str] = set()
        self._failures = 0
        """failed single responses since the last successful call"""

    def judge(self, problems: Sequence[Problem], responses: Sequence[str], keys: Sequence[RowKey]) -> list[Verdict]:
        """The function's rewards; unscored if it returns None, raises, times out or crashes.

        Raises:
            VerificationError: the function cannot be imported.
            MethodError: it did not return a number in [0, 1] or None for each response.
        """
        result = self._call(problems, responses)
        if isinstance(result, str):
            if len(responses) == 1 or self._failures >= MAX_FAILURES:
                return self._unscored(result, problems)
            if result == self._timeout:
                return self._one_by_one(problems, responses, keys)
            half = len(responses) // 2
            first_verdicts = self.judge(problems[:half], responses[:half], keys[:half])
            rest = problems[half:], responses[half:], keys[half:]
            has_failed = self._failures >= MAX_FAILURES
            return [*first_verdicts, *(self._unscored(result, rest[0]) if has_failed else self.judge(*rest))]
        self._failures = 0
        if len(result) != len(responses):
            raise MethodError(
                f"reward {self._name}: returned {len(result)} rewards for {len(responses)} responses, expected one each"
            )
        return [self._verdict(reward, key) for reward, key in zip(result, keys, strict=True)]

    def _one_by_one(
        self, problems: Sequence[Problem], responses: Sequence[str], keys: Sequence[RowKey]
    ) -> list[Verdict]:
        """Verdicts of single calls; after MAX_FAILURES timeouts the rest is unscored without a call."""
        verdicts: list[Verdict] = []
        for row in range(len(responses)):
            if sum(verdict.reason.startswith(self._timeout) for verdict in verdicts) >= MAX_FAILURES:
                num_left = len(responses) - row
                reason = f"{self._timeout} for {MAX_FAILURES} other responses of its batch; not called"
                _log.warning(
                    "reward %s: %s for %d responses of a batch; the %d behind them are unscored without a call",
                    *(self._name, self._timeout, MAX_FAILURES, num_left),
                )
                return [*verdicts, *[Verdict("unscored", None, None, 0.0, reason)] * num_left]
            verdicts += self.judge(problems[row : row + 1], responses[row : row + 1], keys[row : row + 1])
        return verdicts

    def _unscored(self, reason: str, problems: Sequence[Problem]) -> list[Verdict]:
        """Verdicts on the responses of a failed call that is not divided."""
        if self._failures >= MAX_FAILURES:
            reason = f"{reason}, as for {self._failures} responses before; the function itself fails"
        else:
            self._failures += 1
            if reason not in self._warned:
                _log.warning("reward %s: %s (problem %s)", self._name, reason, problems[0].id)
                self._warned.add(reason)
        return [Verdict("unscored", None, None, 0.0, reason)] * len(problems)

    def _verdict(self, reward: Any, key: RowKey) -> Verdict:
        if reward is None:
            return Verdict("unscored", None, None, 0.0, f"{self._name}: None")
        is_number = isinstance(reward, int | float) or hasattr(reward, "__float__")
        value = float(reward) if is_number else math.nan
        if not 0.0 <= value <= 1.0:
            raise MethodError(
                f"reward {self._name}: got {reward!r} for step {key.step}, {key.agent}, problem {key.problem_id!r}, "
                f"sample {key.sample}, expected a number in [0, 1], or None if it cannot be scored; scale it"
            )
        return Verdict(status_of(value), value, None, 0.0)

    def _call(self, problems: Sequence[Problem], responses: Sequence[str]) -> list[Any] | str:
        """What the function returned, or the reason why it failed."""
        if not responses:
            return []
        # The worker has one thread, so calls queue: agents may be verified in parallel.
        call = self._worker.thread.submit(self._worker.call, list(problems), list(responses), timeout_s=self._timeout_s)
        reply = call.result()
        if reply.failure:
            reasons = {"timeout": self._timeout, "crashed": "its process died"}
            return reasons.get(reply.failure, reply.failure)
        rewards: list[Any] = reply.value
        return rewards

    def close(self) -> None:
        """Kill the process."""
        self._worker.close()


class Rewards(AbstractContextManager["Rewards"]):
    """All reward functions of an experiment, with their weights."""

    def __init__(self, functions: Sequence[RewardFunction], weights: Sequence[float]) -> None:
        self._functions, self._weights = tuple(functions), tuple(weights)

    def judge(self, problems: Sequence[Problem], responses: Sequence[str], keys: Sequence[RowKey]) -> list[Verdict]:
        """Weighted mean of all functions; unscored if any of them cannot score.

        Raises:
            VerificationError: a function cannot be called.
            MethodError: a function returned an invalid reward.
        """
        verdicts_by_function = [function.judge(problems, responses, keys) for function in self._functions]
        if len(verdicts_by_function) == 1:
            return verdicts_by_function[0]
        return [self._mean(verdicts) for verdicts in zip(*verdicts_by_function, strict=True)]

    def _mean(self, verdicts: Sequence[Verdict]) -> Verdict:
        seconds = sum(verdict.seconds for verdict in verdicts)
        extracted = next((verdict.extracted for verdict in verdicts if verdict.extracted is not None), None)
        rewards = [verdict.reward for verdict in verdicts]
        scored_rewards = [reward for reward in rewards if reward is not None]
        if len(scored_rewards) < len(rewards):
            reason = next(verdict.reason for verdict in verdicts if verdict.reward is None)
            return Verdict("unscored", None, extracted, seconds, reason)
        total = sum(weight * reward for weight, reward in zip(self._weights, scored_rewards, strict=True))
        reward = min(1.0, total / sum(self._weights))
        return Verdict(status_of(reward), reward, extracted, seconds, parts=tuple(scored_rewards))

    def close(self) -> None:
        """Close all functions."""
        for function in self._functions:
            function.close()

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def status_of(reward: float) -> Any:
    """Correct for reward 1, wrong for 0, else partial."""
    return "correct" if reward == 1.0 else "wrong" if reward == 0.0 else "partial"
