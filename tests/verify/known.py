"""Pairs of answers that are equal or unequal by construction, as (given, gold, is_equal)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction

Known = Callable[[random.Random], tuple[str, str, bool]]


def _rational(rng: random.Random) -> tuple[str, str, bool]:
    value = Fraction(rng.randint(-200, 200), rng.choice((1, 2, 4, 5, 8, 10, 20, 25)))
    is_equal = rng.random() < 0.5
    other = value if is_equal else value + rng.choice((1, -1, Fraction(1, 7), -2 * value or 1))
    return _spelled(other, rng), _spelled(value, rng), is_equal


def _spelled(value: Fraction, rng: random.Random) -> str:
    sign, top, bottom = "-" * (value < 0), abs(value.numerator), value.denominator
    scale = rng.randint(1, 9)
    spellings = [rf"{sign}\frac{{{top * scale}}}{{{bottom * scale}}}", f"{sign}{top * scale}/{bottom * scale}"]
    if bottom == 1:
        spellings += [f"{sign}{top}", f"{sign}{top}.0", rf"{sign}\sqrt{{{top**2}}}"]
        spellings += [rf"{sign}{top * scale} \div {scale}"]
    if not 10**6 % bottom:
        decimal = f"{abs(float(value)):.6f}".rstrip("0").rstrip(".")
        spellings += [f"{sign}{decimal}", rf"{sign}{float(decimal) * 100:.6f}\times 10^{{-2}}"]
    if top > bottom > 1:
        spellings.append(rf"{sign}{top // bottom}\frac{{{top % bottom}}}{{{bottom}}}")
    return rng.choice(spellings)


def _root(rng: random.Random) -> tuple[str, str, bool]:
    outside, inside = rng.randint(2, 30), rng.choice((2, 3, 5, 6, 7, 10, 11, 13))
    is_equal, root = rng.random() < 0.5, rf"\sqrt{{{inside}}}"
    other = outside if is_equal else outside + 1
    spellings = (rf"\sqrt{{{other**2 * inside}}}", f"{other}{root}", rf"\frac{{{other * inside}}}{{{root}}}")
    return rng.choice(spellings), f"{outside}{root}", is_equal


def _polynomial(rng: random.Random) -> tuple[str, str, bool]:
    one, other = rng.sample(range(1, 20), 2)
    is_equal = rng.random() < 0.5
    shift = 0 if is_equal else rng.randint(1, 5)
    return rf"x^2 + {one + other} x + {one * other + shift}", f"(x+{one})(x+{other})", is_equal


def _set(rng: random.Random) -> tuple[str, str, bool]:
    gold = rng.sample(range(-50, 50), rng.randint(2, 6))
    given, is_equal = rng.sample(gold, len(gold)), rng.random() < 0.5
    if not is_equal:
        given[0] += 100
    return rf"\{{{', '.join(map(str, given))}\}}", rf"\{{{','.join(map(str, gold))}\}}", is_equal


def _tuple(rng: random.Random) -> tuple[str, str, bool]:
    gold = rng.sample(range(-50, 50), rng.randint(2, 4))
    is_equal = rng.random() < 0.5
    given = gold if is_equal else gold[::-1]
    return rf"\left({', '.join(map(str, given))}\right)", f"({','.join(map(str, gold))})", is_equal


def _interval(rng: random.Random) -> tuple[str, str, bool]:
    low, high = sorted(rng.sample(range(-50, 50), 2))
    left, right = rng.choice("[("), rng.choice("])")
    below, above = r"\le" if left == "[" else "<", r"\le" if right == "]" else "<"
    is_equal = rng.random() < 0.5
    top = high if is_equal else high + 1
    given = rng.choice((f"{left}{low}, {top}{right}", rf"{low} {below} x {above} {top}"))
    return given, f"{left}{low},{high}{right}", is_equal


def _matrix(rng: random.Random) -> tuple[str, str, bool]:
    rows = [[rng.randint(-9, 9) for _ in range(2)] for _ in range(rng.randint(2, 3))]
    gold = r"\\".join(" & ".join(map(str, row)) for row in rows)
    is_equal = rng.random() < 0.5
    if not is_equal:
        rows[0][0] += 1
    given = r" \\ ".join("&".join(map(str, row)) for row in rows)
    return rf"\begin{{bmatrix}}{given}\end{{bmatrix}}", rf"\begin{{pmatrix}}{gold}\end{{pmatrix}}", is_equal


def _with_unit(rng: random.Random) -> tuple[str, str, bool]:
    value, is_equal = rng.randint(2, 9_999), rng.random() < 0.5
    given = value if is_equal else value + rng.choice((1, -1, 10, value))
    units = (r"\text{ cm}", r" \text{ apples}", r"\,\mathrm{kg}", " dollars", r"^\circ", r"\text{ meters per second}")
    return f"{given:{rng.choice(('', ','))}}{rng.choice(units)}", str(value), is_equal


def _product_of_powers(rng: random.Random) -> tuple[str, str, bool]:
    powers = {prime: rng.randint(1, 4) for prime in rng.sample((2, 3, 5, 7, 11), 3)}
    value, is_equal = math.prod(prime**power for prime, power in powers.items()), rng.random() < 0.5
    factors = r" \cdot ".join(f"{prime}^{{{power}}}" for prime, power in powers.items())
    return factors, str(value if is_equal else value + rng.choice((1, -1, value))), is_equal


def _product_in_brackets(rng: random.Random) -> tuple[str, str, bool]:
    """A product of two numbers without a sign between them; as the gold answer, it or their sum."""
    one, other, below = rng.sample(range(3, 40), 3)
    is_equal = rng.random() < 0.5
    forms = r"{0}({1}) ({0})({1}) ({0}){1} {0}[{1}] {0}\left({1}\right) \left({0}\right)\left({1}\right) ({1})[{0}]"
    halves = r"{0}(\frac{{{1}}}{{{2}}}) \frac{{{0}}}{{{2}}}({1}) ({0})({1}/{2}) {0}\left(\frac{{{1}}}{{{2}}}\right)"
    if rng.random() < 0.5:
        return rng.choice(forms.split()).format(one, other), str(one * other if is_equal else one + other), is_equal
    value = Fraction(one * other, below) if is_equal else one + Fraction(other, below)
    return rng.choice(halves.split()).format(one, other, below), f"{value.numerator}/{value.denominator}", is_equal


def _changed(rng: random.Random) -> tuple[str, str, bool]:
    """An integer above 3 within something that changes its value; 3 would be its binomial coefficient."""
    value = rng.randint(4, 60)
    forms = r"-{} {}! \sqrt{{{}}} {}^2 {}^{{-1}} \frac{{1}}{{{}}} {}+1 2({}) {}i {}\pi {}e \log({}) {}x {}_{{70}}"
    more = r"{}{{,}}000 0.{} {}.5 \frac{{{}}}{{0}} {}\cdot0 {}^\infty {}{} {}\times10^{{-9}} 1e{} \binom{{{}}}{{2}}"
    spaced = ("{} {}", r"{}\text{{ million}}", "{} dozen", r"{} \text{{ hundred}}")
    return rng.choice((*forms.split(), *more.split(), *spaced)).format(value, value), str(value), False


def _named(rng: random.Random) -> tuple[str, str, bool]:
    """A text that names the right integer and does not give it as the answer."""
    value = rng.randint(3, 60)
    forms = r"\neq{} x<{} x\ge{} {},{}1 \{{{},{}1\}} ({},0) \pm{} [0,{}] {}={}1 {}\pm1 x\neq{} {}<x<{}1 {}?{} {};{}1"
    texts = (r"\text{{not }} {}", r"{} \text{{ or }} {}1", r"\begin{{pmatrix}}{}\\{}\end{{pmatrix}}", "x={}, x={}1")
    words = ("more than {}", "less than {}", "between {} and {}1", r"\emptyset \cup \{{{}, 1\}}")
    return rng.choice((*forms.split(), *texts, *words)).format(value, value), str(value), False


def _close(rng: random.Random) -> tuple[str, str, bool]:
    """A number that is near the right one."""
    value, digits = rng.randint(1, 10**6), rng.randint(1, 4)
    near = f"{value}.{'0' * (digits - 1)}1", f"{value}-10^{{-{digits}}}"
    pairs = (
        *((one, str(value)) for one in near),
        (rf"\frac{{{value * 10**digits + 1}}}{{{10**digits}}}", str(value)),
        *(("3.14", r"\pi"), ("0.3333", r"\frac{1}{3}"), ("1.4142", r"\sqrt{2}"), ("2.718", "e"), ("0.999", "1")),
        *((f"1{'0' * 20}1", "10^{21}"), (f"{value}{'0' * 20}1", rf"{value}\times 10^{{21}}"), ("2^{100}+1", "2^{100}")),
    )
    return *rng.choice(pairs), False


def _expression(rng: random.Random) -> tuple[str, str, bool]:
    """Two expressions; unequal ones differ in a sign, a letter, an exponent or an order."""
    one, other = rng.sample("abcmnkxyzt", 2)
    power = rng.randint(2, 9)
    unequal = (
        (f"{one}-{other}", f"{one}+{other}"),
        (f"{one}-{other}", f"{other}-{one}"),
        (rf"\frac{{{one}}}{{{other}}}", rf"\frac{{{other}}}{{{one}}}"),
        (f"{one}^{{{power}}}", f"{power}^{{{one}}}"),
        (f"{one}^{power}{other}", f"{one}{other}^{power}"),
        (f"({one}+{other})^2", f"{one}^2+{other}^2"),
        (rf"\sqrt{{{one}^2+{other}^2}}", f"{one}+{other}"),
        (rf"\sin {power}{one}", rf"{power}\sin {one}"),
        (f"{one}={power}", f"{one}=-{power}"),
        (f"{one}={power}{other}+1", f"{one}={power}{other}-1"),
        (f"{power}{one}", f"{power}{other}"),
        (f"{one}_{power}", f"{one}^{power}"),
        (f"{power}", f"{power}{one}"),
    )
    equal = (
        (f"{other}+{one}", f"{one}+{other}"),
        (f"({one}+{other})^2", f"{one}^2+2{one}{other}+{other}^2"),
        (rf"\frac{{{power}{one}}}{{{power}{other}}}", rf"\frac{{{one}}}{{{other}}}"),
        (rf"{one}^{power} \cdot {one}", f"{one}^{{{power + 1}}}"),
        (f"-({other}-{one})", f"{one}-{other}"),
    )
    is_equal = rng.random() < 0.5
    return *rng.choice(equal if is_equal else unequal), is_equal


KNOWN: dict[str, Known] = {
    "rational numbers": _rational,
    "roots": _root,
    "polynomials": _polynomial,
    "sets": _set,
    "tuples": _tuple,
    "intervals": _interval,
    "matrices of numbers": _matrix,
    "numbers with a unit": _with_unit,
    "products of powers": _product_of_powers,
    "products in brackets": _product_in_brackets,
    "changed numbers": _changed,
    "named numbers": _named,
    "close numbers": _close,
    "expressions": _expression,
}
