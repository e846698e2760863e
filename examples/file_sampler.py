"""A sampler outside the package, for `engine.sampler`: it answers from a file.

    export PYTHONPATH=$PWD/examples
    hacpo train tiny gspo engine.sampler=file_sampler:FileSampler engine.sampler_options.file=$PWD/answers.json

The file maps the text of each problem to its responses: {"7+5": ["12", "So the answer is 12."]}.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hacpo_core.config import EngineConfig, ExperimentConfig
from hacpo_core.config.fields import setting
from hacpo_core.config.samplers import SamplerKind
from hacpo_core.engines.sampling.base import Sampled, SampleRequest
from hacpo_core.errors import EngineError
from hacpo_core.records import SamplingLimits


@dataclass(frozen=True)
class FileSampler(SamplerKind):
    """The declaration: what the configuration and the plan ask. It loads no torch."""

    file: str = setting("answers.json", "JSON file with the responses to each problem")

    title = "the file"
    shares_weights = True  # no copy of the weights: log-probabilities are the learner's

    def why_unfit(self, config: ExperimentConfig) -> str | None:
        is_there = Path(self.file).is_file()
        return None if is_there else f"engine.sampler_options.file: {self.file} does not exist; name a JSON file"

    def can_sleep(self, engine: EngineConfig) -> bool:
        return True  # it holds no device memory

    def open(
        self, model: Any, *, config: ExperimentConfig, agent: str, initial: Path, eos_ids: Collection[int], pad_id: int
    ) -> Any:
        from transformers import AutoTokenizer

        responses = json.loads(Path(self.file).read_text(encoding="utf-8"))
        return Answers(model, AutoTokenizer.from_pretrained(initial), responses, min(eos_ids))


class Answers:
    """The sampler: see `hacpo_core.engines.sampling.base.Sampler`."""

    name = "file"

    def __init__(self, model: Any, tokenizer: Any, responses: dict[str, list[str]], eos_id: int) -> None:
        self.model, self.tokenizer, self.responses, self.eos_id = model, tokenizer, responses, eos_id

    def sample(
        self, requests: Sequence[SampleRequest], limits: SamplingLimits, *, stop_ids: Collection[int] = ()
    ) -> Sampled:
        return Sampled.of([self._response(request, limits, stop_ids) for request in requests])

    def _response(
        self, request: SampleRequest, limits: SamplingLimits, stop_ids: Collection[int]
    ) -> tuple[list[int], list[float], bool]:
        """Token ids, their log-probabilities (nats), and whether the limit cut the response."""
        import torch

        prompt = self.tokenizer.decode(request.prompt_ids)
        problem = max((text for text in self.responses if text in prompt), key=len, default=None)
        if problem is None:
            raise EngineError(f"the file has no response to {prompt!r}; add one")
        choices = self.responses[problem]
        text = choices[0 if limits.is_greedy else request.seed % len(choices)]  # by the seed alone, so repeatable
        whole = [*self.tokenizer.encode(text, add_special_tokens=False), self.eos_id]
        stop = next((place for place, token in enumerate(whole) if token in stop_ids), len(whole) - 1)
        tokens = whole[: min(stop + 1, request.token_limit(limits))]
        ids_BT = torch.tensor([[*request.prompt_ids, *tokens]], device=self.model.device)
        with torch.no_grad():
            logits_TV = self.model(ids_BT).logits[0, len(request.prompt_ids) - 1 : -1].float()
        logprob_TV = (logits_TV / limits.temperature).log_softmax(dim=-1)
        return tokens, logprob_TV[range(len(tokens)), tokens].tolist(), len(tokens) <= stop

    def synchronise(self, version: int, check: Callable[[], None]) -> None:
        """The learner's weights are used where they are; an engine with a copy loads them here, then calls `check`."""

    def rest(self) -> None:
        """Nothing is held on the device."""

    def close(self) -> None:
        """Nothing was started."""
