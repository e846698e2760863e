"""A probe as text and as JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from textwrap import indent
from typing import Any

import pandas as pd

from flows.planning.plans import Plan
from flows.probe.cost import ProbeCost
from flows.probe.findings import ProbeFinding
from flows.probe.measure import AgentProbe, Probe
from flows.probe.rows import PairProbe
from hacpo_core.phases.health_rules import sampler_limit


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Everything that a probe says."""

    plan: Plan
    hardware: str
    probe: Probe
    cost: ProbeCost
    findings: Sequence[ProbeFinding]

    @property
    def summary(self) -> str:
        """What was measured."""
        first = next(iter(self.probe.agents.values()))
        config = self.plan.config
        return (
            f"{first.num_problems} training problems x {config.rollout.num_samples} responses of each agent before "
            f"any training, seed {config.seed}, hardware {self.hardware} ({config.engine.device} in "
            f"{config.engine.dtype}). It would become {self.plan.id}."
        )

    @property
    def memory(self) -> str:
        """Time of a step and of the run, and memory, in sentences."""
        cost, config = self.cost, self.plan.config
        room = f"; there are {_figure(cost.room_gib)}" if cost.room_gib is not None else ""
        return (
            f"A step takes about {_figure(cost.step_s)} s, and {config.train.num_steps} steps with their evaluations "
            f"{_time(cost.run_hours)}, without optimizer steps, hand-overs of weights and checkpoints; an update is "
            f"estimated from forward passes. Planned memory: at most {_figure(cost.memory_gib)} GiB, with one response "
            f"at a time {_figure(cost.min_gib)} GiB{room}. Checkpoints take {_figure(cost.disk.training)} GiB while "
            f"it trains, {_figure(cost.disk.complete)} afterwards."
        )

    def as_json(self) -> dict[str, Any]:
        """All figures, with nan as None."""
        config = self.plan.config
        value = {
            "id": self.plan.id,
            "pair": config.pair.name,
            "method": config.method.name,
            "hardware": self.hardware,
            "agents": {name: asdict(agent) for name, agent in self.probe.agents.items()},
            "pairs": [asdict(pair) for pair in self.probe.pairs],
            "cost": asdict(self.cost),
            "findings": [asdict(finding) for finding in self.findings],
        }
        json_value: dict[str, Any] = _without_nan(value)
        return json_value

    def as_text(self) -> str:
        """For a terminal."""
        config = self.plan.config
        parts = [f"Probe of {config.pair.name}, {config.method.name}", self.summary, ""]
        for name, agent in self.probe.agents.items():
            parts += [
                f"First prompt of {name}:",
                indent(agent.prompt, "    "),
                "its first response:",
                indent(agent.response, "    "),
            ]
        limit = sampler_limit(config.engine.dtype)
        agents = {name: _agent_lines(agent, limit) for name, agent in self.probe.agents.items()}
        parts += ["", pd.DataFrame(agents).to_string()]
        if self.probe.pairs:
            pairs = {f"{pair.source} for {pair.learner}": _pair_lines(pair) for pair in self.probe.pairs}
            parts += ["", "Other agents' rows, for the agent that learns", pd.DataFrame(pairs).to_string()]
        parts += ["", self.memory, "", "Findings"]
        parts += [f"- {finding.message}" for finding in self.findings] or ["Nothing speaks against this training."]
        return "\n".join(parts)


def _agent_lines(agent: AgentProbe, limit: float) -> Mapping[str, str]:
    accuracy = agent.accuracy
    low, middle, high = agent.lengths
    formless = "not known" if agent.formless_share is None else f"{agent.formless_share:.1%}"
    return {
        "accuracy": f"{_figure(accuracy.value)} [{_figure(accuracy.low)}, {_figure(accuracy.high)}]",
        "groups with right and wrong answers": f"{agent.signal_share:.1%}",
        "groups all wrong": f"{agent.all_wrong_share:.1%}",
        "groups all right": f"{agent.all_right_share:.1%}",
        "length, tokens (10 %, 50 %, 90 %)": f"{low:.0f}, {middle:.0f}, {high:.0f}",
        "ended by itself": f"{agent.ended_share:.1%}",
        "cut at the limit": f"{agent.cut_share:.1%}",
        "unscored": f"{agent.unscored_share:.1%}",
        "answer not in the asked form": formless,
        "sampler - learner, nats a token": f"{agent.sampler_difference:.1e} (at most {limit:.1e})",
        "sampled, tokens/s": f"{agent.sampled_per_s:,.0f}",
        "scored, tokens/s": f"{agent.scored_per_s:,.0f}",
    }


def _pair_lines(pair: PairProbe) -> Mapping[str, str]:
    return {
        "rows": str(pair.num_rows),
        "ratio (10 %, 50 %, 90 %)": ", ".join(f"{ratio:.2f}" for ratio in pair.ratios),
        "bounds": f"{pair.floor:.4g} to {pair.ceiling:.4g}",
        "pass the bounds before the first update": f"{pair.first_share:.1%}",
        "pass the bounds of the last update": f"{pair.last_share:.1%}",
        "cosine with the own gradient": "none" if pair.gradient_cosine is None else f"{pair.gradient_cosine:.2f}",
        "change of length by retokenisation": f"{pair.length_drift:+.1%}",
        "cut at the limit": str(pair.num_truncated),
        "without tokens": str(pair.num_empty),
    }


def _figure(value: float) -> str:
    """Three digits; — if it is unknown."""
    return "—" if math.isnan(value) else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _time(hours: float) -> str:
    """In seconds, minutes or hours."""
    if hours < 0.05:
        return f"{_figure(3600 * hours)} s"
    return f"{_figure(60 * hours)} minutes" if hours < 2 else f"{_figure(hours)} hours"


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
