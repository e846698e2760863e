"""Log-probabilities of one text under two tokenizers.

Shapes: N token of the learner, M token of another agent.
"""

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from hacpo_core.data.tokens.alignment import Aligner, TokenEnds, span_differences
from tests import tokenizers_zoo as zoo

TEXT = "x + y = 7, so 12"


def ids_of(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_spans_by_hand() -> None:
    # own: ab|c|d   other: a|bc|d   shared end: behind c
    found = span_differences(
        np.array([-1.0, -2.0, -4.0]), np.array([2, 3, 4]), np.array([-0.5, -0.5, -1.0]), np.array([1, 3, 4])
    )
    assert found.tolist() == [1.0, 1.0, 3.0]


def test_equal_tokens_are_compared_one_by_one() -> None:
    ends = np.array([1, 2, 4])
    found = span_differences(np.array([-1.0, -2.0, -3.0]), ends, np.array([-2.0, -2.0, -1.0]), ends)
    assert found.tolist() == [-1.0, 0.0, 2.0]


def test_text_without_shared_ends_is_one_span() -> None:
    own, other = np.array([-1.0, -3.0]), np.array([-1.0, -1.0, -1.0])
    assert span_differences(own, np.array([2, 4]), other, np.array([1, 3, 4])).tolist() == [0.5, 0.5]
    assert span_differences(own, None, other, np.array([1, 3, 4])).tolist() == [0.5, 0.5]
    assert span_differences(own, np.array([2, 4]), np.empty(0), np.empty(0, np.int64)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", zoo.MAKERS)
def test_ends_are_those_of_the_prefixes(name: str) -> None:
    tokenizer = zoo.MAKERS[name]()
    ids = ids_of(tokenizer, TEXT)
    ends = TokenEnds(tokenizer).of(ids)
    assert ends is not None
    decoded = [tokenizer.decode(ids[: n + 1], clean_up_tokenization_spaces=False) for n in range(len(ids))]
    assert ends.tolist() == [len(text) for text in decoded]


@pytest.mark.parametrize("other", zoo.MAKERS)
@pytest.mark.parametrize("own", zoo.MAKERS)
def test_sum_of_the_differences_is_the_difference_of_the_sums(own: str, other: str) -> None:
    draw = np.random.default_rng(0)
    tokenizers = [zoo.MAKERS[own](), zoo.MAKERS[other]()]
    ids = [np.array([*ids_of(t, TEXT), t.eos_token_id], np.int32) for t in tokenizers]
    own_N, other_M = (-draw.exponential(size=len(each)) for each in ids)
    aligner = Aligner(*tokenizers, own_eos={int(ids[0][-1])}, other_eos={int(ids[1][-1])})
    found = aligner.difference(ids[0], own_N, ids[1], other_M)
    assert found.sum() == pytest.approx(other_M.sum() - own_N.sum())
    assert found[-1] == pytest.approx(other_M[-1] - own_N[-1]), "EOS with EOS"
    if own == other:
        assert found == pytest.approx(other_M - own_N)
    else:
        assert len(set(found.round(12))) > 2, "more than one span"


def test_eos_of_one_alone_counts_nothing() -> None:
    tokenizer = zoo.character()
    ids, eos = ids_of(tokenizer, "12"), int(tokenizer.eos_token_id)
    aligner = Aligner(tokenizer, tokenizer, own_eos={eos}, other_eos={eos})
    own = np.array([*ids, eos], np.int32)
    found = aligner.difference(own, np.array([-1.0, -1.0, -5.0]), np.array(ids, np.int32), np.array([-2.0, -1.0]))
    assert found.tolist() == [-1.0, 0.0, 0.0]


def test_half_characters_have_no_ends() -> None:
    tokenizer = zoo.byte_level()
    ids = ids_of(tokenizer, "é∑")
    assert len(ids) > 2
    assert TokenEnds(tokenizer).of(ids) is None


def test_texts_that_differ_are_one_span() -> None:
    """A tokenizer that tidies spaces moves every end behind them."""
    own, other = zoo.character(), zoo.word_piece()
    text = "x =  12 + 30 = 42"
    ids = [np.array(ids_of(each, text), np.int32) for each in (own, other)]
    assert other.decode(ids[1]) != text
    own_N, other_M = -np.arange(1.0, len(ids[0]) + 1), -np.ones(len(ids[1]))
    found = Aligner(own, other, own_eos=(), other_eos=()).difference(ids[0], own_N, ids[1], other_M)
    assert len(set(found.round(12))) == 1
    assert found.sum() == pytest.approx(other_M.sum() - own_N.sum())
