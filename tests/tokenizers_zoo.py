"""Small tokenizers that differ in every way that real ones do, made in this process.

Each has a chat template, BOS, EOS, PAD and one more special token of its own:

- character: one token per character of ASCII, UNK for all else; its template writes BOS.
- byte_level: byte-level BPE, reads any text; its template writes no BOS, though the tokenizer would add one; `<|box|>`
  is special in the backend alone, under no name.
- word_piece: words, `##` continuations and UNK; its special tokens are words of the model's own vocabulary.
- metaspace: Unigram with byte fallback that puts a space before the first word; `</s>` is a piece of the model;
  both its template and the tokenizer write BOS.
"""

import string
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

CORPUS = (
    "The answer is \\boxed{42}. Let x = 3 and y = 4, then x + y = 7 and x * y = 12.",
    "We add the two numbers step by step: 12 + 30 = 42. So the sum of the numbers is 42.",
    "Therefore the answer of the problem is \\boxed{7}, and we check that 7 - 3 = 4.",
    "Please reason step by step, and put the final answer within a box: \\boxed{12}.",
)

_ASCII = "".join(character for character in string.printable if character.isprintable())

_CHARACTER_TEMPLATE = (
    "{{ '<bos>' }}{% for m in messages %}{{ m.role + ': ' + m.content + '<turn>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
_BYTE_LEVEL_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_WORD_PIECE_TEMPLATE = (
    "{% for m in messages %}{{ '[TURN] ' + m.role + ' ' + m.content + ' [EOS] ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[TURN] assistant ' }}{% endif %}"
)
_METASPACE_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{{ '[INST] ' + m.content | trim + ' [/INST]' }}{% endfor %}"
)


def character() -> PreTrainedTokenizerFast:
    pieces = ["<pad>", "<bos>", "<eos>", "<turn>", "<unk>", "\n", *_ASCII]
    backend = Tokenizer(models.WordLevel({piece: row for row, piece in enumerate(pieces)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("(?m:.)"), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens=["<turn>"],
        chat_template=_CHARACTER_TEMPLATE,
    )


def byte_level(
    *, add_prefix_space: bool = False, corpus: Iterable[str] = CORPUS, vocab_size: int = 400
) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(corpus, trainer)
    backend.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|box|>"])
    backend.add_tokens(["<think>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", backend.token_to_id("<|endoftext|>"))]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>"],
        chat_template=_BYTE_LEVEL_TEMPLATE,
    )


def word_piece() -> PreTrainedTokenizerFast:
    words = sorted({word for line in CORPUS for word in line.split()} - set(_ASCII))
    pieces = ["[PAD]", "[UNK]", "[BOS]", "[EOS]", "[TURN]", *_ASCII.replace(" ", ""), *words]
    pieces += [f"##{character}" for character in _ASCII if character != " "]
    vocabulary = {piece: row for row, piece in enumerate(pieces)}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=200))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        bos_token="[BOS]",
        eos_token="[EOS]",
        pad_token="[PAD]",
        unk_token="[UNK]",
        extra_special_tokens=["[TURN]"],
        chat_template=_WORD_PIECE_TEMPLATE,
    )


def metaspace() -> PreTrainedTokenizerFast:
    words = sorted({"▁" + word for line in CORPUS for word in line.split()})
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("<pad>", 0.0), ("[INST]", 0.0)]
    pieces += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    pieces += [("▁", -4.0)] + [(character, -5.0) for character in _ASCII if character != " "]
    pieces += [(word, -3.0) for word in words if len(word) > 2]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens=["[INST]"],
        chat_template=_METASPACE_TEMPLATE,
    )


def ids_of(tokenizer: PreTrainedTokenizerBase, *tokens: str) -> tuple[int, ...]:
    """The id of each token, taken from the vocabulary."""
    vocabulary = tokenizer.get_vocab()
    return tuple(vocabulary[token] for token in tokens)


def tokens_of(tokenizer: PreTrainedTokenizerBase, token_ids: Iterable[int]) -> list[str]:
    return list(tokenizer.convert_ids_to_tokens(list(token_ids)))


def decoded(tokenizer: PreTrainedTokenizerBase, token_ids: Iterable[int]) -> str:
    """The text with its special tokens."""
    return str(tokenizer.decode(list(token_ids), clean_up_tokenization_spaces=False))


MAKERS = {"character": character, "byte_level": byte_level, "word_piece": word_piece, "metaspace": metaspace}
TOKENIZERS = {name: make() for name, make in MAKERS.items()}
"""that no test may change"""
