r"""An answer's tokens as one of the types of `values`, whole or not at all.

answer  = option | time | base | members condition
members = member ([,;] | and | or | \\) member ...
member  = side ([= < \le \neq \in ..] side)*
side    = set ([\cup \cap \setminus] set)* | {members} | (members) | part : part | words | quantity
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import Any

import sympy
from sympy.logic.boolalg import BooleanAtom

from hacpo_core.verify import values as kinds
from hacpo_core.verify.expressions import expression, number
from hacpo_core.verify.quantities import NO_NOUNS, expression_of, quantity, sum_of_quantities
from hacpo_core.verify.spelling import Token, end_of, named, split, text_of, tokens_of, words
from hacpo_core.verify.values import Answer, Expression, Listing, Numbers, UnreadError

Tokens = Sequence[Token]
_IDLE = re.compile(
    r"(?:(?:[=≈∴⇒~.:]|so|thus|hence|therefore|the|final|correct|answers?|ans|is|are|about|approximately|approx|roughly"
    r"|exactly|around) )*"
)
_ROUNDED = re.compile(r" (?:\( )?(?:approximately|approx|exactly)(?: \. )?(?: \))?$")
_OPTION = re.compile(
    r"(?:(?i:option|choice) )?(?:[(\[] )?(?P<letter>[A-J])(?: [)\]]| \.| :|(?= \d+$)|$)"
    r"(?! (?:or|and|not|if|unless|is)\b)"
    r"(?!.*(?:^|[^A-Za-z] |and |or )[A-J] [).:])(?!.* (?:and|or|,|;|&|/) [A-J]$)"
)
_TRUTH = re.compile(
    r"(?P<word>yes|no|true|false)\b(?! (?:for|with|assuming|provided|given)\b)(?!.*\b(?:yes|no|true|false|if|iff"
    r"|unless|when|whenever|only|but|except|though|although|however|maybe|or|sometimes|in some|under|not sure)\b)"
)
_TIME = re.compile(r"(\d{1,2})(?::(\d{2})(?::([0-5]\d))?|(?=[ap]))(?:([ap])\.?m\.?)?")
_BASE = re.compile(
    r"\(?(?P<digits>-?[0-9A-Za-z]*?\d[0-9A-Za-z]*?(?:\.[0-9A-Za-z]+?)?)\)?"
    r"(?:_\{\(?(?P<base>\d+)\)?\}|\(?(?:in)?base-?_?\{?(?P<behind>\d+)\}?\)?)"
)
_CLAUSE = re.compile(
    r"(?P<before>.+?)(?: [,;(])? (?:(?P<word>(?:for|where|with|if|when|provided|∀)(?= ).*)"
    r"|(?<=[,;] )(?P<member>\w+ ∈ .*))"
)
_SET_OF_WORD = {word: letter for letter, names in named("domain").items() for word in names.split()}
_QUANTIFIERS = set(words("quantifier"))
_ALL_BUT = re.compile(
    r"(?:all )?(?:real (?:numbers|values)|reals|real)(?: of)?(?: [a-z])?"
    r"(?P<but> (?:except|but|other than|excluding)(?: for)?(?: [a-z] =)?)?(?= |$)"
)
_NO_SOLUTION = re.compile(r"(?:there (?:is|are) )?no (?:real )?solutions?|(?:the )?empty set")
_NAME = re.compile(
    r"(?!([a-eijk-z]) \( (?:.* )?\1 )(?:(?:angle|triangle|hat|bar|tilde|overline|widehat|\{) )*"
    rf"(?!(?:{'|'.join(words('no name') + words('no part'))}|begin\w+)(?: |$))[^\W\d_]+"
    rf"(?: (?!(?:{'|'.join(words('no part'))})(?: |$))[^\W\d_]+| '| _ \{{ [^{{}}]* \}}| \}})*"
    r"(?: \^ \{ - 1 \}(?= \())?(?: \(.*\))?(?: : [A-Za-z])*|(?:# |\| )[A-Z](?: [∪∩∖] [A-Z])*(?: \|)?"
)
_NO_ANSWERS = {"", *words("no answer")}
_RELATIONS = {"=", "≈", "<", ">", "≤", "≥", "≠", "∈"}
_SYMPY = {"<": sympy.Lt, ">": sympy.Gt, "≤": sympy.Le, "≥": sympy.Ge, "≠": sympy.Ne}
_S = sympy.S
_SETS = dict(zip("RZNQC", (_S.Reals, _S.Integers, _S.Naturals, _S.Rationals, _S.Complexes), strict=True))
_SETS = {f"mathbb{letter}": numbers for letter, numbers in _SETS.items()} | {"∅": _S.EmptySet}
_SETS |= {"mathbbR ^ { + }": sympy.Interval.open(0, sympy.oo), "mathbbR ^ { * }": _S.Reals - sympy.FiniteSet(0)}
_TASKS = {"int", "iint", "oint", "lim", "sum", "prod"}


@lru_cache(maxsize=1024)  # many responses are compared with one gold answer
def read(answer: str, *, any_case: bool = False) -> Answer | None:
    """The value of an answer, None if a part is not understood; with `any_case`, a small letter may be an option."""
    tokens: Tokens = tokens_of(answer)
    text = text_of(tokens).lower()
    end = _ROUNDED.search(text)
    start = len(_IDLE.match(text + " ")[0].split())  # type: ignore[index]
    stop = len(tokens) if end is None else text[: end.start()].count(" ") + 1
    tokens = _all_but(tokens[start if start < stop else 0 : stop])
    joined = "".join(token.text for token in tokens)
    if joined.lower() in _NO_ANSWERS:
        return None
    try:
        return _time(joined.lower()) or _option(text_of(tokens), any_case) or _base(joined) or _conditional(tokens)
    except UnreadError:
        return None


def _time(joined: str) -> Answer | None:
    """A time of the day with a.m. or p.m., whose face is the shorter form, or a ratio that may be a time."""
    match = _TIME.fullmatch(joined)
    if match is None or ((match[3] or not match[2]) and (int(match[1]) > 24 or int(match[2] or 0) > 59)):
        return None
    hours, behind = int(match[1]), f"{match[2] or '00'}:{match[3] or '00'}"
    face = f"{hours}:{behind}" if 1 <= hours <= 12 else f"0{hours}:{behind}"  # 04:30:00 is one of 24 hours
    if match[4] is None:
        return kinds.Ratio(tuple(Expression(sympy.Integer(part)) for part in joined.split(":")), face)
    hour = () if match[2] else (match[1],)
    return kinds.Literal(f"0{hours % 12 + 12 * (match[4] == 'p')}:{behind}", (face, *hour))


def _option(text: str, any_case: bool) -> kinds.Literal | None:
    """The option, yes or no that an answer begins with and does not take back; None if there is none."""
    truth = _TRUTH.match(text.lower())
    letter = re.match(_OPTION.pattern, text, re.IGNORECASE if any_case else 0)
    return kinds.Literal(truth[1] if truth else letter[1].upper(), is_option=True) if truth or letter else None  # type: ignore[index]


def _base(joined: str) -> Answer | None:
    """Digits in a base, which are not converted; in base ten, a number."""
    match = _BASE.fullmatch(joined)
    if match is None:
        return None
    base, digits = int(match["base"] or match["behind"]), match["digits"].upper()
    if not 2 <= base <= 36 or any(int(digit, 36) >= base for digit in digits if digit not in "-."):
        raise UnreadError("no number in a base")
    return Expression(number(digits), joined) if base == 10 else kinds.Literal(f"{digits}_{base}", (match["digits"],))


def _conditional(tokens: Tokens) -> Answer:
    """An answer, perhaps with a condition or the domain of its variable behind it."""
    match = _CLAUSE.fullmatch(text_of(tokens))
    if match is None:
        return _members(tokens)
    before, clause = tokens[: match["before"].count(" ") + 1], match["word"] or match["member"]
    sets = [_SET_OF_WORD[word] for word in clause.split() if word in _SET_OF_WORD]
    names = [word for word in clause.split() if word not in _SET_OF_WORD and word not in _QUANTIFIERS]
    is_domain = bool(sets) and len(names) <= 1 and all(re.fullmatch("[A-Za-z]|[a-z]{5}", name) for name in names)
    if match["member"] and not (is_domain and any(name in token.text for name in names for token in before)):
        return _members(tokens)
    condition = next((letter for letter in sets if letter != "-"), "") if is_domain else clause
    return kinds.Conditional(_members(before), condition, is_domain)


def _members(tokens: Tokens) -> Answer:
    """A list, or its only member; x \\neq 1, 2 excludes both; 3 hours and 30 minutes is one quantity."""
    has_relation = any(token.text in _RELATIONS for token in tokens)
    parts, between = split(tokens, {",", ";", r"\\", "and", "or"} | ({"∧", "∨"} if has_relation else set()))
    if len(parts) == 1:
        return _both_signs(parts[0])
    points = list(map(_without_names, parts))
    parts = points if all(text_of(part[:1]) == "(" for part in points) else parts
    unequal = next((part[: at + 1] for part in parts for at, token in enumerate(part) if token.text == "≠"), [])
    members: list[Answer] = []
    for part in filter(None, parts):
        has_relation = any(token.text in _RELATIONS for token in part)
        members += _flat(_both_signs(part if has_relation else [*unequal, *part]))
    joined = next((name for name, sign in (("or", "∨"), ("and", "∧")) if {name, sign} & set(between)), ",")
    quantities = [member for member in members if isinstance(member, kinds.Quantity)]
    if joined == "and" and len(quantities) == len(members) and len({member.units for member in quantities}) > 1:
        return sum_of_quantities(quantities)
    return Listing("", tuple(members), joined)


def _without_names(tokens: list[Token]) -> list[Token]:
    """The point of (x, y) = (1, 2), which stands beside other points; other tokens as they are."""
    sides, signs = split(tokens, {"="})
    return sides[1] if signs == ["="] and _point_names(sides[0]) else tokens


def _point_names(tokens: Tokens) -> list[str]:
    """Names of a point's coordinates: (x, y); none if the tokens are something else."""
    is_point = text_of(tokens[:1]) == "(" and text_of(tokens[-1:]) == ")"
    names = list(map(name_of, split(tokens[1:-1], {","})[0])) if is_point else []
    return names if all(names) else []


def _flat(member: Answer) -> tuple[Answer, ...]:
    return member.members if isinstance(member, Listing) and not member.brackets else (member,)


def _both_signs(tokens: list[Token]) -> Answer:
    r"""A member; with \pm, one for each choice of signs. \mp has the opposite sign of \pm."""
    places = [at for at, token in enumerate(tokens) if token.text in ("±", "∓")]
    if not places:
        return _member(tokens)
    if len(places) > 3:
        raise UnreadError("too many signs")
    members, is_bound = list[Answer](), "∓" in text_of(tokens)
    for signs in product("+-", repeat=1 if is_bound else len(places)):
        chosen = list(tokens)
        for at, sign in zip(places, signs * len(places) if is_bound else signs, strict=True):
            chosen[at] = Token("sign", sign if tokens[at].text == "±" else "-+"[sign == "-"])
        members += _flat(_member(chosen))
    return Listing("", tuple(members), "," if "≠" in text_of(tokens) else "or")


def _member(tokens: list[Token]) -> Answer:
    """A single answer, an equation, an inequality."""
    sides, signs = split(tokens, _RELATIONS)
    if not signs:
        return _side(tokens)
    if set(signs) <= {"=", "≈"}:
        return _equation(sides)
    if signs != ["∈"]:
        return _inequality(sides, signs)
    interval = _side(sides[1])
    if isinstance(interval, Listing) and interval.brackets == "{}" and (name_of(sides[0]) or _point_names(sides[0])):
        return interval
    numbers = numbers_of(interval)
    if not name_of(sides[0]) or not (numbers or (isinstance(interval, Listing) and interval.has_order)):
        raise UnreadError("no set")
    return interval if numbers is None else Numbers(numbers.numbers, name_of(sides[0]))


def _equation(sides: Sequence[list[Token]]) -> Answer:
    names = _point_names(sides[0]) if len(sides) == 2 else []
    point = _side(sides[1]) if names else None
    if isinstance(point, Listing) and len(point.members) == len(names):
        pairs = zip(names, point.members, strict=True)
        return Listing("", tuple(kinds.Chain((kinds.Side(name, None), kinds.Side("", value))) for name, value in pairs))
    read_sides = [_equation_side(side, is_first=not number) for number, side in enumerate(sides)]
    _, mod, modulus = text_of(sides[-1]).partition("mod ")
    if mod and read_sides[0].name:  # a congruence
        read_sides[0] = kinds.Side(f"{read_sides[0].name} mod {modulus.strip('{} ')}", None)
    is_reversed = bool(read_sides[-1].name) and not read_sides[0].name
    return kinds.Chain(tuple([read_sides[-1], *read_sides[:-1]] if is_reversed else read_sides))


def _equation_side(tokens: list[Token], *, is_first: bool) -> kinds.Side:
    name = name_of(tokens)
    try:
        value = _side(tokens)
    except UnreadError:
        if not name and not (is_first and tokens and tokens[0].text in _TASKS):
            raise
        return kinds.Side(name or text_of(tokens), None)
    symbols = value.value if isinstance(value, Expression) else sympy.S.One
    is_name = all(part.is_Symbol for part in (symbols if isinstance(symbols, sympy.MatrixBase) else [symbols]))
    return kinds.Side(str(symbols) if is_name else name, value)


def name_of(tokens: Tokens) -> str:
    r"""The name that tokens are: x, f(x), f^{-1}(x), AB, \angle ABC, P(X \ge 3), Area, a:b; "" if they are none."""
    text = text_of(tokens)
    return text.replace(" ", "") if _NAME.fullmatch(text) else ""


def _inequality(sides: Sequence[list[Token]], signs: Sequence[str]) -> Answer:
    """The numbers that satisfy inequalities in one variable; an interval if their bounds are letters."""
    bounds = [expression_of(side).value for side in sides]
    pairs = list(zip(signs, pairwise(bounds), strict=True))
    if not _SYMPY.keys() >= set(signs) or any(sympy.oo in map(abs, pair) and sign in "≤≥" for sign, pair in pairs):
        raise UnreadError("an equation, or closed at infinity")
    parts = tuple(_SYMPY[sign](*pair) for sign, pair in pairs)
    names = set().union(*(bound.free_symbols for bound in bounds))
    if any(isinstance(part, BooleanAtom) for part in parts):
        raise UnreadError("no inequality")
    if len(names) == 1:
        try:
            real = {name: sympy.Symbol(name.name, real=True) for name in names}
            return Numbers(sympy.Intersection(*(part.xreplace(real).as_set() for part in parts)), str(*names))
        except (NotImplementedError, TypeError, ValueError):
            return kinds.Relation(parts)
    if len(sides) == 3 and re.fullmatch("[k-z]|[a-z]{2,}", text_of(sides[1])) and set(signs) <= {"<", "≤"}:
        brackets = "(["[signs[0] == "≤"] + ")]"[signs[1] == "≤"]
        return Listing(brackets, (expression_of(sides[0]), expression_of(sides[2])))
    return kinds.Relation(parts)


def numbers_of(answer: Answer | None) -> Numbers | None:
    """An answer as a set of numbers; None if it is none: a point, repeated members, closed at infinity."""
    if isinstance(answer, kinds.Chain) and len(answer.sides) == 2:  # x = -1
        point = numbers_of(Listing("{}", tuple(side.value for side in answer.sides[1:] if side.value is not None)))
        return point and Numbers(point.numbers, answer.sides[0].name)
    if not isinstance(answer, Listing):
        return answer if isinstance(answer, Numbers) else None
    if not answer.brackets:
        return _joined_numbers(answer)
    values = [member.value for member in answer.members if isinstance(member, Expression)]
    if len(values) < len(answer.members) or any(not value.is_extended_real for value in values):
        return None
    numbers, ends = None, list(zip(values, answer.brackets, strict=False))
    if answer.brackets == "{}":
        numbers = sympy.FiniteSet(*values) if len(set(values)) == len(values) else None
    elif len(values) == 2 and not any(abs(value) == sympy.oo and sign in "[]" for value, sign in ends):
        numbers = sympy.Interval(*values, *(sign in "()" for _, sign in ends))
    return None if numbers is None else Numbers(numbers)


def _joined_numbers(answer: Listing) -> Numbers | None:
    """Several sets as one: x > 0, x \\neq 1 is both, x < 0, x > 1 is either."""
    parts = [numbers_of(member) for member in answer.members]
    sets = [part.numbers for part in parts if part is not None]
    names = {part.name for part in parts if part is not None and part.name}
    if not sets or None in parts or len(names) > 1:
        return None
    common = sympy.Intersection(*sets)
    is_union = answer.joined == "or" or (answer.joined == "," and common is sympy.S.EmptySet)
    return Numbers(sympy.Union(*sets) if is_union else common, next(iter(names), ""))


def _side(tokens: list[Token]) -> Answer:
    """A set, a point, a ratio, words or a quantity."""
    if all(token.kind == "number" for token in tokens[::2]):  # 3 to 4
        tokens = [Token("sign", ":") if token.word == "to" else token for token in tokens]
    text = text_of(tokens)
    if text in _SETS:
        return Numbers(_SETS[text])
    has_operation = not {"∪", "∩", "∖"}.isdisjoint(text.split(" ")) or r"- \{" in text
    answer = _set_operation(tokens) if has_operation else _bracketed(tokens)
    if answer is None and ":" in text:
        parts, between = split(tokens, {":"})
        if len(parts) == 2 and _words(parts[0]) and NO_NOUNS.isdisjoint(token.word for token in parts[0]):  # Area: 5
            return kinds.Chain((kinds.Side(name_of(parts[0]), None), kinds.Side("", _side(parts[1]))))
        answer = kinds.Ratio(tuple(map(expression_of, parts))) if between else None
    return answer or _words(tokens) or quantity(tokens)


def _all_but(tokens: Tokens) -> Tokens:
    """Signs for "all real numbers except 2" and "no solution"."""
    text = text_of(tokens).lower()
    match = _ALL_BUT.match(text)
    if _NO_SOLUTION.fullmatch(text):
        return [Token("sign", "∅")]
    if match is None or not (match["but"] or match.end() == len(text)):
        return tokens
    rest = [Token("sign", "∖"), Token("sign", r"\{"), *tokens[len(match[0].split()) :], Token("sign", r"\}")]
    return [Token("command", "mathbbR"), *(rest if match["but"] else ())]


def _set_operation(tokens: list[Token]) -> Answer | None:
    for signs, operation in (({"∪"}, sympy.Union), ({"∩"}, sympy.Intersection), ({"∖", "-"}, sympy.Complement)):
        parts, between = split(tokens, signs)
        if between and (len(parts) == 2 or operation is not sympy.Complement):
            return Numbers(operation(*map(_set, parts)))
    return None


def _set(tokens: list[Token]) -> Any:
    numbers = numbers_of(_members(tokens))
    if numbers is None:
        raise UnreadError("no set of numbers")
    return numbers.numbers


def _bracketed(tokens: list[Token]) -> Answer | None:
    """A set, a point, an interval, a matrix [1, 2; 3, 4]; None if the tokens are something else."""
    if text_of(tokens[:1]) not in ("(", "[", r"\{") or end_of(tokens, 0) != len(tokens) - 1:
        return None
    inner = tokens[1:-1]
    if tokens[0].text == r"\{":
        return _builder(inner) or Listing("{}", _flat(_members(inner)) if inner else ())
    rows = split(inner, {";"})[0]
    cells = [split(row, {","})[0] for row in rows]
    if len(rows) > 1 and len(cells[0]) > 1 and len({len(row) for row in cells}) == 1:
        return Expression(sympy.ImmutableMatrix([[expression(cell) for cell in row] for row in cells]))
    parts = rows if len(rows) > 1 else cells[0]
    return Listing(tokens[0].text + tokens[-1].text, tuple(map(_member, parts))) if len(parts) > 1 else None


def _builder(inner: list[Token]) -> Answer | None:
    r"""The numbers of \{x \in \mathbb{R} \mid x > 2\}; None if it is no such set."""
    parts, between = split(inner, {"|", ":"})
    if len(between) != 1 or not any(token.text in _RELATIONS for token in parts[1]):
        return None
    head, signs = split(parts[0], {"∈"})
    numbers = numbers_of(_members(parts[1]))
    if not name_of(head[0]) or numbers is None or numbers.name not in ("", name_of(head[0])):
        raise UnreadError("no set of numbers")
    return Numbers(sympy.Intersection(_set(head[1]) if signs else sympy.S.Reals, numbers.numbers))


def _words(tokens: Tokens) -> kinds.Literal | None:
    """A few words, or an ellipsis; None if the tokens are something else."""
    words = [token for token in tokens if token.word]
    is_text = all(token.word or token.text in ("-", "'", ".") or token.kind == "number" for token in tokens)
    is_long = any(len(token.text) > 2 or token.kind == "text" for token in words)
    is_derivative = len(words) == 1 and len(tokens) > 1 and tokens[-1].text == "'"
    is_short = 1 <= len(words) <= 3 and words[0] is tokens[0]
    if not (is_text and is_long and is_short and not is_derivative) and text_of(tokens) != "ldots":
        return None
    start = len(words) > 1 and words[0].word in ("a", "an", "the")
    return kinds.Literal("".join(token.text for token in tokens[start:]).lower())
