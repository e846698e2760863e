"""A builder that learns which responses are worth training on, fresh ones and those of earlier steps.

Shapes: R response of one agent, B row of the mini-batches.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hacpo_core import algo
from hacpo_core.config.fields import setting, when
from hacpo_core.methods.base import State
from hacpo_core.methods.build import History
from hacpo_core.methods.builders.shuffled import Groups, Shuffled
from hacpo_core.records import RowKey
from hacpo_core.seeds import generator

CONTEXT = (
    *("reward", "group mean", "group spread", "advantage", "mean log-probability", "entropy", "relative length"),
    *("age", "times used", "stopped share"),
)
"""features of a response before it is trained on"""
NUM_HIDDEN = 64
FIT_RATE = 1e-2
FIT_PASSES = 20


@dataclass(frozen=True)
class Bandit(Shuffled):
    """Responses are the arms of a bandit. A small network predicts the gain of each from ten features.

    From every fresh group, the share `kept_share` with the largest predicted gains is kept. Own responses of the last
    `reuse_steps` steps are added, `reused_share` times as many as there are fresh own ones, and dealt out over the
    mini-batches in turn. There are as many mini-batches as with `shuffled`. The gain of a step's rows is the increase
    in the learner's mean raw reward until the next step, minus `entropy_penalty` per nat of entropy above
    `entropy_limit`. The state holds the network, its optimizer and statistics, the last step's rows and how often each
    row was used.

    Source: the idea of contextual rollout bandits (2602.08499). The rest is ours, see docs/decisions.md#bandit.
    """

    kept_share: float = setting(0.75, "share of each fresh group that is trained on", above=0, at_most=1)
    reused_share: float = setting(
        0.25, "reused earlier responses, as a share of the fresh own ones; 0: none", at_least=0, at_most=1e3
    )
    reuse_steps: int = setting(
        2,
        "number of previous steps whose responses may be reused",
        at_least=1,
        at_most=1e3,
        inert=when("method.build.reused_share", 0),
    )
    exploration: float = setting(
        0.1, "probability of taking a random response instead of the best remaining one", at_least=0, at_most=1
    )
    entropy_limit: float = setting(
        1.0,
        "entropy in nats per token above which the gain is reduced",
        at_least=0,
        at_most=1e3,
        inert=when("method.build.entropy_penalty", 0),
    )
    entropy_penalty: float = setting(
        0.1, "reduction of the gain for each nat of entropy above entropy_limit", at_least=0, at_most=1e3
    )

    @property
    def takes_old_rows(self) -> bool:
        """True if `reused_share` is not 0."""
        return self.reused_share > 0

    def why_unfit(
        self, *, num_problems: int, num_samples: int, samples_per_problem: int, num_sources: int
    ) -> str | None:
        """As for `shuffled`; also `own_first`, whose mini-batches of partners' rows cannot hold reused own rows."""
        if self.order == "own_first":
            return "order: got own_first with builder bandit, which adds own rows to all mini-batches; set order=mixed"
        return super().why_unfit(
            num_problems=num_problems,
            num_samples=num_samples,
            samples_per_problem=samples_per_problem,
            num_sources=num_sources,
        )

    def build(self, history: History, state: State) -> tuple[Sequence[Sequence[RowKey]], State]:
        """Fresh rows by group, then reused rows of earlier steps."""
        draw = generator(history.seed, "bandit", history.step, history.learner)
        uses: dict[str, int] = dict(state.get("uses", {}))
        rewards = [reward for _, reward in history.responses(history.step, history.learner).ordinary_rewards()]
        reward = float(np.mean(rewards)) if rewards else 0.0
        network = self._learned(history, state, reward)

        groups = self.groups(history)
        fresh_contexts = {
            key: context for agent in history.sources for key, context in _contexts(history, agent, 0, uses)
        }
        steps = range(max(1, history.step - self.reuse_steps), history.step) if self.reused_share else ()
        earlier_contexts = {
            key: context
            for step in steps
            for key, context in _contexts(history, history.learner, history.step - step, uses)
            if not self.drops_equal_rewards or context[CONTEXT.index("advantage")] != 0.0
        }
        contexts = fresh_contexts | earlier_contexts
        network = algo.gain_network.add_rows(network, _table(contexts.values()))
        gains = dict(zip(contexts, algo.gain_network.predict(network, _table(contexts.values())).tolist(), strict=True))

        chosen_groups: Groups = {}
        for group, keys in groups.items():
            arms = {key: gains[key] for key in keys if key in fresh_contexts}
            unscored_keys = [key for key in keys if key not in fresh_contexts]  # the caller counts them
            chosen_groups[group] = [*self.chosen(arms, math.ceil(self.kept_share * len(arms)), draw), *unscored_keys]
        batches = self.minibatches(chosen_groups, self.updates_of(groups, history), history)
        num_own = sum(len(keys) for (agent, _), keys in groups.items() if agent == history.learner)
        reused_keys = self.chosen(
            {key: gains[key] for key in earlier_contexts}, round(self.reused_share * num_own), draw
        )
        for place, key in enumerate(reused_keys):
            batches[place % len(batches)].append(key)

        trained_keys = [key for batch in batches for key in batch if key in contexts]
        for key in trained_keys:
            uses[_text(key)] = uses.get(_text(key), 0) + 1
        oldest = history.step - self.reuse_steps
        return [batch for batch in batches if batch], {
            "network": network,
            "uses": {text: count for text, count in uses.items() if int(text.partition(" ")[0]) > oldest},
            "rows": _table(contexts[key] for key in trained_keys),
            "reward": reward,
        }

    def _learned(self, history: History, state: State, reward: float) -> Mapping[str, NDArray[np.float64]]:
        """The network after a fit to the gain of the last step's rows."""
        if "network" not in state:
            initial_draw = generator(history.seed, "bandit network", history.learner)
            return algo.gain_network.initial(len(CONTEXT), NUM_HIDDEN, initial_draw)
        # none where no row has an advantage
        entropies = history.trained_rows(history.step - 1).figures["entropy"]
        entropy = float(entropies.mean()) if len(entropies) else 0.0
        gain = reward - state["reward"] - self.entropy_penalty * max(0.0, entropy - self.entropy_limit)
        return algo.gain_network.fit(
            state["network"], state["rows"], gain, learning_rate=FIT_RATE, num_passes=FIT_PASSES
        )

    def chosen(self, gains: Mapping[RowKey, float], number: int, draw: np.random.Generator) -> list[RowKey]:
        """Rows with the largest gains, each replaced by a random one with probability `exploration`; in input order."""
        candidates = sorted(gains, key=lambda key: -gains[key])
        chosen_keys: set[RowKey] = set()
        for _ in range(min(number, len(candidates))):
            explores = draw.random() < self.exploration
            chosen_keys.add(candidates.pop(int(draw.integers(len(candidates))) if explores else 0))
        return [key for key in gains if key in chosen_keys]


def _contexts(
    history: History, agent: str, age: int, uses: Mapping[str, int]
) -> Iterator[tuple[RowKey, tuple[float, ...]]]:
    """Scored responses of an agent from `age` steps ago, each with its features."""
    step = history.step - age
    responses = history.responses(step, agent)
    estimate = history.estimate(step)
    advantage_R = estimate.advantages[history.learner][agent] * estimate.weight_R(history.learner, agent)
    groups = responses.rewards_by_problem()
    lengths_R, logprob_R = responses.token_ids.lengths, responses.logprobs.means()
    measurements = _last_seen(history, step) if age else {}
    for row, (key, reward) in enumerate(zip(responses.row_keys(), responses.raw_reward_R.tolist(), strict=True)):
        if math.isnan(reward):
            continue
        group = groups.get(key.problem_id, [reward])
        # A row that was never trained on has no measured entropy: use minus its mean log-probability instead.
        entropy, stopped_share = measurements.get(key, (-float(logprob_R[row]), 0.0))
        relative_length = float(lengths_R[row] / lengths_R.mean())
        yield (
            key,
            (
                *(reward, float(np.mean(group)), float(np.std(group)), float(advantage_R[row]), float(logprob_R[row])),
                *(entropy, relative_length, float(age), float(uses.get(_text(key), 0)), stopped_share),
            ),
        )


def _last_seen(history: History, step: int) -> dict[RowKey, tuple[float, float]]:
    """Entropy and stopped share of the learner's rows of a step, as last measured in an update."""
    measurements: dict[RowKey, tuple[float, float]] = {}
    for update_step in range(step, history.step):
        rows = history.trained_rows(update_step)
        figures = (rows.figures[name].tolist() for name in ("entropy", "stopped_share"))
        values = zip(rows.key_B, *figures, strict=True)
        measurements |= {key: (entropy, stopped) for key, entropy, stopped in values if key.step == step}
    return measurements


def _table(contexts: Any) -> NDArray[np.float64]:
    rows = list(contexts)
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(CONTEXT))


def _text(key: RowKey) -> str:
    """The key as text, since a state cannot hold a RowKey; the step comes first."""
    return f"{key.step} {key.agent} {key.problem_id} {key.sample}"
