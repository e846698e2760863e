"""Small tokenizers of tiny models, which differ from each other as those of real model families do."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hacpo_core.tiny.folders import TEMPLATE_MARKS

SYMBOLS = "0123456789+-=()\\{}\n boxed"
MAX_NUMBER = 99


def build_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer with chat template, EOS, padding and unknown token.

    Args:
        kind: "character" (one token per character of the task), "merged" (byte-pair merges up to whole numbers and
            `\\boxed{`), "word" (numbers and words, no merges), "byte" (any text, one token per byte).
    """
    builders = {"character": _character, "merged": _merged_tokenizer, "word": _word, "byte": _byte}
    user, assistant, end = TEMPLATE_MARKS[kind]
    template = (
        "{% for message in messages %}"
        f"{{{{ '{user}' if message['role'] != 'assistant' else '{assistant}' }}}}{{{{ message['content'] }}}}"
        "{% endfor %}"
        f"{{% if add_generation_prompt %}}{{{{ '{assistant}' }}}}{{% endif %}}"
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=builders[kind](),
        eos_token=end,
        pad_token="<|pad|>",
        unk_token="<|unk|>",
        additional_special_tokens=[user, assistant],
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


def _symbol_vocabulary() -> dict[str, int]:
    tokens = ["<|unk|>", *sorted(set(SYMBOLS))]
    return {token: index for index, token in enumerate(tokens)}


def _character() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=_symbol_vocabulary(), merges=[], unk_token="<|unk|>"))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _merged_tokenizer() -> Tokenizer:
    vocabulary = _symbol_vocabulary()
    merges: list[tuple[str, str]] = []
    phrase = "\\boxed{"
    pairs = [(str(tens), str(ones)) for tens in range(1, 3) for ones in range(10)]
    pairs += [(phrase[:end], phrase[end]) for end in range(1, len(phrase))]
    pairs += [("=", "-")]
    for left, right in pairs:
        vocabulary[left + right] = len(vocabulary)
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<|unk|>"))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _word() -> Tokenizer:
    tokens = ["<|unk|>", *sorted(set(SYMBOLS)), *(str(n) for n in range(10, MAX_NUMBER + 1)), "\\boxed", "()"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<|unk|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\d{1,2}|\\boxed|[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _byte() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<|unk|>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
