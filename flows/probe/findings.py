"""What a probe's figures say about a training that has not begun, in sentences with remedies.

Where a finding means the same as a rule of `hacpo_core.phases.health_rules`, it has the rule's threshold.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from flows.probe.cost import ProbeCost
from flows.probe.measure import AgentProbe, Probe
from flows.probe.rows import PairProbe
from hacpo_core.config import ExperimentConfig
from hacpo_core.phases.health_rules import (
    MAX_CUT_SHARE,
    MAX_STOPPED_SHARE,
    MAX_UNIFORM_SHARE,
    MAX_UNSCORED_SHARE,
    RULES,
    sampler_limit,
)

MAX_WRONG_SHARE = MAX_RIGHT_SHARE = 0.75
"""share of groups without a right, or without a wrong, answer, which train nothing by themselves"""
MAX_FORMLESS_SHARE = 0.5
"""share of responses without an answer in the asked form"""
MAX_DRIFT = 0.5
"""mean relative change of a response's length by retokenisation"""


@dataclass(frozen=True, slots=True)
class ProbeFinding:
    """A sentence and what to do; `rule` is a short name, that of the rule of health if it means the same."""

    rule: str
    text: str
    remedy: str

    @property
    def message(self) -> str:
        """Both in one line."""
        return f"{self.text}; {self.remedy}"


def probe_findings(config: ExperimentConfig, probe: Probe, cost: ProbeCost) -> list[ProbeFinding]:
    """All findings, about agents first, then about ordered pairs, then about the machine."""
    findings = [finding for name, agent in probe.agents.items() for finding in _of_agent(config, name, agent)]
    findings += [finding for pair in probe.pairs for finding in _of_pair(pair)]
    if cost.room_gib is not None and cost.memory_gib > cost.room_gib:
        min_text = f"with one response at a time {cost.min_gib:.3g}"
        text = f"the agents may need {cost.memory_gib:.3g} GiB ({min_text}), but there are {cost.room_gib:.3g}"
        remedy = "lower rollout.batch_size or engine.micro_batch_tokens, or use other hardware (docs/scaling.md)"
        findings.append(ProbeFinding("memory", text, remedy))
    return findings


def _of_agent(config: ExperimentConfig, name: str, agent: AgentProbe) -> Iterator[ProbeFinding]:
    uniform, size = 1 - agent.signal_share, config.rollout.num_samples
    if agent.all_wrong_share >= MAX_WRONG_SHARE:
        text = f"{agent.all_wrong_share:.0%} of {name}'s groups have no right answer among {size}"
        yield ProbeFinding("few_right", text, "warm it up, use easier problems, or raise rollout.num_samples")
    elif agent.all_right_share >= MAX_RIGHT_SHARE:
        text = f"{agent.all_right_share:.0%} of {name}'s groups have no wrong answer among {size}"
        yield ProbeFinding("few_wrong", text, "use harder problems")
    elif uniform >= MAX_UNIFORM_SHARE:
        text = f"all rewards are equal in {uniform:.0%} of {name}'s groups"
        yield ProbeFinding("no_signal", text, RULES["no_signal"].remedy)
    if agent.ended_share == 0:
        text = f"no response of {name} ends with its end token"
        remedy = "see whether its chat template and generation_config.json name the token with which it ends a turn"
        yield ProbeFinding("no_end", text, remedy)
    elif agent.cut_share >= MAX_CUT_SHARE:
        text = f"{agent.cut_share:.0%} of {name}'s responses are cut at {config.rollout.max_response_tokens} tokens"
        yield ProbeFinding("responses_cut", text, "raise rollout.max_response_tokens, or ask for shorter answers")
    if agent.unscored_share >= MAX_UNSCORED_SHARE:
        text = f"{agent.unscored_share:.1%} of {name}'s responses are unscored"
        yield ProbeFinding("responses_unscored", text, "raise verifier.timeout_s or reward.timeout_s")
    if agent.formless_share is not None and agent.formless_share >= MAX_FORMLESS_SHARE:
        text = f"{agent.formless_share:.0%} of {name}'s responses have no answer in the form of verifier.style "
        remedy = "say in the prompt how to answer (data.sets.<name>.template, .system), or warm it up"
        yield ProbeFinding("answers_without_form", f"{text}({config.verifier.style})", remedy)
    limit = sampler_limit(config.engine.dtype)
    if not agent.sampler_difference <= limit:
        text = f"{name}'s sampler and learner differ by {agent.sampler_difference:.1e} nats a token, in "
        text += f"{config.engine.dtype} expected at most {limit:.1e}"
        yield ProbeFinding("sampler_differs", text, RULES["sampler_differs"].remedy)


def _of_pair(pair: PairProbe) -> Iterator[ProbeFinding]:
    if not pair.num_rows:
        text = f"all responses of {pair.source} are unscored or have no tokens for {pair.learner}"
        yield ProbeFinding("no_rows", text, "read its first response; see verifier.style and the tokenizers")
        return
    bounds = f"median ratio {pair.ratios[1]:.2f}, bounds {pair.floor:.4g} to {pair.ceiling:.4g}"
    for share, when in ((pair.first_share, ""), (pair.last_share, " at the last update of a step")):
        if 1 - share >= MAX_STOPPED_SHARE:
            passing = "no row" if share == 0 else f"{share:.1%} of the rows"
            text = (
                f"{passing} of {pair.source} {'passes' if share == 0 else 'pass'} the bounds for {pair.learner}{when}"
            )
            yield ProbeFinding("cross_rows_stopped", f"{text}: {bounds}", RULES["cross_rows_stopped"].remedy)
            break
    if abs(pair.length_drift) > MAX_DRIFT:
        text = f"{pair.source}'s responses change their length by {pair.length_drift:+.0%} in {pair.learner}'s tokens"
        yield ProbeFinding("length_drift", text, "raise rollout.max_response_tokens if rows are cut by it")
