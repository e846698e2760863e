"""Where the answer stands in a response, and when two answers are the same."""

import time

import pytest

from hacpo_core.records import AnswerStyle
from hacpo_core.verify.answers import MAX_TEXT_CHARS, after_reasoning, extract_answer, normalise
from hacpo_core.verify.equality import answers_equal


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so $x = \boxed{7}$.", "7"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\fbox{42}", "42"),
        (r"\boxed {5}", "5"),
        (r"the answer is $\boxed 2$.", "2"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{3} and then \boxed{4 is cut", "3"),
        (r"\boxed{3} but \boxed{}", "3"),
        ("} } \\boxed{3}", "3"),
        ("no box: 3", None),
        (r"\boxed{", None),
    ],
)
def test_boxed_finds_the_last_complete_box(text: str, answer: str | None) -> None:
    assert extract_answer(text, style="boxed") == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("She has 3 + 4 = <<3+4=7>>7 eggs.\n#### 7", "7"),
        ("#### 1,234,567", "1234567"),
        ("#### $1,200.50", "1200.5"),
        ("#### -3", "-3"),
        ("#### 18 dollars", "18"),
        ("#### 3/4", "3/4"),
        ("12 and 13\nA: 14", "14"),
        ("First 2, then 5. The answer is 10.0 apples. Check 3 times!", "10"),
        ("The final answer is $-7$", "-7"),
        ("She pays $3 and then $18 in all.", "18"),
        ("It grew by 10.50%.", "10.5%"),
        ("5-3 leaves 5-3", "3"),
        ("the temperature fell to -4", "-4"),
        ("half is .5", "0.5"),
        ("#### Step 4: add\nso we get 9", "9"),
        ("nothing here", None),
    ],
)
def test_last_number_reads_gsm8k(text: str, answer: str | None) -> None:
    assert extract_answer(text, style="last_number") == answer


def test_unknown_style_is_refused() -> None:
    with pytest.raises(ValueError, match="style: got 'zzz', expected one of boxed, last_number, plain, auto"):
        extract_answer("3", style="zzz")  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "answer"), [("  3 + x \n", "3 + x"), (" \n", None), ("", None)])
def test_plain_is_the_whole_stripped_text(text: str, answer: str | None) -> None:
    assert extract_answer(text, style="plain") == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 5. Hence \\boxed{6}. The answer is 7.", "6"),
        ("The final answer is $\\frac{\\sqrt{3}}{2}$.", r"\frac{\sqrt{3}}{2}"),
        ("**Answer:** 12 purple apples", "12"),
        ("The final answer is:\n\\[ x = 3 \\]", "x = 3"),
        ('{"reasoning": "the answer is 4", "answer": "\\\\frac{1}{2}"}', r"\frac{1}{2}"),
        ('{\n "answer": 2020\n}', "2020"),
        ('```json\n{"answer": "C) \\(x\\)"}\n```', r"C) \(x\)"),
        ("Therefore the sides are \\( 12 \\) and \\( 3x \\)", "3x"),
        ("From $5 to $7 is a gain, so he pays $18 in total", "18"),
        ("4+7=11\n3-11=-8", "3-11=-8"),
        ("x^2 + 1", "x^2 + 1"),
        ("Evelyn", "Evelyn"),
        ("#### Equation 3:\nWe get 4.\n\nFinally 5 remain.", "5"),
        ("matched the answer to the given options", "matched the answer to the given options"),
        ("[3, 1; 1, 3]", "[3, 1; 1, 3]"),
        ("", None),
    ],
)
def test_auto_takes_box_then_announcement_then_last_expression(text: str, answer: str | None) -> None:
    assert extract_answer(text, style="auto") == answer


def test_only_the_end_of_a_long_text_is_read() -> None:
    assert extract_answer("\\boxed{1}" + "x" * MAX_TEXT_CHARS, style="boxed") is None
    assert extract_answer("x" * MAX_TEXT_CHARS + "\\boxed{1}", style="boxed") == "1"


HOSTILE_UNITS = (
    *("\\boxed{", "{", "}", "$", "$1", "\\(", "\\[", "\\", "\\\\", "*"),
    *("1,", "1,234", "-", "9", ".", "a ", " ", "\n", "\x00", "\ud800"),
    *("answer to ", "answer is ", "answer:", "####", '"answer": "'),
)


@pytest.mark.parametrize("style", ["boxed", "last_number", "plain", "auto"])
@pytest.mark.parametrize("unit", HOSTILE_UNITS)
def test_extraction_of_a_hostile_megabyte_takes_under_two_seconds(unit: str, style: AnswerStyle) -> None:
    text = unit * (1_000_000 // len(unit))
    start = time.process_time()
    extract_answer(text, style=style)
    assert time.process_time() - start < 2.0


def test_normalise_keeps_what_carries_meaning() -> None:
    assert normalise(" $16$\\\\\n\\noindent") == "16"
    assert normalise("\\$1{,}000.") == "1{,}000"
    assert normalise("1  2") == "1 2"
    assert normalise("-3") == "-3"


@pytest.mark.parametrize(
    ("candidate", "gold"),
    [
        ("27", "27.0"),
        (r"\frac12", "0.5"),
        ("3/4", r"$\frac{3}{4}$"),
        ("1,000", "1000"),
        (r"\text{Evelyn}", "Evelyn"),
        (r"12\text{ apples}", "12"),
        (r"5\sqrt{3}\text{ meters}", r"5\sqrt{3}"),
        ("x = 5", "5"),
        ("2, 1", r"\{1,2\}"),
        (r"\left( 3, 5 \right)", "(3,5)"),
        (r"[3,5)", r"\left[3,5\right)"),
        ("4√2", r"4\sqrt{2}"),
        ("2.5e8", r"2.5 \times 10^{8}"),
        ("-3/2", "-3./2"),
        (r"\frac{t}{m}", r"\frac{1}{m} t"),
        ("E_1, E_2", "E_{1},E_{2}"),
        ("C) x > 5", "$C$\\\\\n\\noindent"),
        (r"\textbf{(C)}", "C"),
        ("Yes, it is.", "yes"),
        ("50%", "0.5"),
        ("3 1/2", "3.5"),
        ("(12)(5)", "60"),
        (r"10\,000", "10000"),
        (r"\begin{pmatrix} -\frac{1}{3} \\ \frac{2}{3} \end{pmatrix}.", r"\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}"),
        (r"\begin{bmatrix}1&2\\[4pt]3&4\end{bmatrix}", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"),
        (r"\left(\begin{array}{cc}1&2\\ 3&4\end{array}\right)", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"),
        ("18 dollars", "18"),
        ("18 months.", "18"),
        ("1,200 sq. ft.", "1200"),
        ("60 km/h", "60"),
        ("5 miles per hour", "5"),
        ("c + b + a", "a + b + c"),
        ("52_8", "52_{8}"),
        (r"52_{\text{8}}", "52_8"),
        ("52", "52_8"),
        ("A, C, F", r"\text{A,C,F}"),
        ("1:03 PM", r"\text{1:03 PM}"),
        (r"\text{June 20}", "June 20"),
        ("LQSX", r"\text{LQSX}"),
        (r"\mathbf{\frac{1}{2}}", r"\frac{1}{2}"),
        ("≈ 3.14", "3.14"),
        ("x<3", r"(-\infty,3)"),
        (r"0 \le x < 1", "[0,1)"),
        (r"x<1 \text{ or } x>2", r"(-\infty,1)\cup(2,\infty)"),
        ("[2,3]", r"2 \le x \le 3"),
        (r"\varnothing", r"\emptyset"),
        (r"1.2\overline{36}", r"\frac{68}{55}"),
        (r"2.88\times 10^{-19}", "2.88e-19"),
        (r"\frac{1}{2^{99}}", "2^{-99}"),
        ("0.1+0.2", "3/10"),
        (r"920.0\times 10^{-2}", r"\frac{92}{10}"),
        (r"2.5\text{ million}", "2500000"),
        ("3 dozen", "36"),
        ("28000000", r"28\text{ million dollars}"),
        (r"3,636^\circ", "3636"),
        ("3,636°", "3636"),
        ("52_{10}", "52"),
        (r"\frac{10}{2}t", "5t"),
        (r"\infty", r"+\infty"),
    ],
)
def test_equal_answers_are_equal(candidate: str, gold: str) -> None:
    assert answers_equal(candidate, gold)


@pytest.mark.parametrize(
    ("candidate", "gold"),
    [
        ("26", "27.0"),
        ("-5", "5"),
        ("4", r"4\sqrt{2}"),
        ("4√2", "4"),
        ("2x + 3", "2x + 3c"),
        ("(5,3)", "(3,5)"),
        ("[3,5]", "[3,5)"),
        ("1", r"\{1,2\}"),
        ("1,2,3", "1,2"),
        ("D) x > 5", "C"),
        ("No", "Yes"),
        ("12", "1 2"),
        ("12 5", "17"),
        (r"12\quad 5", "17"),
        ("3 1/2", "2"),
        ("(12)(5)", "17"),
        ("2e999999999999", "3"),
        ("", ""),
        (r"\frac{1}{", "1"),
        ("garbage }{ \\", "1"),
        ("1", r"\frac{1}{"),
        (r"\begin{pmatrix}1&3\\2&4\end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1&2\end{pmatrix}"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}"),
        ("18 million dollars", "18"),
        ("2 dozen", "2"),
        ("3 halves", "3"),
        ("5 pi", "5"),
        ("18 and 5", "18"),
        ("52_6", "52_8"),
        ("SLQX", "LQSX"),
        ("x<3", r"(-\infty,3]"),
        ("x>3", r"(-\infty,3)"),
        (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
        ("1/2007!", "1/2004!"),
        ("-5e-19", "2.88e-19"),
        ("0.0", "3.89e-10"),
        ("0.1+0.2", "0.31"),
        (r"28\text{ million}", "28"),
        ("28", "28 million"),
        ("52_{70}", "52"),
        ("52_{12}", "52_{8}"),
        ("5", "5t"),
        ("5s", "5t"),
        (r"27^\infty", "27"),
        (r"27\cdot\infty", "27"),
    ],
)
def test_other_answers_are_not_equal(candidate: str, gold: str) -> None:
    assert not answers_equal(candidate, gold)


def test_a_sentence_is_not_parsed_but_text_behind_a_number_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answers_equal(r"\frac{1}{2}\text{ of the whole cake}", "0.5")
    monkeypatch.setattr("hacpo_core.verify.parsing.parse", None)  # would raise
    assert not answers_equal("There is no such number, as it would be prime", "Nobody has ever found one")


def test_a_gold_answer_beyond_parsing_is_compared_by_its_letters() -> None:
    assert answers_equal(r"\frac{1}{ 2", r"\frac{1}{2")
    assert not answers_equal("0.5", r"\frac{1}{2")
    assert answers_equal(r"p \land \lnot q \rightarrow r", r"p \wedge \neg q \to r")
    assert not answers_equal(r"p \lor q", r"p \wedge q")
    assert not answers_equal(r"\mathbb{R}^3", r"\mathbb R^2")


@pytest.mark.parametrize(
    ("candidate", "gold", "unit"),
    [
        ("166 cm^2", "$166$", "$cm^2$"),
        ("166 cm^{2}", "$166$", "$cm^2$"),
        (r"166\ \mathrm{cm^2}", "$166$", "$cm^2$"),
        (r"4.2\%", "4.2", "%"),
        ("4.2%", "4.2", "%"),
        (r"\angle B_1 = 60^\circ, \angle A = 90^\circ", r"$\angle A=90$, $\angle B_{1}=60$", r"^{\circ}"),
    ],
)
def test_known_unit_behind_an_answer_is_no_part_of_it(candidate: str, gold: str, unit: str) -> None:
    assert answers_equal(candidate, gold, unit=unit)
    assert not answers_equal(candidate, gold.replace("4.2", "0.042").replace("6", "7"), unit=unit)


@pytest.mark.parametrize(("candidate", "is_near"), [("4.3", True), ("4.1", True), ("r=4.25", True), ("4.31", False)])
def test_tolerance_is_an_absolute_error_of_numbers(candidate: str, is_near: bool) -> None:
    assert answers_equal(candidate, "4.2", tolerance=0.1) is is_near
    assert not answers_equal(candidate, "4.2")
    assert not answers_equal("x", "4.2", tolerance=0.1)
    assert not answers_equal("4.2x", "4.2", tolerance=10.0)


@pytest.mark.parametrize(
    ("candidate", "gold", "is_equal"),
    [
        ("3, 1", "1,3", True),
        (r"\{3, 1\}", "1,3", True),
        (r"3 \text{ or } 1", "1,3", True),
        (r"\pm 1", "-1,1", True),
        ("3", "1,3", False),
        ("1, 3, 4", "1,3", False),
        ("(2,1), (1,2)", "(1,2),(2,1)", True),
        ("(2,1), (2,1)", "(1,2),(2,1)", False),
        ("-2", "-2,-2", False),
        ("-2, -2", "-2,-2", True),
        ("16, 3, 1", "16,3,1,1", False),
        (r"\{1, 1, 3, 16\}", "16,3,1,1", True),
    ],
)
def test_list_of_answers_has_no_order_but_a_number(candidate: str, gold: str, is_equal: bool) -> None:
    assert answers_equal(candidate, gold) is is_equal


@pytest.mark.parametrize(
    ("text", "marked", "required"),
    [
        ("<think>so \\boxed{3}</think>\n\\boxed{4}", "\n\\boxed{4}", "\n\\boxed{4}"),
        ("so \\boxed{3}</think> It is 4.", " It is 4.", " It is 4."),  # the template opened the block
        ("<think>so \\boxed{3}", "", ""),
        ("\\boxed{4}", "\\boxed{4}", ""),
        ("<think>a</think>4<think>\\boxed{3}", "4", "4"),
        ("a</think>b</think>c", "c", "c"),
    ],
)
def test_answer_is_behind_the_reasoning(text: str, marked: str, required: str) -> None:
    assert after_reasoning(text, end="</think>", is_required=False) == marked
    assert after_reasoning(text, end="</think>", is_required=True) == required


def test_mark_of_another_family_and_one_without_a_slash() -> None:
    assert after_reasoning("[THINK]3[/THINK]4[THINK]5", end="[/THINK]", is_required=True) == "4"
    assert after_reasoning("3 ### 4", end="###", is_required=True) == " 4"
