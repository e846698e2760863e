"""Gold answers written differently (equal by construction), and changed (unequal by construction)."""

import re
from collections.abc import Callable, Iterator

_DIGITS = re.compile(r"(?<![\d.,{])\d{4,}(?![\d.,])")
_SPACED = re.compile(r"(?<=[\w)}]) ?([+=<>]) ?(?=[\w(\\{])")
_FRACTIONS = {r"\frac{1}{2}": "½", r"\frac{1}{4}": "¼", r"\frac{3}{4}": "¾", r"\frac{1}{3}": "⅓", r"\frac{2}{3}": "⅔"}
_NUMBER = re.compile(r"(?<![\d.^_{,])\d+(?![\d.,}])")
_IN_TEXT = re.compile(r"\\(?:text|mathrm|mbox)\s*\{[^{}]*\}")
_FIRST_MEMBER = re.compile(
    r"(?P<before>\$?(?:\\left ?)?(?:\(|\[|\\\{)?)(?P<member>(?:[^,()\[\]{}]|\{[^{}]*\})+)(?P<after>,(?!\\!|\d{3}).*)"
)
_MEMBERS = re.compile(r"(?P<open>^|\(|\\\{)(?P<inner>[^(){}\[\]]*,[^(){}\[\]]*)(?P<close>$|\)|\\\})")
_COMMAND = re.compile(r"\\(?:frac|sqrt|cdot)(?![a-z])")
_WORDS = dict(enumerate("zero one two three four five six seven eight nine ten eleven twelve".split()))  # noqa: SIM905
_ALL_BUT_ONE = re.compile(r"\(-\\infty, ?(?P<number>[^,()]+)\) ?\\cup ?\((?P=number), ?\\infty\)")


def _thousands(gold: str, comma: str) -> str:
    return _DIGITS.sub(lambda found: f"{int(found.group()):,}".replace(",", comma), gold)


REWRITTEN: dict[str, Callable[[str], str]] = {
    "dollars": lambda gold: f"${gold}$",
    "parentheses": lambda gold: rf"\({gold}\)",
    "brackets": lambda gold: rf"\[{gold}\]",
    "displaystyle": lambda gold: rf"\displaystyle {gold}",
    "dfrac": lambda gold: gold.replace(r"\frac", r"\dfrac"),
    "tfrac": lambda gold: gold.replace(r"\frac", r"\tfrac"),
    "boxed": lambda gold: rf"\boxed{{{gold}}}",
    "thin space": lambda gold: _SPACED.sub(r"\\,\1\\,", gold),
    "negative space": lambda gold: _SPACED.sub(r"\\!\1\\!", gold),
    "minus": lambda gold: gold.replace("-", "\N{MINUS SIGN}") if not re.search("[A-Za-z]-", gold) else gold,
    "fraction": lambda gold: _FRACTIONS.get(gold, gold),
    "text": lambda gold: rf"\text{{{gold}}}",
    "mathrm": lambda gold: rf"\mathrm{{{gold}}}",
    "textbf": lambda gold: rf"\textbf{{{gold}}}",
    "mathbf": lambda gold: rf"\mathbf{{{gold}}}",
    "full stop": lambda gold: f"{gold}.",
    "thousands": lambda gold: _thousands(gold, ","),
    "thousands in LaTeX": lambda gold: _thousands(gold, r",\!"),
    "thousands in braces": lambda gold: _thousands(gold, "{,}"),
    "doubled equation": lambda gold: _with_factors(gold, 2, 2) or gold,
    "word": lambda gold: _WORDS.get(int(gold), gold) if gold.isdecimal() else gold,
    "excluded number": lambda gold: _ALL_BUT_ONE.sub(r"x \\neq \g<number>", gold),
}


def _with_factors(gold: str, left: int, right: int) -> str | None:
    """An equation of two or more variables with both sides multiplied; None for any other gold answer."""
    sides = _COMMAND.sub("", gold).split("=")
    if (
        len(sides) != 2
        or re.search(r"[\\$',;<>:&]|[A-Za-z]\(|[A-Za-z]{3}", "".join(sides))
        or "0" in map(str.strip, sides)
    ):
        return None
    num_variables = len(set(re.findall("[A-Za-z]", "".join(sides))) - {"e", "i"})
    one, other = gold.split("=")
    return f"{left}({one.strip()}) = {right}({other.strip()})" if 2 <= num_variables <= 4 else None


def changes(gold: str) -> Iterator[tuple[str, str]]:
    """Kind and text of answers that differ from a gold answer."""
    yield from _other_values(gold)
    if _as_number(gold) is not None:
        yield "doubled", f"{gold}, {gold}"
        yield "not", rf"\text{{not }} {gold}"
        yield "unequal", rf"\neq {gold}"
    found = _NUMBER.search(gold)
    if found is not None:
        yield "another number", f"{gold[: found.start()]}{int(found.group()) + 1}{gold[found.end() :]}"
    yield from _other_members(gold)
    if (unequal := _with_factors(gold, 2, 3)) is not None:
        yield "unequal factors", unequal
    if (but_one := _ALL_BUT_ONE.fullmatch(gold)) is not None:
        yield "another excluded number", rf"x \neq {but_one['number']} + 1"
        yield "further excluded number", rf"x \neq {but_one['number']}, 54321"
    if (power := re.search(r"\\(?:text|mathrm|mbox) ?\{[^{}]*\}\^\{?(\d)\}?$", gold)) is not None:
        yield "unit's exponent", gold[: power.start(1)] + str(int(power[1]) + 1) + gold[power.end(1) :]


def _as_number(gold: str) -> float | None:
    try:
        return float(gold)
    except ValueError:
        return None


def _other_values(gold: str) -> Iterator[tuple[str, str]]:
    """Other sign and ten times as much, of a number, a formula, or the first member of a point, a set or a list.

    Only where the result surely differs: zero, infinity, both signs at once, remainders and words are left out.
    """
    bare = _IN_TEXT.sub("", gold).strip().strip("$")
    if re.search(r"[<>:]|\\(?:pm|mp|approx|infty|le|ge|neq|cup|cap|in|[bp]?mod|emptyset|mathbb)(?![a-z])", bare):
        return
    if re.search("[A-Za-z]{2}", re.sub(r"\\[A-Za-z]+", "", bare)) or not re.search("[1-9A-Za-z]", bare):
        return
    whole = _FIRST_MEMBER.fullmatch(gold)
    before, value, after = whole.group("before", "member", "after") if whole is not None else ("", gold, "")
    name, equals, value = value.rpartition("=")
    value = value.strip().strip("$")
    if not re.search("[1-9A-Za-z]", value) or "&" in before + value + after.partition(",")[0]:
        return
    number = _as_number(value)
    ten = rf"10 \cdot ({value})" if number is None else f"{number * 10:g}" if abs(number) < 1e5 else f"{value}0"
    sign = value[1:].strip() if value.startswith("-") else f"-{value}"
    yield "sign", f"{before}{name}{equals}{sign}{after}"
    yield "factor ten", f"{before}{name}{equals}{ten}{after}"


def _other_members(gold: str) -> Iterator[tuple[str, str]]:
    bare = gold.replace(r"\left", "").replace(r"\right", "").strip()
    pair = re.fullmatch(r"(?P<open>[(\[])(?P<one>[^,()\[\]]*),(?P<other>[^,()\[\]]*)(?P<close>[)\]])", bare)
    if pair is not None:
        one, other = pair["one"].strip(), pair["other"].strip()
        if one != other:
            yield "swapped", f"{pair['open']}{other}, {one}{pair['close']}"
        if pair["open"] != pair["close"].replace(")", "(").replace("]", "["):
            yield "other bounds", f"{'[' if pair['open'] == '(' else '('}{one}, {other}{pair['close']}"
        return
    if re.fullmatch(r"-?\d{1,3}(?:,\d{3})+|.*\\!.*", bare) or re.search(r"[A-Za-z]{2}", re.sub(r"\\[a-z]+", "", bare)):
        return
    whole = _MEMBERS.fullmatch(bare)
    if whole is not None and len(members := whole["inner"].split(",")) > 1:
        yield "dropped", f"{whole['open']}{','.join(members[:-1])}{whole['close']}"
        yield "repeated", f"{whole['open']}{','.join([*members, members[-1]])}{whole['close']}"
