"""Model folders: what is wrong with a broken one, what identifies a good one, what is never executed.

Shapes: B sequence, T token, V vocabulary.
"""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from huggingface_hub.errors import GatedRepoError
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    LlamaConfig,
    PreTrainedModel,
)

from hacpo_core.engines.models.folders import check_model_folder, find_model, model_fingerprint
from hacpo_core.engines.models.loading import (
    check_device,
    check_lengths,
    check_vocabulary,
    disable_noise,
    eos_ids,
    load_model,
    load_tokenizer,
)
from hacpo_core.engines.models.lora import save_model
from hacpo_core.engines.passes.layouts import ForwardPass
from hacpo_core.engines.passes.scoring import scoring_head
from hacpo_core.errors import ConfigError, ModelError
from hacpo_core.tiny.tokenizers import build_tokenizer
from tests import tokenizers_zoo as zoo
from tests.engines.small import FAMILIES, TOKENIZER, VOCAB_SIZE, small_model


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "pristine"
    small_model().save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A sound model folder that a test may break."""
    return Path(shutil.copytree(pristine, tmp_path / "model"))


def change_json(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def check(folder: Path, *, has_template_override: bool = False) -> None:
    check_model_folder(folder, agent="qwen", has_template_override=has_template_override)


def test_sound_folder_passes_and_loads(folder: Path) -> None:
    check(folder)
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    check_vocabulary(model, tokenizer, agent="qwen")
    state = small_model().state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert tokenizer.eos_token == TOKENIZER.eos_token
    assert tokenizer.chat_template == TOKENIZER.chat_template


# What is done to the folder, what the message says is wrong, and what it says to do.


def test_neither_folder_nor_hub_name_is_named_with_its_agent(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"pair\.agents\.qwen\.path: .*nowhere is not a folder; set pair\.agents\.qwen"
    ):
        find_model(str(tmp_path / "nowhere"), agent="qwen")
    with pytest.raises(
        ModelError, match=r"pair\.agents\.qwen\.path: \.\./nowhere is not a folder here and cannot be downloaded"
    ):
        find_model("../nowhere", agent="qwen")
    assert find_model(str(tmp_path), agent="qwen") == tmp_path


def test_gated_model_is_told_with_its_licence_and_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def gated(name: str) -> Path:
        raise GatedRepoError(
            "403 Client Error", response=httpx.Response(403, request=httpx.Request("GET", "http://hub"))
        )

    monkeypatch.setattr("hacpo_core.engines.models.folders._downloaded", gated)
    with pytest.raises(ModelError, match=r"path: me/gated is gated: accept .*/me/gated, then set HF_TOKEN"):
        find_model("me/gated", agent="qwen")


def test_tokenizer_of_another_model_is_noticed() -> None:
    tokenizer = build_tokenizer("character")
    check_vocabulary(small_model(), tokenizer, agent="qwen")
    tokenizer.add_tokens(["<extra0>", "<extra1>", "<extra2>"])
    with pytest.raises(ModelError, match=rf"pair\.agents\.qwen: .*{VOCAB_SIZE + 3} tokens.*only {VOCAB_SIZE} emb"):
        check_vocabulary(small_model(), tokenizer, agent="qwen")


def test_generation_settings_that_contradict_each_other_do_not_keep_a_model_from_being_saved(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"do_sample": False, "temperature": 0.6, "eos_token_id": [1, 2]}
    (folder / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
    model = load_model(folder)
    save_model(model, tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "generation_config.json").read_text())["eos_token_id"] == [1, 2]
    assert "generation_config.json is contradictory" in caplog.text


def test_eos_ids_are_gathered_from_tokenizer_and_both_configurations(folder: Path) -> None:
    eos = int(TOKENIZER.eos_token_id)
    change_json(folder / "config.json", eos_token_id=3)
    change_json(folder / "generation_config.json", eos_token_id=[eos, 4, 5])
    assert eos_ids(folder, TOKENIZER) == {eos, 3, 4, 5}
    change_json(folder / "config.json", eos_token_id=None)
    (folder / "generation_config.json").unlink()
    assert eos_ids(folder, TOKENIZER) == {eos}


_CODE = """
from contextlib import nullcontext
from pathlib import Path
from transformers import PretrainedConfig, PreTrainedModel
Path({sentinel!r}).write_text("executed")
class EvilConfig(PretrainedConfig):
    model_type = "evil"
class EvilModel(PreTrainedModel):
    config_class = EvilConfig
"""


@pytest.mark.parametrize("model_type", ["evil", "qwen3"])
def test_code_in_a_model_folder_is_not_executed(model_type: str, folder: Path, tmp_path: Path) -> None:
    sentinel = tmp_path / "sentinel"
    (folder / "evil.py").write_text(_CODE.format(sentinel=str(sentinel)))
    auto_map = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilModel"}
    change_json(folder / "config.json", model_type=model_type, architectures=["EvilModel"], auto_map=auto_map)
    change_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.EvilTokenizer", None]})
    if model_type == "qwen3":
        assert type(load_model(folder)).__name__ == "Qwen3ForCausalLM"
    else:
        with pytest.raises(ModelError, match="cannot be loaded"):
            load_model(folder)
    load_tokenizer(folder)
    assert not sentinel.exists()


def test_pickled_weights_are_not_read_though_they_lie_beside(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"never unpickled")
    check(folder)
    assert torch.equal(load_model(folder).lm_head.weight, small_model().lm_head.weight)


def test_device_that_this_machine_lacks_is_named_before_anything_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"engine.device: got cuda, but PyTorch sees no GPU here; set engine.device="):
        load_model(folder, device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    check_device("cuda")


def test_learned_positions_are_a_limit_whose_fields_are_named(tmp_path: Path) -> None:
    GPT2Config(n_positions=64).save_pretrained(tmp_path)
    check_lengths(tmp_path, prompt=44, response=20, agent="qwen")
    message = "may have 44 tokens and a response 21, but the model has learned 64 positions, or .*; lower rollout"
    with pytest.raises(ConfigError, match=message):
        check_lengths(tmp_path, prompt=44, response=21, agent="qwen")


NOISY: dict[str, dict[str, Any]] = {
    "gpt_neox": {"attention_dropout": 0.5, "hidden_dropout": 0.5},
    "opt": {"dropout": 0.5, "ffn_dim": 16, "word_embed_proj_dim": 16},  # a number of its layers
    "falcon": {"hidden_dropout": 0.5},  # a number of the configuration, read in every pass
    "mixtral": {"router_jitter_noise": 0.5, "num_local_experts": 2, "num_key_value_heads": 1},
}


def noisy_model(family: str) -> PreTrainedModel:
    sizes = {"vocab_size": 31, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = AutoConfig.for_model(family, **sizes, num_attention_heads=2, pad_token_id=0, **NOISY[family])
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


@pytest.mark.parametrize("family", sorted(NOISY))
def test_nothing_is_random_even_while_training(family: str) -> None:
    model, ids_BT = noisy_model(family).train(), torch.arange(2, 10).view(1, 8)
    assert not torch.equal(model(ids_BT).logits, model(ids_BT).logits)
    disable_noise(model)
    torch.testing.assert_close(model(ids_BT).logits, model.eval()(ids_BT).logits)


def capped_model(*, gain: float) -> PreTrainedModel:
    """A Gemma 2, whose logits go through 2 tanh(logits / 2)."""
    config = Gemma2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        final_logit_softcapping=2.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Gemma2ForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(gain)
    return model


@pytest.mark.parametrize("family", [*FAMILIES, "gemma2"])
def test_scores_are_those_of_the_models_own_logits(family: str) -> None:
    model = capped_model(gain=30.0) if family == "gemma2" else small_model(family)
    head = scoring_head(model)
    assert head.is_linear is (family != "gemma2")
    input_BT = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]])
    sequence_N, column_N, target_N = torch.tensor([0, 0, 1]), torch.tensor([1, 2, 0]), torch.tensor([3, 4, 6])
    scores = head.scores(ForwardPass((0, 1), input_BT, sequence_N, column_N, target_N), temperature=0.7, chunk_mb=1)
    logprob_BTV = (model(input_ids=input_BT).logits.double() / 0.7).log_softmax(dim=2)
    expected_N = logprob_BTV[sequence_N, column_N, target_N]
    torch.testing.assert_close(scores.logprob_N.double(), expected_N, rtol=0.0, atol=1e-5)


def test_cap_is_noticed_before_the_logits_reach_it() -> None:
    assert not scoring_head(capped_model(gain=1.0)).is_linear


def test_byte_level_tokenizer_under_llamas_class_name_keeps_its_spaces(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved = zoo.byte_level()
    saved.save_pretrained(tmp_path)
    expected = saved("12 + 30 = 42", add_special_tokens=False)["input_ids"]
    change_json(tmp_path / "tokenizer_config.json", tokenizer_class="LlamaTokenizerFast")  # as DeepSeek's have it
    loaded = load_tokenizer(tmp_path)
    assert loaded("12 + 30 = 42", add_special_tokens=False)["input_ids"] == expected
    assert loaded.decode(expected) == "12 + 30 = 42"
    assert loaded.chat_template == saved.chat_template
    assert "LlamaTokenizer loses spaces; tokenizer.json is used as it is" in caplog.text


def test_what_a_folder_lacks_is_named_with_its_agent_and_remedy(pristine: Path, tmp_path: Path) -> None:
    for name, file, content, message in (
        ("config", "config.json", None, "has no config.json.*save_pretrained"),
        ("broken", "config.json", "{", "config.json is not JSON.*copy it again"),
        ("list", "config.json", "[]", "got list, expected a JSON object"),
        ("empty", "config.json", "{}", "config.json without model_type"),
        ("weights", "model.safetensors", None, "has no weights.*safe_serialization=True"),
        ("tokenizer", "tokenizer.json", None, "has no tokenizer.*copy the tokenizer's files"),
        ("template", "chat_template.jinja", None, "has no chat template.*or set pair.agents.qwen.chat_template"),
    ):
        folder = Path(shutil.copytree(pristine, tmp_path / name))
        (folder / file).unlink() if content is None else (folder / file).write_text(content)
        with pytest.raises(ModelError, match=f"^pair.agents.qwen: .*{folder}.*{message}"):
            check(folder)
    (tmp_path / "weights" / "pytorch_model.bin").touch()
    with pytest.raises(ModelError, match="has pytorch_model.bin, a pickle, but no"):
        check(tmp_path / "weights")


def test_template_comes_from_the_configuration_or_from_the_tokenizers(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    check(folder, has_template_override=True)
    assert load_tokenizer(folder, chat_template="{{ 'x' }}").chat_template == "{{ 'x' }}"
    change_json(folder / "tokenizer_config.json", chat_template="{{ 'x' }}", pad_token=None)
    check(folder)
    assert load_tokenizer(folder).pad_token_id == TOKENIZER.eos_token_id
    change_json(folder / "tokenizer_config.json", eos_token=None)
    with pytest.raises(ModelError, match=r"no EOS token; set eos_token"):
        load_tokenizer(folder)


def test_what_cannot_be_loaded_is_a_model_error(pristine: Path, tmp_path: Path) -> None:
    config = json.loads((pristine / "config.json").read_text())
    layers = {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
    half = (pristine / "model.safetensors").read_bytes()
    for number, (file, content, message) in enumerate(
        (
            ("model.safetensors", half[: len(half) // 2], "cannot be loaded"),
            ("model.safetensors", b"", "cannot be loaded"),
            ("config.json", json.dumps(config | {"hidden_size": 32}).encode(), "cannot be loaded"),
            ("config.json", json.dumps(config | layers).encode(), r"11 weights are missing, such as model\.layers\.1"),
            ("config.json", b'{"model_type": "no_such_model"}', "cannot be loaded"),
            ("tokenizer.json", b"{", r"tokenizer cannot be loaded.*save it again"),
        )
    ):
        folder = Path(shutil.copytree(pristine, tmp_path / str(number)))
        (folder / file).write_bytes(content)
        with pytest.raises(ModelError, match=message):
            load_tokenizer(folder) if file == "tokenizer.json" else load_model(folder)


def test_fingerprint_is_of_every_file_and_tensor_and_not_of_the_place(folder: Path, tmp_path: Path) -> None:
    (folder / "modeling_own.py").touch()
    before = model_fingerprint(folder)
    (folder / "README.md").write_text("for people")
    assert model_fingerprint(Path(shutil.copytree(folder, tmp_path / "elsewhere"))) == before
    for name in ("config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json", "modeling_own.py"):
        text = (folder / name).read_text()
        (folder / name).write_text(text + " ")
        assert model_fingerprint(folder) != before, name
        (folder / name).write_text(text)
    path = folder / "model.safetensors"
    weights = load_file(path)
    for name in weights:
        save_file({**weights, name: weights[name] + 1}, path, metadata={"format": "pt"})
        assert model_fingerprint(folder) != before, name


def test_rotation_that_changes_within_the_longest_sequence_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dynamic = {"rope_type": "dynamic", "factor": 2.0}
    longrope = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "factor": 2.0}
    for rotation, longest, is_refused in (
        (dynamic, 65, True),
        (dynamic, 64, False),
        (dynamic | {"original_max_position_embeddings": 32}, 33, True),
        (longrope, 65, True),
        ({"rope_type": "linear", "factor": 2.0}, 65, False),
    ):
        rope = rotation | {"rope_theta": 1e4}
        LlamaConfig(head_dim=16, max_position_embeddings=64, rope_parameters=rope).save_pretrained(tmp_path)
        refused = pytest.raises(ConfigError, match=f"a response {longest - 9}, .* or its rotary embeddings change")
        with refused if is_refused else nullcontext():
            check_lengths(tmp_path, prompt=9, response=longest - 9, agent="qwen")
    assert "a response 56, but the model has 64" in caplog.text
