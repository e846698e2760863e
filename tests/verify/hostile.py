"""Responses made with a seed: hostile ones, and those of `known.py`, whose truth is known by construction."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.verify.known import KNOWN

_GOLDS = ("27", "-3.5", r"\frac{7}{11}", r"5\sqrt{3}", "x^2+1", "[2,3)", r"\{1,2\}", "(3,5)")
_WRAPPERS = (
    r"\boxed{ANSWER}",
    r"\boxed{\boxed{ANSWER}}",
    r"first \boxed{27 and then $\boxed{ANSWER}$",
    r"\fbox{ANSWER}",
    "#### ANSWER",
    "The answer is $ANSWER$",
    '{"answer": "ANSWER"}',
    "ANSWER",
)
Hostile = Callable[[random.Random, str], str]
"""An answer; it may contain the gold one."""


@dataclass(frozen=True, slots=True)
class Case:
    """A response, the gold answer, and whether they are equal; None: not known."""

    kind: str
    text: str
    gold: str
    is_equal: bool | None


def cases(number: int, *, seed: int) -> list[Case]:
    """Hostile and known cases in equal numbers, each of all kinds, in random order."""
    rng = random.Random(seed)
    kinds = [list(HOSTILE), list(KNOWN)]
    made = [_case(kinds[index % 2][index // 2 % len(kinds[index % 2])], rng) for index in range(number)]
    rng.shuffle(made)
    return made


def _case(kind: str, rng: random.Random) -> Case:
    if kind in KNOWN:
        given, gold, is_equal = KNOWN[kind](rng)
        return Case(kind, rf"so the answer is $\boxed{{{given}}}$.", gold, is_equal)
    gold = rng.choice(_GOLDS)
    text = rng.choice(_WRAPPERS).replace("ANSWER", HOSTILE[kind](rng, gold))
    return Case(kind, text, gold, False if kind in NEVER_EQUAL else None)


def _tower(rng: random.Random, gold: str) -> str:
    bases = rng.choices(("9", "10", "99", "e", r"\pi", "2.5", "(-3)", "(1+10^{-9})"), k=rng.randint(4, 30))
    return "^{".join(bases) + "}" * (len(bases) - 1)


def _factorial(rng: random.Random, gold: str) -> str:
    number = 10 ** rng.randint(3, 9)
    products = (rf"\frac{{{number}!}}{{{number - 1}! + 1}}", rf"\binom{{{number}}}{{{number // 2}}}")
    return rng.choice((f"{number}!", f"({number}!)!", f"{number}!!", "9!!!!!!!!", *products))


def _brackets(rng: random.Random, gold: str) -> str:
    depth = rng.choice((5, 50, 500, 2_000))
    pairs = (("(", ")"), ("[", "]"), ("{", "}"), (r"\left(", r"\right)"), ("|", "|"))
    opening, closing = rng.choice((*pairs, (r"\frac{1}{", "}"), (r"\sqrt{", "}")))
    return opening * depth + gold + closing * (depth - rng.choice((0, 0, 1, depth)))


def _digits(rng: random.Random, gold: str) -> str:
    digits = "".join(rng.choices("0123456789", k=rng.choice((100, 1_500, 5_000, 100_000))))
    forms = r"9{} -9{} 1.9{} 9{}/7 \frac{{9{}}}{{7{}1}} 0.{}9e5"
    return rng.choice(forms.split()).format(digits, digits)


def _exponent(rng: random.Random, gold: str) -> str:
    forms = r"1e{} 1e-{} 1.5E+{} 2\times10^{{{}}} 3\cdot10^{{-{}}} 0.1^{{{}}} 7^{{-{}}} 2**{}"
    return rng.choice(forms.split()).format(10 ** rng.randint(2, 12))


def _unicode(rng: random.Random, gold: str) -> str:
    points = (0, 7, 27, 0x85, 0xAD, 0x200B, 0x202E, 0x2028, 0xD800, 0xDFFF, 0xFEFF, 0xFFFF, 0x1D7D9, 0xE0001)
    noise = "".join(map(chr, rng.choices(points, k=rng.randint(1, 60))))
    return rng.choice((noise, f"{noise}{gold}", f"{gold}{noise}"))


def _digits_of_other_scripts(rng: random.Random, gold: str) -> str:
    zero = rng.choice((0x0660, 0x0966, 0xFF10, 0x1D7CE))
    return "".join(chr(zero + int(digit)) for digit in str(rng.randrange(10**6, 10**9)))


def _macros(rng: random.Random, gold: str) -> str:
    definitions = (r"\def\x{\x\x}\x", r"\newcommand{\a}{\a}\a", r"\input{/etc/passwd}", r"\write18{id}", r"\csname a")
    others = (r"\loop\iftrue\repeat", r"\catcode`\%=12", r"\begin{verbatim}", r"\end{document}", r"\expandafter" * 200)
    return "".join(rng.choices((*definitions, *others), k=rng.randint(1, 5)))


def _noise(rng: random.Random, gold: str) -> str:
    signs = r"{ } ( ) [ ] ^ _ & \\ $ = , 1 x ! | % # ~ \ < -"
    commands = r"\frac \sqrt \text{ \left \right \int \sum_ \lim_ \begin{matrix}"
    return "".join(rng.choices([*signs.split(), *commands.split()], k=rng.choice((3, 10, 40, 300))))


def _python(rng: random.Random, gold: str) -> str:
    calls = "__import__('os')._exit(0) exit() ().__class__.__mro__[1].__subclasses__() 'a'*10**10 [0]*10**10 eval('1')"
    return rng.choice((*calls.split(), "lambda: 0", "raise SystemExit", "open('/etc/passwd').read()"))


def _algebra(rng: random.Random, gold: str) -> str:
    large = rng.randint(20, 400)
    nested = "x"
    for _ in range(large // 8):
        nested = rf"\sqrt{{{nested}+\sin({rng.randint(1, 9)}x)}}"
    forms = (
        "".join(f"(x+{rng.randint(1, 99)}y-{rng.randint(1, 9)}z)" for _ in range(large // 4)),
        rf"(x+y+z+w)^{{{large * 10}}}",
        nested,
        rf"\int_0^{{{large}}} e^{{-x^{{{large}}}}}\sin(x^x) dx",
        rf"\sum_{{n=1}}^{{{10**9}}} \frac{{1}}{{n^{{{large}}}}}",
        rf"\prod_{{n=1}}^{{{10**6}}} (1+\frac{{1}}{{n!}})",
        rf"\lim_{{x \to 0}} \frac{{\sin(x^{{{large}}})}}{{x^x - 1}}",
        rf"\gcd({10**large}!, {7**large})",
        rf"{7**large} \mod {3**large}",
        rf"\sin(\cos(\tan({large}^{{{large}}})))",
    )
    return rng.choice(forms)


def _solving(rng: random.Random, gold: str) -> str:
    degree = rng.randint(5, 40)
    forms = (
        f"x^{{{degree}}}+{rng.randint(2, 99)}x+1<0",
        rf"\sin(x)>x^{{{degree}}}",
        rf"e^x+x^{{{degree}}} \le \pi, x>\log(x)",
        rf"x \in [{degree}!, 10^{{{degree}^{{{degree}}}}}]",
        r"\cup".join(f"({number},{number + 1})" for number in range(2 * degree)),
        f"{'+'.join(f'|x-{number}|' for number in range(1, degree))}<{degree}",
    )
    return rng.choice(forms)


def _matrix(rng: random.Random, gold: str) -> str:
    num_rows, num_columns = rng.choice(((1, 1), (2, 2), (3, 50), (30, 30), (1, 400)))
    rows = (rng.choices(("1", "x", r"\frac{1}{9}", "9^{9^9}", ""), k=num_columns) for _ in range(num_rows))
    body, power = r"\\".join(map("&".join, rows)), rng.choice(("", "^{-1}", "^{999}", "^T", "!"))
    return rf"\begin{{pmatrix}}{body}\end{{pmatrix}}{power}"


def _list(rng: random.Random, gold: str) -> str:
    starts = rng.choices(("1", "x", r"\sqrt{2}", "2^{0.5}", "9^{99}"), k=rng.choice((10, 300, 900)))
    entries = ",".join(f"{start}{rng.randint(0, 99)}" for start in starts)
    return rng.choice(("{}", "({})", r"\{{{}\}}", "[{}]")).format(entries)


def _repeated(rng: random.Random, gold: str) -> str:
    units = (r"\boxed{", "{", "}", "$", "1+", "-", "x*", r"\frac{1}", r"\pm ", "answer is ", "####", "1,234", "!")
    return rng.choice(units) * rng.choice((30, 900, 20_000))


HOSTILE: dict[str, Hostile] = {
    "tower of powers": _tower,
    "factorial": _factorial,
    "deep brackets": _brackets,
    "long digits": _digits,
    "huge exponent": _exponent,
    "unicode, NUL, surrogates": _unicode,
    "digits of other scripts": _digits_of_other_scripts,
    "TeX macros": _macros,
    "malformed LaTeX": _noise,
    "Python code": _python,
    "heavy algebra": _algebra,
    "inequalities to solve": _solving,
    "matrices": _matrix,
    "long lists": _list,
    "one thing repeated": _repeated,
}
NEVER_EQUAL = set(HOSTILE) & {
    *("tower of powers", "factorial", "long digits", "huge exponent", "digits of other scripts", "Python code"),
    "long lists",
}
"""kinds whose answers never have the value of a gold answer"""
