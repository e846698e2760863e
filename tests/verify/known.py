"""Pairs of answers that are equal or unequal by construction, as (given, gold, is_equal), for each type of answers."""

import random
from collections.abc import Callable
from fractions import Fraction

from hacpo_core.verify import values as kinds

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


def _product(rng: random.Random) -> tuple[str, str, bool]:
    """A product of two numbers with or without a sign between them; as the gold answer, it or their sum."""
    one, other = rng.sample(range(3, 40), 2)
    is_equal = rng.random() < 0.5
    forms = r"{0}({1}) ({0})({1}) ({0}){1} {0}[{1}] {0}\left({1}\right) ({1})[{0}] {0}\cdot{1} {0}\times({1})"
    return rng.choice(forms.split()).format(one, other), str(one * other if is_equal else one + other), is_equal


def _converted(rng: random.Random) -> tuple[str, str, bool]:
    """A quantity in another unit of its kind."""
    powers = {"milli": -3, "centi": -2, "": 0, "kilo": 3, "mega": 6}
    unit, (one, other) = rng.choice(("meter", "gram", "second", "joule", "liter")), rng.sample(list(powers), 2)
    value, is_equal = rng.randint(2, 99), rng.random() < 0.5
    power = powers[other] - powers[one] + (0 if is_equal else rng.choice((-1, 1)))
    given = rng.choice((rf"{value}\text{{ {one}{unit}s}}", rf"\mathrm{{{value}\,{one}{unit}}}"))
    return given, rf"{value} \times 10^{{{-power}}} \text{{ {other}{unit}s}}", is_equal


def _chain(rng: random.Random) -> tuple[str, str, bool]:
    """A value behind names and other spellings of it, or one that contradicts itself."""
    name, (one, other) = (
        rng.choice(("x", "f(2)", r"\angle ABC", "AB", "P(X > 3)", "S_{5}")),
        rng.sample(range(2, 50), 2),
    )
    is_equal, value = rng.random() < 0.5, one + other
    last = value if is_equal else value + 1
    return rng.choice((f"{name} = {one}+{other} = {last}", f"{name} = {last}")), f"{name} = {value}", is_equal


def _relation(rng: random.Random) -> tuple[str, str, bool]:
    """An inequality of two variables, multiplied by a number."""
    (one, other, bound), factor, is_equal = rng.sample(range(2, 20), 3), rng.randint(2, 9), rng.random() < 0.5
    sign, reversed_sign = (r"\le", r"\ge") if is_equal else (r"\ge", r"\le")
    forms = (f"{factor * one}x+{factor * other}y {sign} {factor * bound}", f"{bound} {reversed_sign} {one}x+{other}y")
    return rng.choice(forms), rf"{one}x + {other}y \leq {bound}", is_equal


def _ratio(rng: random.Random) -> tuple[str, str, bool]:
    parts, factor, is_equal = [rng.randint(1, 9) for _ in range(3)], rng.randint(2, 9), rng.random() < 0.5
    given = [factor * part for part in parts[:2]] + [factor * parts[2] + (0 if is_equal else 1)]
    return rng.choice((":", " : ", " to ")).join(map(str, given)), ":".join(map(str, parts)), is_equal


def _time(rng: random.Random) -> tuple[str, str, bool]:
    hour, minute, is_equal = rng.randint(1, 11), rng.randint(0, 59), rng.random() < 0.5
    given = rng.choice((f"{hour + 12}:{minute:02}", rf"{hour}:{minute:02} \text{{ PM}}", f"{hour:02}:{minute:02} p.m."))
    return given, rf"\text{{{hour}:{minute:02} {'p.m.' if is_equal else 'a.m.'}}}", is_equal


def _conditional(rng: random.Random) -> tuple[str, str, bool]:
    """A value with the domain of its variable, which may be left out, or with a condition, which may not."""
    name, factor, is_equal = rng.choice("nkm"), rng.randint(2, 9), rng.random() < 0.5
    domain = rng.choice((rf", {name} \in \mathbb{{Z}}", rf" \text{{ for all integers }} {name}"))
    condition = rng.choice(
        (rf" \text{{ if }} {name} > 3", rf" \text{{ for even }} {name}", rf", \text{{ when }} {name}=1")
    )
    return f"{factor}{name}{domain if is_equal else condition}", rf"{factor}{name}, {name} \in \mathbb Z", is_equal


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
    """A sum in another order; unequal ones differ in a sign, a letter, its case or an exponent."""
    letters = rng.sample("abcmnkxyzt", 4)
    terms = [(rng.choice((-1, 1)) * rng.randint(2, 9), letter, rng.randint(1, 4)) for letter in letters[:3]]
    (number, letter, power), is_equal = terms[0], rng.random() < 0.5
    changed = ((-number, letter, power), (number, letters[3], power), (number, letter.upper(), power))
    other = terms[0] if is_equal else rng.choice((*changed, (number, letter, power + 1), (power, letter, number)))
    given = rng.sample([other, *terms[1:]], 3)
    spelled = ["".join(f"{n:+}{x}^{{{p}}}" for n, x, p in side).removeprefix("+") for side in (given, terms)]
    return spelled[0], spelled[1], is_equal


OF_TYPES: dict[type, tuple[Known, ...]] = {
    kinds.Expression: (_rational, _root, _polynomial, _matrix, _product, _changed, _named, _close, _expression),
    kinds.Quantity: (_with_unit, _converted),
    kinds.Chain: (_chain,),
    kinds.Relation: (_relation,),
    kinds.Numbers: (_interval,),
    kinds.Listing: (_set, _tuple),
    kinds.Ratio: (_ratio,),
    kinds.Literal: (_time,),
    kinds.Conditional: (_conditional,),
}
KNOWN: dict[str, Known] = {f"known{draw.__name__}": draw for draws in OF_TYPES.values() for draw in draws}
