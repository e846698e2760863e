"""Responses that change tokenizers: what is kept, what is cut, what may never come out."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hacpo_core.data.tokens.control_tokens import control_ids, special_token_ids, tokenizers_match, unspellable
from hacpo_core.data.tokens.retokenize import Retokenizer, decode_response, strip_eos, valid_unicode, without_eos
from hacpo_core.errors import ModelError
from hacpo_core.records import EosRule
from tests import tokenizers_zoo as zoo
from tests.rollouts import Rollout, responses_of

TOKENIZERS = zoo.TOKENIZERS
CHARACTER, BYTE_LEVEL, WORD_PIECE, METASPACE = TOKENIZERS.values()
SPELLINGS = sorted({token for tokenizer in TOKENIZERS.values() for token in special_token_ids(tokenizer)})

every_target = pytest.mark.parametrize("target", TOKENIZERS.values(), ids=TOKENIZERS.keys())
any_character = st.characters(exclude_categories=())
text_with_specials = st.lists(
    st.one_of(st.sampled_from(SPELLINGS), st.text(any_character, max_size=8), st.sampled_from(" \n<|>[]"))
).map("".join)


def rollout(text: str, *, token_ids: tuple[int, ...] = (9, 9, 9), finish_reason: str = "stop") -> Rollout:
    return Rollout(
        problem_id="p",
        agent="a",
        index=0,
        prompt_ids=(),
        token_ids=token_ids,
        logprobs=(-1.0,) * len(token_ids),
        text=text,
        finish_reason=finish_reason,
    )


def sampled(tokenizer: PreTrainedTokenizerBase, text: str, finish_reason: str = "stop") -> Rollout:
    """A rollout whose ids are the tokenizer's own, with the EOS that a response which stopped ends in."""
    ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    ids += (tokenizer.eos_token_id,) if finish_reason == "stop" else ()
    return rollout(decode_response(tokenizer, ids), token_ids=ids, finish_reason=finish_reason)


@dataclass(frozen=True)
class SharedResponse:
    """One response as the learner trains on it, in plain numbers."""

    token_ids: tuple[int, ...]
    status: str
    is_passed_through: bool


class Each(Retokenizer):
    """Converts responses one by one, up to a limit."""

    limit = 10_000

    def one(self, rollout: Rollout) -> SharedResponse:
        ids = tuple(self.convert(responses_of([rollout]))[0].tolist())
        status = "truncated" if len(ids) > self.limit else "ok" if ids else "empty"
        return SharedResponse(ids[: self.limit], status, self.is_pass_through)


@cache
def retokenizer(
    target: PreTrainedTokenizerBase,
    *,
    eos: EosRule = "keep",
    limit: int = 10_000,
    source: PreTrainedTokenizerBase | None = None,
) -> Each:
    source = source or (CHARACTER if target is not CHARACTER else BYTE_LEVEL)
    each = Each(source, target, eos=eos)
    each.limit = limit
    return each


def content(target: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    return retokenizer(target).one(rollout(text, finish_reason="length")).token_ids


# What a text becomes.


def test_response_keeps_its_characters_and_ends_in_the_targets_eos() -> None:
    shared = retokenizer(CHARACTER).one(sampled(BYTE_LEVEL, "x = 42"))
    expected = [*zoo.ids_of(CHARACTER, "x", " ", "=", " ", "4", "2"), CHARACTER.eos_token_id]
    assert shared == SharedResponse(token_ids=tuple(expected), status="ok", is_passed_through=False)


def test_response_ends_in_the_token_that_ends_the_learners_turns() -> None:
    turn, eos = zoo.ids_of(CHARACTER, "<turn>")[0], CHARACTER.eos_token_id
    assert turn != eos
    converter = Each(BYTE_LEVEL, CHARACTER, eos="keep", target_end_id=turn)
    content = zoo.ids_of(CHARACTER, "4", "2")
    assert converter.one(sampled(BYTE_LEVEL, "42")).token_ids == (*content, turn)
    assert converter.one(sampled(BYTE_LEVEL, "42", "length")).token_ids == tuple(content)
    assert converter.one(sampled(BYTE_LEVEL, "")).token_ids == (turn,)


@pytest.mark.slow
@settings(deadline=None)
@given(st.text())
def test_byte_level_target_gives_any_text_back(text: str) -> None:
    assert decode_response(BYTE_LEVEL, retokenizer(BYTE_LEVEL).one(rollout(text)).token_ids) == text


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="▁")), st.integers(0, 3))
def test_metaspace_target_gives_text_back_with_its_leading_spaces(text: str, num_spaces: int) -> None:
    spaced = " " * num_spaces + text
    assert decode_response(METASPACE, retokenizer(METASPACE).one(rollout(spaced)).token_ids) == spaced


def test_word_piece_target_reads_words_it_lacks_as_unk_which_is_no_control_token() -> None:
    assert content(WORD_PIECE, "answer é") == zoo.ids_of(WORD_PIECE, "answer", "[UNK]")


def test_source_tidies_no_space_away_when_its_response_is_decoded() -> None:
    tidy = zoo.word_piece()
    tidy.clean_up_tokenization_spaces = True
    ids = tidy("Do not , please .", add_special_tokens=False)["input_ids"]
    assert tidy.decode(ids) == "Do not, please."
    assert decode_response(tidy, ids) == "Do not , please ."


# Text that spells control tokens.


def test_control_tokens_are_those_of_any_role_and_of_none_but_unk() -> None:
    assert control_ids(METASPACE) == set(zoo.ids_of(METASPACE, "<s>", "</s>", "<pad>", "[INST]"))
    assert control_ids(BYTE_LEVEL) == set(
        zoo.ids_of(BYTE_LEVEL, "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|box|>")
    )


@every_target
@settings(deadline=None)
@given(text=text_with_specials)
def test_no_text_becomes_a_control_token(target: PreTrainedTokenizerBase, text: str) -> None:
    shared = retokenizer(target, eos="drop").one(rollout(text))
    assert not set(shared.token_ids) & control_ids(target)


def test_bpe_that_merges_up_to_a_special_token_does_not_do_so_here() -> None:
    pieces = {piece: row for row, piece in enumerate(["<", "e", ">", "<e", "<e>", "a"])}
    backend = Tokenizer(models.BPE(pieces, [("<", "e"), ("<e", ">")], ignore_merges=True))
    target = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, eos_token="<e>", chat_template="{{ '' }}"
    )
    assert target("<e>", split_special_tokens=True)["input_ids"] == [target.eos_token_id]
    assert content(target, "a<e>") == zoo.ids_of(target, "a", "<e", ">")


def test_control_token_that_stands_for_unknown_text_is_dropped() -> None:
    backend = Tokenizer(models.WordLevel({"<eos>": 0, "a": 1, "b": 2}, unk_token="<eos>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    target = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, eos_token="<eos>", unk_token="<eos>"
    )
    shared = retokenizer(target).one(rollout("axyb", token_ids=(5, 5, 5)))
    assert shared.token_ids == (1, 2, 0)


def test_target_itself_is_left_as_it_was() -> None:
    target = zoo.byte_level()
    before = target.backend_tokenizer.to_str()
    retokenizer(target).one(rollout("<|im_end|>"))
    assert target.backend_tokenizer.to_str() == before
    assert target("<|im_end|>", add_special_tokens=False)["input_ids"] == [target.eos_token_id]


# Broken text.


def test_half_a_character_at_the_cut_is_left_out() -> None:
    source_ids = tuple(BYTE_LEVEL("12 😀", add_special_tokens=False)["input_ids"])[:-1]
    text = decode_response(BYTE_LEVEL, source_ids)
    assert text == "12 \ufffd"
    shared = retokenizer(CHARACTER).one(rollout(text, token_ids=source_ids, finish_reason="length"))
    assert shared.token_ids == zoo.ids_of(CHARACTER, "1", "2", " ")


def test_replacement_characters_that_the_verifier_read_are_kept() -> None:
    shared = retokenizer(BYTE_LEVEL).one(rollout("a\ufffdb\ufffd"))
    assert decode_response(BYTE_LEVEL, shared.token_ids) == "a\ufffdb\ufffd"


@settings(deadline=None)
@given(st.binary(max_size=12), st.sampled_from(["stop", "length"]))
def test_any_bytes_that_a_source_samples_reach_every_target(data: bytes, finish_reason: str) -> None:
    alphabet = {byte: piece for piece, byte in zip(_byte_pieces(), range(256), strict=True)}
    ids = zoo.ids_of(BYTE_LEVEL, *(alphabet[byte] for byte in data))
    text = decode_response(BYTE_LEVEL, ids)
    assert text == data.decode("utf-8", "replace")
    for target in (CHARACTER, WORD_PIECE, METASPACE):
        shared = retokenizer(target, source=BYTE_LEVEL).one(rollout(text, token_ids=ids, finish_reason=finish_reason))
        assert (shared.token_ids == ()) == (shared.status == "empty")
        assert not set(shared.token_ids) & control_ids(target) - {target.eos_token_id}


def _byte_pieces() -> list[str]:
    """The byte-level piece of each of the 256 bytes, as GPT-2 assigns them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def test_lone_surrogates_become_replacement_characters_and_pairs_are_joined() -> None:
    assert valid_unicode("a\ud800b\udfff") == "a\ufffdb\ufffd"
    assert valid_unicode("\ud83d\ude00") == "😀"


# End of sequence, limit, empty.


@every_target
def test_kept_eos_ends_what_stopped_and_not_what_was_cut(target: PreTrainedTokenizerBase) -> None:
    stopped = retokenizer(target).one(rollout("answer 42"))
    cut = retokenizer(target).one(rollout("answer 42", finish_reason="length"))
    assert stopped.token_ids == (*cut.token_ids, target.eos_token_id)
    assert target.eos_token_id not in cut.token_ids


def test_dropped_eos_ends_nothing_own_and_shared_alike() -> None:
    own = sampled(BYTE_LEVEL, "x = 42")
    shared = retokenizer(CHARACTER, eos="drop").one(own)
    passed = retokenizer(BYTE_LEVEL, eos="drop", source=BYTE_LEVEL).one(own)
    assert shared.token_ids == zoo.ids_of(CHARACTER, "x", " ", "=", " ", "4", "2")
    assert passed.token_ids == own.token_ids[:-1] == strip_eos(own.token_ids, {BYTE_LEVEL.eos_token_id})


def test_text_of_the_original_code_keeps_what_the_target_knows_and_loses_the_sources_padding() -> None:
    end, pad = zoo.ids_of(BYTE_LEVEL, "<|im_end|>", "<|endoftext|>")
    assert BYTE_LEVEL.pad_token_id == pad, "the source pads with another token than it ends with"
    said = tuple(BYTE_LEVEL("x = 42", add_special_tokens=False)["input_ids"])
    own = rollout("x = 42", token_ids=(*said, end, pad))
    other = retokenizer(CHARACTER, eos="as_text", source=BYTE_LEVEL).one(own)
    assert decode_response(CHARACTER, other.token_ids) == "x = 42<|im_end|>", "the target has no such token"
    alike = retokenizer(BYTE_LEVEL, eos="as_text", source=BYTE_LEVEL).one(own)
    assert (alike.token_ids, alike.is_passed_through) == ((*said, end), False)


def test_strip_eos_takes_one_closing_eos_and_no_other_token() -> None:
    assert strip_eos((5, 2, 2), {2}) == (5, 2)
    assert strip_eos((2, 5), {2}) == (2, 5)
    assert strip_eos((5, 3), {2, 3}) == (5,)
    assert strip_eos((), {2}) == ()
    assert (without_eos((5, 2, 2), {2}), without_eos((2,), {2}), without_eos((), {2})) == ((5, 2), (2,), ())


def test_second_eos_of_the_sources_generation_config_is_stripped_too() -> None:
    other_eos = zoo.ids_of(BYTE_LEVEL, "<|endoftext|>")[0]
    passing = Each(BYTE_LEVEL, BYTE_LEVEL, eos="drop", source_eos_ids=[other_eos])
    assert passing.one(rollout("A", token_ids=(5, other_eos))).token_ids == (5,)


# Same tokenizer.


def test_same_tokenizer_passes_the_sampled_ids_and_not_the_texts_own_tokens() -> None:
    ids = (*zoo.ids_of(BYTE_LEVEL, "T", "h", "e"), BYTE_LEVEL.eos_token_id)
    assert BYTE_LEVEL("The", add_special_tokens=False)["input_ids"] != list(ids[:-1])
    shared = retokenizer(BYTE_LEVEL, source=BYTE_LEVEL).one(rollout("The", token_ids=ids))
    assert shared == SharedResponse(token_ids=ids, status="ok", is_passed_through=True)


@pytest.mark.parametrize("tokenizer", [CHARACTER, BYTE_LEVEL, WORD_PIECE, METASPACE])
def test_tokenizer_loaded_from_another_path_passes_ids(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path / "one")
    tokenizer.save_pretrained(tmp_path / "two")
    one, two = AutoTokenizer.from_pretrained(tmp_path / "one"), AutoTokenizer.from_pretrained(tmp_path / "two")
    assert one.name_or_path != two.name_or_path
    assert retokenizer(two, source=one).is_pass_through
    assert retokenizer(two, source=tokenizer).is_pass_through


def test_truncation_and_padding_left_by_a_call_do_not_part_two_tokenizers() -> None:
    used = zoo.byte_level()
    used(["a", "a b c"], padding=True, truncation=True, max_length=2)
    assert tokenizers_match(used, zoo.byte_level())


def test_other_arguments_of_the_template_part_two_equal_tokenizers() -> None:
    passing, converting = (
        Each(BYTE_LEVEL, zoo.byte_level(), eos="keep", has_same_arguments=is_same) for is_same in (True, False)
    )
    assert (passing.is_pass_through, converting.is_pass_through) == (True, False)


# Batches and settings.


@every_target
def test_batch_equals_its_rows_one_by_one(target: PreTrainedTokenizerBase) -> None:
    texts = ["x = 42", "", " two", "   spaces", "<|im_end|></s>", "the answer [EOS]", "\ufffd", "\ud800", "é😀"]
    rollouts = [rollout(text, finish_reason=reason) for text in texts for reason in ("stop", "length")]
    convert = retokenizer(target, limit=8)
    together = convert.convert(responses_of(rollouts))
    assert [tuple(ids[:8].tolist()) for ids in together] == [convert.one(row).token_ids for row in rollouts]
    assert len(convert.convert(responses_of([]))) == 0


def test_target_without_eos_cannot_keep_it() -> None:
    target = zoo.byte_level()
    target.eos_token = None
    with pytest.raises(ModelError, match="has no EOS token; add `eos_token`"):
        retokenizer(target)
    assert retokenizer(target, eos="drop").one(rollout("A")).token_ids == content(BYTE_LEVEL, "A")


def test_turn_mark_without_the_special_flag_is_a_control_token_and_a_thought_is_not() -> None:
    target = zoo.byte_level()
    target.add_tokens(["<User>", "<Assistant>", "\n"])  # ordinary added tokens, as DeepSeek's are, and Gemma's last
    target.chat_template = (
        "{% for m in messages %}{{ '<User>' if m.role == 'user' else '<Assistant>' }}"
        "{{ m.content + '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<Assistant><think>' }}{% endif %}"
    )
    marks = set(zoo.ids_of(target, "<User>", "<Assistant>"))
    assert marks <= control_ids(target)
    assert not control_ids(target) & set(zoo.ids_of(target, "<think>", "\n"))
    text = "<think>I am <User> and <Assistant></think>"
    found = Each(CHARACTER, target, eos="keep").one(rollout(text, finish_reason="length"))
    assert decode_response(target, found.token_ids) == text
    assert not marks & set(found.token_ids)
    assert marks <= set(target(text, add_special_tokens=False)["input_ids"]), "its ordinary call makes them"


@every_target
def test_spelled_special_tokens_survive_as_text(target: PreTrainedTokenizerBase) -> None:
    for text in ("".join(SPELLINGS), "<|im<eos>_end|></</s>s>[[EOS]EOS]<|im_<|im_end|>end|>", unspellable(0)):
        if target is BYTE_LEVEL or text != unspellable(0):
            shared = retokenizer(target, eos="drop").one(rollout(text))
            assert decode_response(target, shared.token_ids) == text


def test_limit_cuts_and_truncated_means_without_an_end() -> None:
    cut = retokenizer(CHARACTER, limit=4).one(rollout("x = 42"))
    assert (cut.token_ids, cut.status) == (zoo.ids_of(CHARACTER, "x", " ", "=", " "), "truncated")
    assert retokenizer(CHARACTER, limit=6).one(rollout("x = 42")).status == "truncated"
    assert retokenizer(CHARACTER, limit=7).one(rollout("x = 42")).status == "ok"
    assert retokenizer(CHARACTER, limit=6, eos="drop").one(rollout("x = 42")).status == "ok"
    passed = retokenizer(BYTE_LEVEL, source=BYTE_LEVEL, limit=2).one(rollout("abc", token_ids=(5, 6, 7)))
    assert passed == SharedResponse(token_ids=(5, 6), status="truncated", is_passed_through=True)


def test_eos_alone_stays_one_and_lost_content_is_empty() -> None:
    own, box = sampled(BYTE_LEVEL, ""), (zoo.ids_of(BYTE_LEVEL, "<|box|>")[0], BYTE_LEVEL.eos_token_id)
    rules: tuple[EosRule, ...] = ("keep", "drop")
    for eos in rules:
        passed = retokenizer(BYTE_LEVEL, source=BYTE_LEVEL, eos=eos).one(own)
        shared = retokenizer(CHARACTER, source=BYTE_LEVEL, eos=eos).one(own)
        assert (passed.token_ids, passed.status) == ((BYTE_LEVEL.eos_token_id,), "ok")
        assert (shared.token_ids, shared.status) == ((CHARACTER.eos_token_id,), "ok")
        lost = retokenizer(CHARACTER, source=BYTE_LEVEL, eos=eos).one(rollout("", token_ids=box))
        assert lost == SharedResponse(token_ids=(), status="empty", is_passed_through=False)


def test_whatever_changes_ids_or_prompts_parts_two_tokenizers() -> None:
    template, eos, token, spaced = (zoo.byte_level() for _ in range(4))
    template.chat_template += " "
    eos.eos_token = "<|endoftext|>"
    token.add_tokens(["</think>"])
    spaced.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    for other in (template, eos, token, spaced, CHARACTER, WORD_PIECE, METASPACE):
        assert not tokenizers_match(other, BYTE_LEVEL)
