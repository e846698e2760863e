"""Findings about a training while it runs, judged from committed metrics alone.

The same steps give the same findings, however often the run was interrupted. Needs neither torch nor an experiment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from hacpo_core.config import ExperimentConfig
from hacpo_core.phases.health_rules import IN_A_ROW, RULES, Case, Rule, Values


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that held for an agent: from the step at which that was known to the one at which it was over, if it was.

    Attributes:
        rule: its name.
        agent: the one whose metrics say so.
        partner: the agent whose rows it is about, "" if it is about the agent's own.
        begun_at: step.
        text: what was wrong at that step.
        ended_at: step, None while it holds.
    """

    rule: str
    agent: str
    partner: str
    begun_at: int
    text: str
    ended_at: int | None = None

    @property
    def key(self) -> tuple[str, str, str, int, int | None]:
        """What tells its beginning, and its end, from all others."""
        return self.rule, self.agent, self.partner, self.begun_at, self.ended_at

    @property
    def events(self) -> tuple[Finding, ...]:
        """The finding as it began and, if it ended, as it ended."""
        return (self,) if self.ended_at is None else (replace(self, ended_at=None), self)

    @property
    def remedy(self) -> str:
        """What to do; "" if this version of hacpo does not have the rule."""
        return RULES[self.rule].remedy if self.rule in RULES else ""

    @property
    def title(self) -> str:
        """Name of the rule in words."""
        return self.rule.replace("_", " ")

    @property
    def brief(self) -> str:
        """Whose finding it is, and the rule in words."""
        return f"{self.agent}: {self.title}"

    @property
    def message(self) -> str:
        """One line for a log: that it began, and what to do, or that it ended."""
        if self.ended_at is None:
            return f"step {self.begun_at}, {self.agent}: {self.title}: {self.text}; {self.remedy}"
        about = f" ({self.partner}'s)" if self.partner else ""
        return f"step {self.ended_at}, {self.agent}: {self.title}{about} is over; it began at step {self.begun_at}"


@dataclass(slots=True)
class _Streak:
    """Steps in a row in which a rule said the same, and its finding while it holds."""

    num_bad: int = 0
    num_good: int = 0
    past: list[Values] = field(default_factory=list)
    holds: Finding | None = None


class Health:
    """Judges a run step by step.

    A finding begins when its rule has held for `Rule.num_steps` steps in a row, and ends when it has not for IN_A_ROW.
    """

    def __init__(self, config: ExperimentConfig) -> None:
        self._config = config
        self._streaks: dict[tuple[str, str, str], _Streak] = {}
        self._findings: list[Finding] = []

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All so far, in the order in which they began."""
        return tuple(sorted(self._findings, key=lambda finding: finding.begun_at))

    def add(self, step: int, agents: Mapping[str, Values]) -> list[Finding]:
        """Judge the next step, or an evaluation after it; returns findings that begin or end with it.

        Args:
            step: its number; steps come in order.
            agents: metrics by agent and name, as committed, or those of an evaluation.
        """
        changes = []
        for agent, values in agents.items():
            sources = _sources(agent, agents)
            sources |= {
                name: name for metric in values for area, _, name in [metric.partition("/")] if area == "evaluate"
            }
            for rule in RULES.values():
                for source, partner in sources.items() if rule.is_about_sources else (("", ""),):
                    if all(metric.replace("<source>", source) in values for metric in rule.metrics):
                        streak = self._streaks.setdefault((rule.name, agent, source), _Streak())
                        streak.past.append(values)
                        sentence = rule.why_bad(Case(streak.past, self._config, source, partner))
                        change = self._judge(streak, rule, Finding(rule.name, agent, partner, step, sentence or ""))
                        changes += [change] if change is not None else []
        return changes

    def _judge(self, streak: _Streak, rule: Rule, finding: Finding) -> Finding | None:
        """Count a step; the finding that begins or ends with it, if one does. Its text is "" if nothing is wrong."""
        streak.num_bad = streak.num_bad + 1 if finding.text else 0
        streak.num_good = 0 if finding.text else streak.num_good + 1
        if streak.holds is None and streak.num_bad >= rule.num_steps:
            streak.holds = finding
            self._findings.append(finding)
            return finding
        if streak.holds is not None and streak.num_good >= IN_A_ROW:
            ended_finding = replace(streak.holds, ended_at=finding.begun_at)
            self._findings[self._findings.index(streak.holds)] = ended_finding
            streak.holds = None
            return ended_finding
        return None


def _sources(agent: str, agents: Iterable[str]) -> dict[str, str]:
    """The other agents by the names of their sources: all of them together are "cross" only if there is one."""
    partners = [partner for partner in agents if partner != agent]
    return {"cross": partners[0]} if len(partners) == 1 else {f"from_{partner}": partner for partner in partners}
