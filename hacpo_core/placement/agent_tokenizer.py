"""What an agent does with text: its tokenizer, its chat template, and the cache of its prompts."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from hacpo_core.config import AgentConfig
from hacpo_core.data.prompts import (
    check_generation_prompt,
    check_template_arguments,
    leaves_mark_to_response,
    render_prompts,
    turn_end_id,
)
from hacpo_core.data.tokens.control_tokens import TEXT_LOCK
from hacpo_core.data.tokens.steps import StepReader
from hacpo_core.engines.models.loading import eos_ids, load_tokenizer
from hacpo_core.errors import ModelError
from hacpo_core.records import Message, Problem, StepSearch

MAX_PROMPTS = 2**16
"""most tokenised prompts in the cache"""


class AgentTokenizer:
    """The parts of an agent that do not need its weights: tokenizer, chat template and its arguments, end tokens.

    `eos_ids` are all ids that end a response. `end_id` is the one of them with which a partner's response ends in this
    agent's tokens: the one that the chat template writes after a turn, else the tokenizer's EOS.
    """

    def __init__(self, name: str, config: AgentConfig, *, initial: Path, stops_at_turn_end: bool = True) -> None:
        """Load the tokenizer from the folder of the initial model.

        Args:
            name: of the agent.
            config: its configuration.
            initial: folder of its initial model.
            stops_at_turn_end: `rollout.stops_at_turn_end`.

        Raises:
            ModelError: it cannot be loaded.
            ConfigError: the chat template does not use an argument.
        """
        self.name = name
        arguments = config.chat_template_kwargs
        self.template_arguments = {key: value for key, value in arguments.items() if value is not None}
        try:
            self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(initial, chat_template=config.chat_template)
            self.eos_ids = eos_ids(initial, self.tokenizer)
            check_template_arguments(self.tokenizer, self.template_arguments, agent=name)
            check_generation_prompt(self.tokenizer, arguments=self.template_arguments)
            turn_end = turn_end_id(self.tokenizer, arguments=self.template_arguments)
        except ModelError as error:
            raise ModelError(f"pair.agents.{name}: {error}") from error
        if stops_at_turn_end and turn_end is not None:
            self.eos_ids |= {turn_end}
        self.end_id = turn_end if turn_end in self.eos_ids else int(self.tokenizer.eos_token_id)
        self._prompt_ids: dict[tuple[Message, ...], tuple[int, ...]] = {}
        self._step_readers: dict[tuple[str, str], StepReader] = {}

    def unknown_ids(self, num_rows: int) -> list[int]:
        """Rows of an output embedding that no token has, nor an end of a response: vocabularies are often padded."""
        known_ids = self.eos_ids.union(self.tokenizer.get_vocab().values())
        return [token_id for token_id in range(num_rows) if token_id not in known_ids]

    def prompt_ids(self, problem: Problem) -> tuple[int, ...]:
        """The problem's prompt under this tokenizer and chat template."""
        with TEXT_LOCK:
            if problem.messages not in self._prompt_ids:
                self.render([problem])
            return self._prompt_ids[problem.messages]

    def render(self, problems: Sequence[Problem]) -> None:
        """Compute and cache the `prompt_ids` of all these problems, which is faster than one by one."""
        with TEXT_LOCK:
            if len(self._prompt_ids) > MAX_PROMPTS:  # plans that reword prompts add new ones in every step
                self._prompt_ids = {}
            self._prompt_ids |= self._render_all(
                problem for problem in problems if problem.messages not in self._prompt_ids
            )

    def _render_all(self, problems: Iterable[Problem]) -> dict[tuple[Message, ...], tuple[int, ...]]:
        conversations = list(dict.fromkeys(problem.messages for problem in problems))
        prompt_ids = render_prompts(self.tokenizer, conversations, arguments=self.template_arguments)
        return dict(zip(conversations, prompt_ids, strict=True))

    def step_reader(self, search: StepSearch) -> StepReader:
        """The reader that finds a search's steps in the agent's tokens."""
        kind = search.step_end, search.closing_mark
        with TEXT_LOCK:
            if kind not in self._step_readers:
                step_end, mark = kind
                is_written = leaves_mark_to_response(self.tokenizer, mark, arguments=self.template_arguments)
                self._step_readers[kind] = StepReader(
                    self.tokenizer, step_end=step_end, closing_mark=mark if is_written else ""
                )
            return self._step_readers[kind]
