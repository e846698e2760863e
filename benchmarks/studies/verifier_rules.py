"""What each family of the verifier's rules decides: verdicts with all of them, without one, and of bare math-verify.

    labelled   distinct answers of the 3,116 completions in model_outputs.jsonl, with their labels
    rewritten  gold answers of the data sets in other spellings (right), and changed (wrong): tests/verify/rewritten.py
    written    the pairs of tests/verify/pairs and test_answers.py

Usage: HACPO_DATA_DIR=... python -m benchmarks.studies.verifier_rules [--every 50] [--families NAME ...]; writes
benchmarks/results/verifier_rules.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from math_verify import parse, verify

from benchmarks.measure import write_result
from hacpo_core.data.rows import read_rows
from hacpo_core.verify import algebra, bases, clock, domains, equality, lists, marks, parsing, points, spelling, units
from hacpo_core.verify.answers import extract_answer
from hacpo_core.verify.cache import Pair as CachedPair
from hacpo_core.verify.pool import decided_without_algebra
from tests.verify import test_answers
from tests.verify.rewritten import REWRITTEN, changes
from tests.verify.test_equality import pairs

Pair = tuple[str, str, bool]
"""answer, gold, and whether they are equal"""
NEVER = re.compile(r"(?!)()()()()")  # the groups are those to which replacements refer
LIMIT_S = 2


def _same(given: Any, *_: Any) -> Any:
    return given


PATTERNS = {
    "words": (equality, "_WORD"),
    "negation": (equality, "_NEGATION"),
    "clock times": (clock, "CLOCK"),
    "other bases": (bases, "IN_BASE"),
    "closed at infinity": (equality, "_CLOSED_AT_INFINITY"),
    "percent": (units, "_PERCENT"),
    "degree signs": (units, "_DEGREES"),
    "terms": (parsing, "_TERM"),
    "sentences": (parsing, "SENTENCE"),
    "two numbers": (parsing, "_TWO_NUMBERS"),
    "scientific": (parsing, "_SCIENTIFIC"),
    "point of an integer": (parsing, "_POINT_OF_INTEGER"),
    "repeating decimals": (parsing, "_REPEATING"),
    "mixed numbers": (parsing, "_MIXED_NUMBER"),
    "factors in brackets": (parsing, "_FACTOR"),
    "approximately": (parsing, "_APPROXIMATELY"),
    "amounts": (parsing, "_AMOUNT"),
    "thousands": (spelling, "_SEPARATED"),
    "thousands with spaces": (spelling, "_SPACED_GROUPS"),
    "layout": (spelling, "_LAYOUT"),
    "row spacing": (spelling, "_ROW_SPACING"),
    "decoration": (spelling, "_DECORATION"),
    "arguments without braces": (spelling, "_TAKES_ARGUMENTS"),
    "bases of logarithms": (spelling, "_LOG_BASE"),
    "variable of an interval": (spelling, "_VARIABLE_OF"),
    "domains": (domains, "_CLAUSE"),
    "degrees in functions": (spelling, "_ANGLE"),
    "money": (spelling, "_CURRENCY_SIGN"),
    "degrees in words": (spelling, "_DEGREES"),
    "signs behind an answer": (spelling, "_IDLE_END"),
    "named coordinates": (lists, "_NAMED"),
    "names of a point": (lists, "_NAMES"),
    "primes and transposed matrices": (marks, "_MARK"),
    "numbers in text": (marks, "_NUMBER_IN_TEXT"),
    "primes in formulas": (parsing, "_DERIVATIVE"),
    "articles": (spelling, "_ARTICLE"),
    "units in fractions": (spelling, "_UNIT_FRACTION"),
    "feet and inches": (units, "_PRIMES"),
}
FUNCTIONS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "options, yes and no": (equality, "first_words_agree", lambda *_: None),
    "letters": (equality, "_letters", _same),
    "members": (equality, "_members_agree", lambda *_: None),
    "units": (equality, "without_last_unit", lambda answer: (answer, None)),
    "different units": (equality, "units_differ", lambda *_: False),
    "chains": (
        equality,
        "_chain_agrees",
        lambda sides, *other: equality._single_values_agree(" = ".join(sides), *other),
    ),
    "repeated members": (equality, "_has_repeated", lambda *_: False),
    "conjunctions": (equality, "_is_conjunction", lambda _: False),
    "rows of equations": (spelling, "in_one_row", _same),
    "powers of matrices": (parsing, "_with_matrix_powers", _same),
    "capitals": (equality, "capitals_agree", lambda *_: True),
    "shares": (equality, "is_share", lambda _: False),
    "intervals": (algebra, "_numbers_of", lambda _: None),
    "infinity": (algebra, "_computes_with_infinity", lambda _: False),
    "rounding": (algebra, "_differ", lambda *_: False),
    "decimals": (algebra, "_is_same_decimal", lambda *_: False),
    "real numbers": (algebra, "agree_on_real_numbers", lambda *_: False),
    "e and i": (algebra, "_constants_of_both", lambda *sides: sides),
    "Unicode": (spelling, "_with_latex_signs", _same),
    "exclusions": (equality, "_exclusions_agree", lambda *_: None),
    "set builders": (spelling, "without_builder", _same),
    "numbers in words": (spelling, "with_digits", _same),
    "ratios": (equality, "ratios_agree", lambda *_: None),
    "equations to solve": (equality, "is_to_solve", lambda _: False),
    "multiples": (algebra, "are_multiples", lambda *_: False),
    "split logarithms": (points, "_with_split_logarithms", lambda *sides: sides),
    "derivatives as names": (algebra, "_with_named_derivatives", _same),
    "intervals with letters": (equality, "interval", _same),
    "decimals in sets": (algebra, "_exact", _same),
}


class Watched:
    """A pattern that notes when it finds something, which NEVER does not."""

    def __init__(self, pattern: re.Pattern[str], note: Callable[[], None]) -> None:
        self._pattern, self._note = pattern, note

    def __getattr__(self, name: str) -> Any:
        """A method of the pattern."""

        def method(*args: Any, **options: Any) -> Any:
            found = getattr(self._pattern, name)(*args, **options)
            if found != getattr(NEVER, name)(*args, **options):
                self._note()
            return found

        return method


def _watched(function: Callable[..., Any], without: Callable[..., Any], note: Callable[[], None]) -> Callable[..., Any]:
    """A function that notes when its result is another than `without` gives."""

    def call(*args: Any) -> Any:
        result = function(*args)
        try:
            is_same = result == without(*args)
        except Exception:  # noqa: BLE001 - a failure of a library is another result
            is_same = False
        if is_same is not True:
            note()
        return result

    return call


@contextmanager
def watching(effective: set[str]) -> Iterator[None]:
    """Collect the families whose rules have an effect in `effective`; the others change no verdict."""
    with ExitStack() as stack:
        for family, (module, name) in PATTERNS.items():
            pattern = Watched(getattr(module, name), partial(effective.add, family))
            stack.enter_context(patch.object(module, name, pattern))
        for family, (module, name, replacement) in FUNCTIONS.items():
            function = _watched(getattr(module, name), replacement, partial(effective.add, family))
            stack.enter_context(patch.object(module, name, function))
        yield


@contextmanager
def without(family: str) -> Iterator[None]:
    """Turn a family of rules off."""
    with ExitStack() as stack:
        if family in PATTERNS:
            stack.enter_context(patch.object(*PATTERNS[family], NEVER))
        elif family in FUNCTIONS:
            stack.enter_context(patch.object(*FUNCTIONS[family]))
        parsing.parsed.cache_clear()
        yield
    parsing.parsed.cache_clear()


class _TooLongError(Exception):
    pass


def _stop(number: int, frame: FrameType | None) -> None:
    raise _TooLongError


def verdict(judge: Callable[[str, str], bool], answer: str, gold: str) -> str:
    """The verdict correct or wrong, or the name of what stopped it."""
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)  # of this process, whatever else the machine does
    try:
        return "correct" if judge(answer, gold) else "wrong"
    except Exception as error:  # noqa: BLE001 - a failure of a library is data
        return type(error).__name__
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def bare(answer: str, gold: str) -> bool:
    """math-verify alone, as its documentation uses it."""
    return bool(
        verify(
            parse(f"${gold}$", parsing_timeout=None), parse(f"${answer}$", parsing_timeout=None), timeout_seconds=None
        )
    )


def cases(folder: Path, every: int) -> dict[str, list[Pair]]:
    """Distinct pairs of each kind about which the rules decide."""
    found: dict[str, list[Pair]] = {"labelled": [], "rewritten": [], "written": []}
    golds: dict[str, None] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for each in read_rows(path):
            row = each.values
            if "completion" not in row:
                golds |= {row["answer"]: None} if row["answer"] else {}
            elif (answer := extract_answer(row["completion"], style="auto")) is not None:
                found["labelled"].append((answer, row["answer"], bool(row["label"])))
    for gold in list(golds)[::every]:
        found["rewritten"] += [(rewrite(gold), gold, True) for rewrite in REWRITTEN.values() if rewrite(gold) != gold]
        found["rewritten"] += [(answer, gold, False) for _, answer in changes(gold)]
    tests: tuple[tuple[str, Any, bool], ...] = (
        ("right", test_answers.test_equal_answers_are_equal, True),
        ("wrong", test_answers.test_other_answers_are_not_equal, False),
    )
    for file, test, is_equal in tests:
        found["written"] += [(answer, gold, is_equal) for gold, answer in pairs(file)]
        found["written"] += [(*pair, is_equal) for pair in test.pytestmark[0].args[1]]
    return {kind: [pair for pair in dict.fromkeys(each) if _needs_rules(pair)] for kind, each in found.items()}


def _needs_rules(pair: Pair) -> bool:
    """False if the pool decides without the rules, or if they take longer than LIMIT_S."""
    if decided_without_algebra(CachedPair(pair[0], pair[1])) is not None:
        return False
    return verdict(equality.answers_equal, pair[0], pair[1]) != _TooLongError.__name__


def _num_right(each: list[Pair], verdicts: dict[Pair, str]) -> int:
    return sum((verdicts[pair] == "correct") == pair[2] for pair in each)


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=50, help="take each n-th gold answer of the data sets")
    parser.add_argument("--families", nargs="+", default=[*PATTERNS, *FUNCTIONS], help="those to take out")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGVTALRM, _stop)
    made = cases(Path(os.environ["HACPO_DATA_DIR"]), arguments.every)
    effects: dict[Pair, set[str]] = {}
    ours: dict[Pair, str] = {}
    effective: set[str] = set()
    with watching(effective):
        for pair in (pair for each in made.values() for pair in each):
            effective.clear()
            parsing.parsed.cache_clear()
            ours[pair] = verdict(equality.answers_equal, *pair[:2])
            effects[pair] = set(effective)
    agreement = {
        "ours": {kind: _num_right(each, ours) / len(each) for kind, each in made.items()},
        "math-verify": {
            kind: _num_right(each, {pair: verdict(bare, *pair[:2]) for pair in each}) / len(each)
            for kind, each in made.items()
        },
    }
    numbers = {kind: len(each) for kind, each in made.items()}
    print(json.dumps([numbers, agreement]), flush=True)
    families: dict[str, Any] = {}
    for family in arguments.families:
        families[family] = {}
        for kind, each in made.items():
            with without(family):
                changed = [
                    pair
                    for pair in each
                    if family in effects[pair] and verdict(equality.answers_equal, *pair[:2]) != ours[pair]
                ]
            families[family][kind] = {
                "decides": len(changed),
                "rightly": _num_right(changed, ours),
                "example": [*changed[0][:2], ours[changed[0]]] if changed else None,
            }
        print(family, json.dumps(families[family]), flush=True)
    write_result("verifier_rules", {"pairs": numbers, "agreement": agreement, "families": families}, ["math-verify"])


if __name__ == "__main__":
    main()
