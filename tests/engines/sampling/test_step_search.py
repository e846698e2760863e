"""The search over steps: what it keeps, by hand, and what it does with a real sampler."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from hacpo_core.data.tokens.steps import StepReader
from hacpo_core.engines.sampling.base import Sampled, SampleRequest
from hacpo_core.engines.sampling.step_search import SearchRequest, search_all
from hacpo_core.engines.sampling.transformers_sampler import TransformersSampler
from hacpo_core.errors import EngineError
from hacpo_core.records import SamplingLimits, StepSearch
from tests import tokenizers_zoo as zoo
from tests.engines.small import TOKENIZER, small_model

CHARACTER = zoo.character()
(EOS,) = zoo.ids_of(CHARACTER, "<eos>")
LIMITS = SamplingLimits(temperature=1.0, top_p=1.0, max_tokens=40)
SEARCH = StepSearch(num_beams=2, num_candidates=2, step_tokens=20, step_end="\n\n", closing_mark="")
PROMPT = "?"
GREEDY = "greedy"


def ids_of(text: str) -> list[int]:
    """Tokens of a text, one a character; `#` is the EOS."""
    return [EOS if c == "#" else zoo.ids_of(CHARACTER, c)[0] for c in text]


def text_of(token_ids: Sequence[int]) -> str:
    return "".join("#" if i == EOS else zoo.tokens_of(CHARACTER, [i])[0] for i in token_ids)


@dataclass
class Tree:
    """A sampler that says what is written here: behind each text, continuations and the log-probability of each token.

    The k-th request behind a text is given the k-th continuation; greedy ones what stands under GREEDY.
    """

    continuations: dict[str, list[tuple[str, float]]]
    name: str = "tree"
    asked: list[tuple[str, SamplingLimits, int | None]] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    stops: set[Collection[int]] = field(default_factory=set)

    def sample(
        self, requests: Sequence[SampleRequest], limits: SamplingLimits, *, stop_ids: Collection[int] = ()
    ) -> Sampled:
        count: dict[str, int] = defaultdict(int)
        responses = []
        for request in requests:
            text = text_of(request.prompt_ids).removeprefix(PROMPT)
            given = self.continuations[f"{GREEDY} {text}" if limits.is_greedy else text]
            answer, logprob = given[count[text] % len(given)]
            count[text] += 1
            self.asked.append((text, limits, request.max_tokens))
            self.seeds.append(request.seed)
            ids = ids_of(answer)[: request.token_limit(limits)]
            responses.append((ids, [logprob] * len(ids), EOS not in ids))
        self.stops.add(stop_ids)
        return Sampled.of(responses)

    def synchronise(self, version: int, check: Callable[[], None]) -> None: ...

    def rest(self) -> None: ...

    def close(self) -> None: ...


def request_of(
    number: int = 2,
    *,
    search: StepSearch = SEARCH,
    limits: SamplingLimits = LIMITS,
    tokenizer: PreTrainedTokenizerBase = CHARACTER,
    prompt: Sequence[int] = (),
    seed: int = 7,
) -> SearchRequest:
    reader = StepReader(tokenizer, step_end=search.step_end, closing_mark=search.closing_mark)
    return SearchRequest(tuple(prompt or ids_of(PROMPT)), seed, number, limits, search, reader)


def found(tree: Tree, request: SearchRequest) -> tuple[list[str], list[bool], list[int]]:
    """Text, whether the limit ended it, and tokens sampled, of each response."""
    sampled = search_all([request], tree, eos_ids={EOS})
    assert np.isnan(sampled.logprobs.value_N).all()
    assert sampled.num_sampled_R is not None
    return (
        [text_of(ids.tolist()) for ids in sampled.token_ids],
        sampled.is_cut_R.tolist(),
        sampled.num_sampled_R.tolist(),
    )


def test_beams_of_the_highest_mean_log_probability_over_all_their_tokens_stay() -> None:
    tree = Tree(
        {
            "": [("a\n\n", -0.5), ("bb\n\n", -0.1)],
            # means: (3 * -0.5 + 11 * -0.1) / 14 = -0.186, (3 * -0.5 + 3 * -2) / 6 = -1.25
            "a\n\n": [("\\boxed{1} x", -0.1), ("c\n\n", -2.0)],
            # means: (4 * -0.1 + 9 * -0.4) / 13 = -0.308, (4 * -0.1 + 3 * -0.01) / 7 = -0.061
            "bb\n\n": [("\\boxed{2}", -0.4), ("d\n\n", -0.01)],
            # means: (7 steps at -0.061) with 9 * -0.1, and with EOS at -9: worse than any
            "bb\n\nd\n\n": [("#", -9.0), ("\\boxed{3}", -0.1)],
            f"{GREEDY} a\n\n\\boxed{{1}}": [(".#", -1.0)],
            f"{GREEDY} bb\n\nd\n\n\\boxed{{3}}": [("#", -1.0)],
        }
    )
    texts, is_cut, num_sampled = found(tree, request_of())
    assert texts == ["a\n\n\\boxed{1}.#", "bb\n\nd\n\n\\boxed{3}#"]
    assert is_cut == [False, False]
    # rounds of 3 + 4, 11 + 3 + 9 + 3 and 1 + 9 tokens, answers of 2 and 1
    assert num_sampled == [7 + 26 + 10 + 3, 0]


def test_ranking_by_the_sum_or_by_the_last_step_alone_would_find_other_beams() -> None:
    one_beam = replace(SEARCH, num_beams=1)
    tree = Tree({"": [("a#", -1.0), ("bbbbbb#", -0.5)]})
    assert found(tree, request_of(1, search=one_beam))[0] == ["bbbbbb#"], "its sum is lower, its mean is higher"
    two = replace(SEARCH, num_beams=2)
    steps = {
        "": [("aaaaaaaa\n\n", -1.0), ("bbbbbbbb\n\n", -0.2)],
        "aaaaaaaa\n\n": [("#", -0.1)],
        "bbbbbbbb\n\n": [("#", -0.5)],
    }
    assert found(Tree(steps), request_of(1, search=two))[0] == ["bbbbbbbb\n\n#"]


@pytest.mark.parametrize(
    ("mark", "answer", "greedy", "expected", "is_cut"),
    [
        ("</think>", "\\boxed{1}</think>\\boxed{3}#", "\\boxed{2}#", "\\boxed{1}</think>\\boxed{2}#", False),
        ("", "\\boxed{1}</think>#", " so#", "\\boxed{1} so#", False),
        ("", "7#", None, "7#", False),
        ("</think>", "\\boxed{1}#", None, "\\boxed{1}#", False),
        ("", "#", None, "#", False),
        ("", "x" * 60, None, "x" * 40, True),
        ("", "\\boxed{1}", "y" * 60, "\\boxed{1}" + "y" * 31, True),
        ("", "x" * 31 + "\\boxed{1}", None, "x" * 31 + "\\boxed{1}", True),
    ],
)
def test_reasoning_ends_by_mark_by_box_by_eos_or_by_the_limit(
    mark: str, answer: str, greedy: str | None, expected: str, is_cut: bool
) -> None:
    search = replace(SEARCH, closing_mark=mark, step_tokens=100)
    continuations = {"": [(answer, -1.0)]}
    end = mark or "}"
    reasoning = answer.partition(end)[0] + end
    if greedy is not None:
        continuations[f"{GREEDY} {reasoning}"] = [(greedy, -1.0)]
    tree = Tree(continuations)
    texts, cuts, _ = found(tree, request_of(1, search=search))
    assert (texts, cuts) == ([expected], [is_cut])
    rooms = [most for _, limits, most in tree.asked if limits.is_greedy]
    assert rooms == ([40 - len(reasoning)] if greedy is not None else [])


def test_model_that_never_ends_a_step_is_stopped_by_the_limit() -> None:
    tree = Tree({"x" * (8 * n): [("x" * 30, -1.0), ("x" * 30, -1.0)] for n in range(5)})
    texts, is_cut, _ = found(tree, request_of(2, search=replace(SEARCH, step_tokens=8)))
    assert texts == ["x" * 40] * 2, "the search begins again where all that it has has ended"
    assert is_cut == [True, True]
    assert {limits.max_tokens for _, limits, _ in tree.asked} == {8}


def test_equal_candidates_count_once() -> None:
    tree = Tree(
        {"": [("a\n\n", -0.1), ("a\n\n", -0.1), ("b\n\n", -3.0)], "a\n\n": [("#", -1.0)], "b\n\n": [("#", -1.0)]}
    )
    texts, _, _ = found(tree, request_of(2, search=replace(SEARCH, num_candidates=3)))
    assert texts == ["a\n\n#", "b\n\n#"]


def test_search_that_begins_again_prefers_what_it_has_not_found() -> None:
    tree = Tree({"": [("a#", -0.1), ("b#", -3.0), ("c\n\n", -5.0)], "c\n\n": [("d#", -1.0)]})
    one_beam = replace(SEARCH, num_beams=1, num_candidates=3)
    assert found(tree, request_of(3, search=one_beam))[0] == ["a#", "b#", "c\n\nd#"]


def test_every_candidate_has_a_seed_of_its_own_that_comes_from_the_searches_seed() -> None:
    def seeds(seed: int) -> list[int]:
        tree = Tree({"": [("a\n\n", -0.1), ("b\n\n", -3.0)], "a\n\n": [("c#", -1.0)], "b\n\n": [("d#", -1.0)]})
        found(tree, request_of(seed=seed))
        return tree.seeds

    assert len(set(seeds(1))) == 6
    assert seeds(1) == seeds(1)
    assert not set(seeds(1)) & set(seeds(2))


def test_log_probabilities_that_are_no_numbers_are_one_error() -> None:
    with pytest.raises(EngineError, match="log-probabilities of a search: got"):
        found(Tree({"": [("a#", float("nan"))]}), request_of())


LINES = StepSearch(num_beams=2, num_candidates=4, step_tokens=12, step_end="\n", closing_mark="")


def real(*requests: SearchRequest, batch_size: int = 64) -> list[list[int]]:
    sampler = TransformersSampler(
        small_model(num_layers=2), eos_ids=[TOKENIZER.eos_token_id], pad_id=0, batch_size=batch_size
    )
    return [ids.tolist() for ids in search_all(requests, sampler, eos_ids={int(TOKENIZER.eos_token_id)}).token_ids]


@pytest.mark.slow
def test_search_is_the_same_in_any_company() -> None:
    requests = [request_of(2, search=LINES, tokenizer=TOKENIZER, prompt=(1, 4, n), seed=n) for n in range(1, 7)]
    together = real(*requests)
    assert together == real(*requests, batch_size=5)
    assert [row for request in requests for row in real(request)] == together
    assert real(*requests[::-1])[-2:] == together[:2]
    assert len(set(map(tuple, together))) > 6
    assert all(len(row) <= 40 for row in together)
