"""Verify answers in worker processes that can be killed.

    texts ──extract──▶ candidates ──same text────▶ correct
                            │  no answer ────────▶ wrong
                            │  in the cache ─────▶ cached verdict
                            └─ unique pairs ──▶ queue ──▶ workers ──▶ correct | wrong
                                                              └─ timeout, crash ──▶ unscored

With `equality="normalised"`, no worker is needed: the last \\boxed{} is compared as text (`verify/normalised.py`).

This file does not import sympy, and verdicts do not depend on signals, threads or the order of the texts.
"""

import os
import re
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from hacpo_core.errors import VerificationError
from hacpo_core.records import AnswerStyle, Equality, Gold, Verdict, VerdictStatus
from hacpo_core.verify.answers import MAX_ANSWER_CHARS, UNREADABLE, after_reasoning, extract_answer, normalise
from hacpo_core.verify.normalised import boxed_answer, normal_form
from hacpo_core.verify.process import Reply, Worker

CACHE_ENTRIES = 100_000
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
_WHOLE_NUMBER = re.compile(r"-?[0-9]+")
_START_MESSAGE = (
    "a verifier worker cannot compare answers: {why}; see that `python -c 'import sympy, pint'` works in this "
    "environment (pip install sympy pint) and that verifier.memory_mb leaves room for sympy (256 or more)"
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A candidate and the gold answer it is compared with; for the other fields see `records.Gold`."""

    candidate: str
    gold: str
    unit: str = ""
    tolerance: float = 0.0


class VerifierPool(AbstractContextManager["VerifierPool"]):
    """Workers that compare answers; each is started on first use, reused, and replaced if it dies.

    Calls from several threads run one after another. A pool cannot be used in a forked process.
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
        reasoning_end: str = "",
        requires_reasoning: bool = False,
    ) -> None:
        """
        Args:
            num_workers: number of processes, > 0; each uses one core.
            timeout_s: wall-clock limit of one comparison, > 0, s; it excludes the start of a worker.
            memory_mb: limit of a worker's address space, MiB; sympy alone needs almost 256.
            style: how to extract the answer from a response.
            equality: "math_verify": algebra; "normalised": compare the last \\boxed{} as text, for any style.
            cache: cache the last CACHE_ENTRIES verdicts between calls.
            reasoning_end: only text behind this mark can hold an answer, see `after_reasoning`; "": any text.
            requires_reasoning: whether a response without the mark has no answer.
        """
        self._timeout_s = timeout_s
        self._style = style
        self._equality = equality
        self._reasoning_end, self._requires_reasoning = reasoning_end, requires_reasoning
        self._cache: dict[Pair, VerdictStatus] = {}
        self._max_cached = CACHE_ENTRIES if cache else 0
        self._workers = [_worker(memory_mb=memory_mb) for _ in range(num_workers)]
        self._lock = threading.Lock()
        self._is_closed = False

    def verify(
        self, texts: Sequence[str], golds: Sequence[Gold | str], *, style: AnswerStyle | None = None
    ) -> list[Verdict]:
        """Verdict on each response, in order.

        `seconds` is the time of the comparison; responses that share one report it once, cached ones report 0.

        Args:
            texts: responses.
            golds: reference answers; a string is a gold answer without unit or tolerance.
            style: how to extract the answers; None: the pool's style.

        Raises:
            ValueError: texts and golds differ in number.
            VerificationError: no worker can start, or the pool is closed. A bad answer raises nothing.
        """
        if self._reasoning_end:
            end, is_required = self._reasoning_end, self._requires_reasoning
            texts = [after_reasoning(text, end=end, is_required=is_required) for text in texts]
        return self._judged(texts, golds, style or self._style)

    def _judged(self, texts: Sequence[str], golds: Sequence[Gold | str], style: AnswerStyle) -> list[Verdict]:
        """Verdicts on texts without reasoning."""
        if self._equality == "normalised":
            return [_verdict_of_text(text, gold) for text, gold in zip(texts, golds, strict=True)]
        candidates = [extract_answer(text, style=style) for text in texts]
        pairs = [
            None if candidate is None else _pair(candidate, gold)
            for candidate, gold in zip(candidates, golds, strict=True)
        ]
        with self._lock:
            if self._is_closed:
                raise VerificationError("the verifier pool is closed; make a new one")
            verdicts = self._verdicts(dict.fromkeys(pair for pair in pairs if pair is not None))
        text_verdicts = []
        for pair in pairs:
            text_verdicts.append(_verdict("wrong", None) if pair is None else verdicts[pair])
            if pair is not None:
                verdicts[pair] = replace(verdicts[pair], seconds=0.0)
        return text_verdicts

    def unreadable(self, golds: Iterable[str]) -> list[str]:
        """Gold answers of which spellings other than their own cannot be judged, each once.

        Raises:
            VerificationError: see `verify`.
        """
        if self._equality == "normalised":
            return []
        distinct_golds = dict.fromkeys(gold for gold in golds if not _WHOLE_NUMBER.fullmatch(gold))
        if not distinct_golds:
            return []
        spelling_verdicts = self._judged([f"not {gold}" for gold in distinct_golds], list(distinct_golds), "plain")
        verdicts = zip(distinct_golds, spelling_verdicts, strict=True)
        return [gold for gold, verdict in verdicts if verdict.status == "unscored"]

    def close(self) -> None:
        """Kill the workers; safe to repeat."""
        with self._lock:
            self._is_closed = True
            for worker in self._workers:
                worker.close()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _verdicts(self, pairs: Iterable[Pair]) -> dict[Pair, Verdict]:
        """Verdict on each pair: without algebra, from the cache or from a worker."""
        verdicts = {}
        undecided_pairs = []
        for pair in pairs:
            decision = decided_without_algebra(pair) or self._cache.get(pair)
            if decision is None:
                undecided_pairs.append(pair)
            else:
                verdicts[pair] = _verdict(decision, pair)
        for pair, reply in self._compare(undecided_pairs).items():
            status: VerdictStatus
            status, reason = ("unscored", reply.failure) if reply.failure else reply.value
            if status != "unscored" and self._max_cached:
                self._cache[pair] = status
            if len(self._cache) > self._max_cached:
                del self._cache[next(iter(self._cache))]  # the oldest
            verdicts[pair] = _verdict(status, pair, seconds=reply.seconds, reason=reason)
        return verdicts

    def _compare(self, pairs: Sequence[Pair]) -> dict[Pair, Reply]:
        """Compare the pairs; each goes to the next free worker."""
        open_pairs, replies = deque(pairs), dict[Pair, Reply]()

        def serve(worker: Worker) -> None:
            while True:
                try:
                    pair = open_pairs.popleft()
                except IndexError:
                    return
                reply = replies[pair] = worker.call(*astuple(pair), timeout_s=self._timeout_s)
                if reply.failure or (reply.value[0] == "unscored" and reply.value[1] != UNREADABLE):
                    worker.end()  # its memory or its libraries may be in a bad state

        futures: list[Future[None]] = []
        try:
            futures.extend(worker.thread.submit(serve, worker) for worker in self._workers[: len(pairs)])
            for future in futures:
                future.result()
        except BaseException:  # no worker can start, or Ctrl-C
            open_pairs.clear()
            for worker in self._workers:
                worker.interrupt()
            wait(futures)
            raise
        return replies


def _worker(*, memory_mb: int) -> Worker:
    search_path = os.pathsep.join(filter(None, (_PACKAGE_ROOT, os.environ.get("PYTHONPATH"))))
    environment = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    # Safe path: never import a sympy.py from the user's folder. Hash seed: the same verdicts in every process.
    environment |= {"PYTHONPATH": search_path, "PYTHONSAFEPATH": "1", "PYTHONHASHSEED": "0"}
    function = "hacpo_core.verify.comparison:compare"
    return Worker(function, memory_mb=memory_mb, environment=environment, message=_START_MESSAGE, is_silent=True)


def _verdict(status: VerdictStatus, pair: Pair | None, *, seconds: float = 0.0, reason: str = "") -> Verdict:
    reward = {"correct": 1.0, "wrong": 0.0, "unscored": None}[status]
    return Verdict(status, reward, None if pair is None else pair.candidate, seconds, reason)


def _verdict_of_text(text: str, gold: Gold | str) -> Verdict:
    """The authors' reward; it ignores units, tolerances and lists."""
    boxed, answer = boxed_answer(text), gold if isinstance(gold, str) else gold.answer
    if answer.startswith("$"):  # mark-up in the data (OlympiadBench), not part of the answer
        answer = answer.strip("$")
    is_right = boxed is not None and normal_form(boxed) == normal_form(answer)
    return Verdict("correct" if is_right else "wrong", float(is_right), boxed, 0.0)


def _pair(candidate: str, gold: Gold | str) -> Pair:
    if isinstance(gold, str):
        return Pair(candidate=candidate, gold=gold)
    return Pair(candidate, gold.answer, unit=gold.unit, tolerance=gold.tolerance)


def decided_without_algebra(pair: Pair) -> VerdictStatus | None:
    """Status of a pair that needs no algebra, else None.

    Equal text is correct. An answer longer than MAX_ANSWER_CHARS is wrong, and so is a different integer if the gold
    answer is an integer without tolerance.
    """
    candidate, expected = normalise(pair.candidate), normalise(pair.gold)
    if expected and candidate == expected:
        return "correct"
    if max(len(pair.candidate), len(pair.gold)) > MAX_ANSWER_CHARS:
        return "wrong"
    if not pair.tolerance and _WHOLE_NUMBER.fullmatch(candidate) and _WHOLE_NUMBER.fullmatch(expected):
        return "correct" if int(candidate) == int(expected) else "wrong"
    return None
