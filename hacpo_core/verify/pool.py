"""Verified rewards from processes that can be killed.

    texts ──extract──▶ candidates ──same letters──▶ correct
                            │  none ─────────────▶ wrong
                            │  decided before ───▶ the cached verdict
                            └─ unique pairs ──▶ idle workers ──▶ correct | wrong
                                                    └─ killed at its limit, crashed ──▶ unscored

With `equality="normalised"` none of this happens: the last \\boxed{} is compared as text (`verify/normalised.py`).

Nothing here imports sympy, and no verdict depends on signals, threads or the order of the texts.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Literal, Self

from hacpo_core.errors import VerificationError
from hacpo_core.records import Gold, Verdict
from hacpo_core.verify.answers import MAX_ANSWER_CHARS, AnswerStyle, extract_answer, normalise
from hacpo_core.verify.cache import Decision, DecisionCache
from hacpo_core.verify.normalised import boxed_answer, normal_form
from hacpo_core.verify.process import Compared, Gone, Pair, Reply, StartFailed, Taken, Undecided, WorkerProcess

Equality = Literal["math_verify", "normalised"]

CACHE_ENTRIES = 100_000
START_TIMEOUT_S = 120.0
_MAX_LOSSES = 3
_WHOLE_NUMBER = re.compile(r"-?[0-9]+")
_REMEDY = (
    "see that `python -c 'import math_verify'` works in this environment (pip install math-verify) "
    "and that verifier.memory_mb leaves room for sympy (256 or more)"
)


@dataclass(frozen=True, slots=True)
class PoolStats:
    """What a pool has done so far.

    Each call looks every pair that needs algebra up once: `cache_hits` pairs were decided by a former call,
    `cache_misses` went to a worker. `num_worker_starts` counts processes, replacements included.
    """

    cache_hits: int
    cache_misses: int
    cache_entries: int
    num_unscored: int
    num_worker_starts: int


@dataclass(frozen=True, slots=True)
class _Busy:
    """A pair that a worker was handed, or has `taken`, at `since` (monotonic seconds)."""

    pair: Pair
    since: float
    is_taken: bool


@dataclass(frozen=True, slots=True)
class _Outcome:
    pair: Pair
    decision: Decision
    seconds: float


class VerifierPool:
    """Workers that compare answers; started when first needed, reused, replaced when they die.

    Calls from several threads take turns. A pool belongs to the process that made it.
    """

    def __init__(
        self,
        *,
        num_workers: int,
        timeout_s: float,
        memory_mb: int,
        style: AnswerStyle,
        equality: Equality = "math_verify",
        cache: bool = True,
    ) -> None:
        """
        Args:
            num_workers: processes, > 0; each keeps one core busy.
            timeout_s: wall-clock limit of one comparison in seconds, > 0; the start of a worker does not count.
            memory_mb: limit of a worker's address space in MiB; below 256 little room is left beside sympy.
            style: how the answer is found in a response.
            equality: "math_verify" compares by algebra; "normalised" the last \\boxed{} as text, whatever the style.
            cache: keep the decided pairs of former calls, the CACHE_ENTRIES last used.

        Raises:
            ValueError: a number is not positive.
        """
        if num_workers < 1 or timeout_s <= 0 or memory_mb < 1:
            raise ValueError(
                f"num_workers, timeout_s and memory_mb must be positive: got {num_workers}, {timeout_s}, {memory_mb}"
            )
        self._num_workers = num_workers
        self._timeout_s = timeout_s
        self._memory_mb = memory_mb
        self._style = style
        self._equality = equality
        self._cache = DecisionCache(num_entries=CACHE_ENTRIES if cache else 0)
        self._workers: dict[WorkerProcess, _Busy | None] = {}
        # Linux ends a worker with the thread that started it: one thread that lives as long as the pool starts all.
        self._starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="verifier-starter")
        self._lock = threading.Lock()
        self._is_closed = False
        self._num_unscored = self._num_starts = 0

    @property
    def stats(self) -> PoolStats:
        return PoolStats(
            cache_hits=self._cache.hits,
            cache_misses=self._cache.misses,
            cache_entries=len(self._cache),
            num_unscored=self._num_unscored,
            num_worker_starts=self._num_starts,
        )

    @property
    def worker_pids(self) -> tuple[int, ...]:
        return tuple(worker.pid for worker in tuple(self._workers))

    def verify(
        self, texts: Sequence[str], golds: Sequence[Gold | str], *, style: AnswerStyle | None = None
    ) -> list[Verdict]:
        """Verdict on each response, in order.

        `seconds` is the time of the comparison that this call paid for, on the first response that needed it.

        Args:
            texts: responses.
            golds: reference answers; a plain text is one of which nothing else is known.
            style: how the answer is found in these responses; None: the pool's own way.

        Raises:
            ValueError: texts and golds differ in number.
            VerificationError: no worker can start, or the pool is closed. A bad answer raises nothing.
        """
        if self._equality == "normalised":
            return [_verdict_of_text(text, gold) for text, gold in zip(texts, golds, strict=True)]
        candidates = [extract_answer(text, style=style or self._style) for text in texts]
        pairs = [
            None if candidate is None else _pair(candidate, gold)
            for candidate, gold in zip(candidates, golds, strict=True)
        ]
        with self._lock:
            if self._is_closed:
                raise VerificationError("the verifier pool is closed; make a new one")
            decisions, seconds = self._decide(dict.fromkeys(pair for pair in pairs if pair is not None))
        verdicts = []
        for pair in pairs:
            decision = Decision("wrong") if pair is None else decisions[pair]
            verdicts.append(
                Verdict(
                    status=decision.status,
                    reward={"correct": 1.0, "wrong": 0.0, "unscored": None}[decision.status],
                    extracted=None if pair is None else pair.candidate,
                    seconds=0.0 if pair is None else seconds.pop(pair, 0.0),
                    reason=decision.reason,
                )
            )
        return verdicts

    def close(self) -> None:
        """Kill the workers; safe to repeat."""
        with self._lock:
            self._is_closed = True
            for worker in tuple(self._workers):
                self._retire(worker)
        self._starter.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _decide(self, pairs: Iterable[Pair]) -> tuple[dict[Pair, Decision], dict[Pair, float]]:
        """Decision on each pair, and the seconds of those that went to a worker."""
        decisions: dict[Pair, Decision] = {}
        to_compare: deque[Pair] = deque()
        for pair in pairs:
            decision = decided_without_algebra(pair) or self._cache.get(pair)
            if decision is None:
                to_compare.append(pair)
            else:
                decisions[pair] = decision
        seconds: dict[Pair, float] = {}
        try:
            for outcome in self._compare(to_compare):
                decisions[outcome.pair] = outcome.decision
                seconds[outcome.pair] = outcome.seconds
                self._cache.put(outcome.pair, outcome.decision)
                self._num_unscored += outcome.decision.status == "unscored"
        finally:  # also after an error or Ctrl-C: a late reply must never be taken for the next pair's
            for worker, busy in tuple(self._workers.items()):
                if busy is not None:
                    self._retire(worker)
        return decisions, seconds

    def _compare(self, waiting: deque[Pair]) -> Iterator[_Outcome]:
        """Hand the pairs to workers and yield each one's outcome as it comes."""
        losses = 0  # workers in a row that ended without having taken a pair
        while waiting or any(self._workers.values()):
            losses += self._hand_out(waiting)
            for worker, message in self._messages():
                busy = self._workers[worker]
                match message:
                    case StartFailed(why=why):
                        self._retire(worker)
                        raise VerificationError(f"a verifier worker cannot compare answers: {why}; {_REMEDY}")
                    case Gone(stderr=stderr) if busy is None or not busy.is_taken:
                        self._retire(worker)
                        if busy is not None:
                            waiting.appendleft(busy.pair)
                        losses += 1
                        if losses > self._num_workers + _MAX_LOSSES:
                            raise VerificationError(
                                f"{losses} verifier workers in a row ended by themselves, the last one with "
                                f"{stderr!r}; {_REMEDY}"
                            )
                    case Taken() if busy is not None:
                        self._workers[worker] = _Busy(pair=busy.pair, since=time.monotonic(), is_taken=True)
                    case Compared() | Undecided() | Gone() if busy is not None:
                        losses = 0
                        yield self._outcome(worker, busy, _decision(message))
            yield from self._expire()

    def _hand_out(self, waiting: deque[Pair]) -> int:
        """Give pairs to idle workers, start the workers that are missing; returns how many were found dead."""
        found_dead = 0
        for worker, busy in tuple(self._workers.items()):
            if waiting and busy is None and worker.is_ready:
                self._workers[worker] = _Busy(pair=waiting[0], since=time.monotonic(), is_taken=False)
                if worker.send(waiting[0]):
                    waiting.popleft()
                else:
                    self._retire(worker)
                    found_dead += 1
        num_busy = sum(busy is not None for busy in self._workers.values())
        while len(self._workers) < min(self._num_workers, num_busy + len(waiting)):
            self._starter.submit(self._start_worker).result()
        return found_dead

    def _start_worker(self) -> None:
        """Start a worker and enter it here, in the starter's thread: Ctrl-C in the caller's loses none."""
        self._workers[WorkerProcess(memory_mb=self._memory_mb)] = None
        self._num_starts += 1

    def _messages(self) -> Iterator[tuple[WorkerProcess, Reply]]:
        """Messages of the workers that owe one; none when the next deadline has come."""
        owing = [worker for worker, busy in self._workers.items() if busy is not None or not worker.is_ready]
        until = min(map(self._deadline, owing), default=0.0)
        readable = wait([worker.fileno() for worker in owing], timeout=max(0.0, until - time.monotonic()))
        for worker in owing:
            if worker.fileno() in readable:
                for message in worker.receive():
                    yield worker, message

    def _expire(self) -> Iterator[_Outcome]:
        """Kill the workers whose time is over and that have still said nothing."""
        for worker, busy in tuple(self._workers.items()):
            is_idle = busy is None and worker.is_ready
            if is_idle or time.monotonic() < self._deadline(worker) or wait([worker.fileno()], timeout=0):
                continue
            if busy is None:
                self._retire(worker)
                raise VerificationError(f"a verifier worker was not ready after {START_TIMEOUT_S:.0f} s; {_REMEDY}")
            yield self._outcome(worker, busy, Decision("unscored", "timeout"))

    def _deadline(self, worker: WorkerProcess) -> float:
        busy = self._workers[worker]
        return worker.started_at + START_TIMEOUT_S if busy is None else busy.since + self._timeout_s

    def _outcome(self, worker: WorkerProcess, busy: _Busy, decision: Decision) -> _Outcome:
        """Free a worker of its pair; one that failed is not used again."""
        seconds = time.monotonic() - busy.since
        if decision.status == "unscored":
            self._retire(worker)
        else:
            self._workers[worker] = None
        return _Outcome(pair=busy.pair, decision=decision, seconds=seconds)

    def _retire(self, worker: WorkerProcess) -> None:
        del self._workers[worker]
        worker.kill()


def _verdict_of_text(text: str, gold: Gold | str) -> Verdict:
    """The authors' reward; units, tolerances and lists of answers take no part in it."""
    boxed, answer = boxed_answer(text), gold if isinstance(gold, str) else gold.answer
    if answer.startswith("$"):  # mark-up of a data file (OlympiadBench), no part of the answer
        answer = answer.strip("$")
    is_right = boxed is not None and normal_form(boxed) == normal_form(answer)
    return Verdict("correct" if is_right else "wrong", float(is_right), boxed, 0.0)


def _pair(candidate: str, gold: Gold | str) -> Pair:
    if isinstance(gold, str):
        return Pair(candidate=candidate, gold=gold)
    return Pair(candidate, gold.answer, unit=gold.unit, tolerance=gold.tolerance, is_multiple=gold.is_multiple)


def decided_without_algebra(pair: Pair) -> Decision | None:
    """Decision that needs no algebra: the same letters are correct, an answer of over MAX_ANSWER_CHARS is wrong, and so
    is another whole number where none but the gold one will do.
    """
    given, expected = normalise(pair.candidate), normalise(pair.gold)
    if expected and given == expected:
        return Decision("correct")
    if max(len(pair.candidate), len(pair.gold)) > MAX_ANSWER_CHARS:
        return Decision("wrong")
    if not pair.tolerance and _WHOLE_NUMBER.fullmatch(given) and _WHOLE_NUMBER.fullmatch(expected):
        return Decision("correct" if int(given) == int(expected) else "wrong")
    return None


def _decision(message: Reply) -> Decision:
    match message:
        case Compared(is_equal=is_equal):
            return Decision("correct" if is_equal else "wrong")
        case Undecided(reason=reason):
            return Decision("unscored", reason)
        case _:
            return Decision("unscored", "crashed")
