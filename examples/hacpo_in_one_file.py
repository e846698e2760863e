"""HACPO in one file: Algorithm 1 of the paper, for two small language models with different tokenizers.

    agent 0   sample ─▶ verify ┐                           ┌▶ update on its own and the other's responses
                               ├▶ capabilities, advantages ┤
    agent 1   sample ─▶ verify ┘                           └▶ update on its own and the other's responses

Read it from top to bottom: `train` is the algorithm, and the functions below it implement its lines. The code is plain
torch and transformers. From hacpo it uses only an arithmetic task, two tiny models with their tokenizers, and seeds.
hacpo trains the same weights (tests/test_examples.py).

    python examples/hacpo_in_one_file.py --steps 40

Names end in the shape of a tensor: P problem, A agent, G response of one agent to one problem, B row of a batch,
T token, V vocabulary, K step of the window. Index k is the agent that learns, j the agent that sampled. Equation
numbers are the paper's. "Official code" marks additions of the authors' code to the paper.

Simplifications compared with hacpo:
  - hacpo excludes responses that could not be verified. Here every response gets a reward.
  - hacpo compares answers algebraically. Here an answer is correct if its text equals the gold answer.
  - hacpo prevents text from becoming control tokens of another tokenizer. Text of this task cannot.
  - hacpo reuses token ids between agents with equal tokenizers. Here the tokenizers differ.
  - hacpo compares the sampler's log-probabilities with the learner's. Here one model does both.
  - hacpo splits a mini-batch into passes that fit into memory. Here a mini-batch is one pass.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from hacpo_core.config import AgentConfig, TinyModelConfig, WarmUpConfig
from hacpo_core.data.arithmetic import split_expressions
from hacpo_core.placement.initial_model import InitialModel
from hacpo_core.seeds import derive_seed, generator, uniforms


@dataclass(frozen=True)
class Settings:
    """Hyper-parameters. The defaults suit the two tiny models (experiments/pairs/_tiny.yaml)."""

    seed: int = 0
    num_problems: int = 32  # P per step; must divide the number of training problems
    num_samples: int = 8  # G; sampled at temperature 1
    max_response_tokens: int = 40
    window: int = 5  # K of Eq. 9
    capability_floor: float = 1e-8  # this and the next two: official code
    lowest_ratio: float = 0.1
    highest_ratio: float = 10.0
    own_low: float = 0.1  # epsilon_l of Eq. 49; the paper uses 3e-4 for its large models
    own_high: float = 0.1  # epsilon_h of Eq. 49; the paper uses 4e-4 for its large models
    cross_floor: float = 0.8  # 1 - delta of Eq. 13
    cross_step: float = 0.025  # delta_step of Eq. 14
    alpha: float = 1.0  # of Eq. 12
    minibatch_problems: int = 16  # a mini-batch holds minibatch_problems * G responses
    learning_rate: float = 2e-4  # this and the next three: AdamW
    betas: tuple[float, float] = (0.9, 0.99)
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0


class Problem(NamedTuple):
    """A question and its gold answer."""

    id: str
    question: str
    answer: str


class Agent(NamedTuple):
    """A model that samples and learns."""

    name: str
    model: Any
    tokenizer: Any
    optimizer: torch.optim.Optimizer


class Response(NamedTuple):
    """A sampled response and its reward."""

    token_ids: list[int]  # in the agent's own tokens, including the end-of-sequence token (EOS) if there is one
    text: str  # without special tokens
    mean_logprob: float  # mean over these tokens of log pi_j,old, in nats
    is_finished: bool  # False if it was truncated at the length limit
    reward: float  # R


class Row(NamedTuple):
    """A response as one learner trains on it."""

    source: int  # j
    prompt_ids: list[int]  # in the learner's tokens
    token_ids: list[int]  # in the learner's tokens
    old_mean_logprob: float  # of the agent that sampled it, over its own tokens
    advantage: float
    weight: float  # omega^(j,k) of Eq. 10; 1 for own rows


def train(agents: Sequence[Agent], problems: Sequence[Problem], num_steps: int, settings: Settings) -> Tensor:
    """Algorithm 1. Train the agents in place. Returns the mean reward of each agent (columns) at each step (rows)."""
    capabilities: list[Tensor] = []
    for step in range(1, num_steps + 1):
        batch = problems_of_step(problems, step, settings)  # line 5

        # Lines 9-13: every agent samples responses to every problem. No agent is updated before all have sampled.
        responses_APG = [sample(agent, batch, step, settings) for agent in agents]
        reward_APG = [[[response.reward for response in group] for group in groups] for groups in responses_APG]
        reward_PAG = torch.tensor(reward_APG, dtype=torch.float64).transpose(0, 1)

        # Lines 12 and 15: the current capability of each agent, and the advantages of all responses.
        capabilities.append(reward_PAG.mean(dim=(0, 2)))
        ratio_AA = capability_ratios(torch.stack(capabilities[-settings.window :]), settings)
        advantage_PAG = advantages(reward_PAG, ratio_AA)

        # Lines 14-19: every agent learns from its own responses and from the other agent's.
        for k, learner in enumerate(agents):
            for m, keys in enumerate(minibatches(agents, k, step, settings)):
                rows = []
                for j, p, i in keys:
                    response = responses_APG[j][p][i]
                    token_ids = response.token_ids if j == k else retokenize(response, learner, settings)
                    advantage, weight = float(advantage_PAG[p, j, i]), float(ratio_AA[j, k])
                    prompt_ids = render(batch[p], learner)
                    rows.append(Row(j, prompt_ids, token_ids, response.mean_logprob, advantage, weight))
                rows = [row for row in rows if row.token_ids]
                loss = -objective(learner, k, rows, m, settings)
                learner.optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(learner.model.parameters(), settings.max_grad_norm)
                learner.optimizer.step()

        means = "   ".join(f"{a.name} {float(mean):.3f}" for a, mean in zip(agents, capabilities[-1], strict=True))
        print(f"step {step:3d}   mean reward   {means}", flush=True)
    return torch.stack(capabilities)


def problems_of_step(problems: Sequence[Problem], step: int, settings: Settings) -> list[Problem]:
    """Line 5: the next P problems. Every epoch goes through all problems in a new random order."""
    assert len(problems) % settings.num_problems == 0, "num_problems must divide the number of problems"
    epoch, start = divmod((step - 1) * settings.num_problems, len(problems))
    order = generator(settings.seed, "epoch", epoch).permutation(len(problems))
    return [problems[place] for place in order[start : start + settings.num_problems]]


def render(problem: Problem, agent: Agent) -> list[int]:
    """A prompt: the question in the agent's chat template, in its tokens."""
    messages = [{"role": "user", "content": problem.question}]
    text = agent.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(agent.tokenizer(text, add_special_tokens=False)["input_ids"])


@torch.no_grad()
def sample(agent: Agent, batch: Sequence[Problem], step: int, settings: Settings) -> list[list[Response]]:
    """Lines 10 and 11: G responses to each problem from the agent's current policy, with their rewards.

    Each response has its own random stream, so it does not depend on other responses in the batch or before it.
    """
    pad_id, eos_id = agent.tokenizer.pad_token_id, agent.tokenizer.eos_token_id
    requests = [(problem, i) for problem in batch for i in range(settings.num_samples)]
    seeds = [derive_seed(settings.seed, "rollout", step, agent.name, problem.id, i) for problem, i in requests]
    uniform_BT = torch.from_numpy(uniforms(seeds, settings.max_response_tokens))

    # Prompts are padded on the left, so that all responses begin at the same position.
    prompts = [render(problem, agent) for problem, _ in requests]
    longest = max(map(len, prompts))
    input_BT = torch.tensor([[pad_id] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask_BT = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])

    cache, drawn = None, []  # tokens of all rows and their log-probabilities, by position
    is_finished_B = torch.zeros(len(requests), dtype=torch.bool)
    for t in range(settings.max_response_tokens):
        position_BT = (mask_BT.cumsum(dim=1) - 1).clamp(min=0)[:, -input_BT.shape[1] :]
        out = agent.model(
            input_ids=input_BT, attention_mask=mask_BT, position_ids=position_BT, past_key_values=cache, use_cache=True
        )
        logprob_BV, cache = out.logits[:, -1].log_softmax(dim=1), out.past_key_values
        # Inverse transform sampling: the first token whose cumulative probability exceeds a uniform random number.
        cumulative_BV = logprob_BV.double().exp().cumsum(dim=1)
        token_B1 = torch.searchsorted(cumulative_BV, uniform_BT[:, t, None] * cumulative_BV[:, -1:], right=True)
        drawn.append((token_B1, logprob_BV.gather(1, token_B1)))
        is_finished_B |= token_B1[:, 0] == eos_id
        if is_finished_B.all():
            break
        input_BT, mask_BT = token_B1, torch.cat([mask_BT, torch.ones_like(token_B1)], dim=1)

    responses_PG: list[list[Response]] = [[] for _ in batch]
    token_BT, logprob_BT = (torch.cat(column, dim=1) for column in zip(*drawn, strict=True))
    for b, ids in enumerate(token_BT.tolist()):
        # Tokens after the EOS were sampled while other responses continued; drop them.
        length = ids.index(eos_id) + 1 if eos_id in ids else len(ids)
        text = agent.tokenizer.decode(ids[:length], skip_special_tokens=True)
        mean_logprob = float(logprob_BT[b, :length].double().mean())
        response = Response(ids[:length], text, mean_logprob, eos_id in ids, reward(text, requests[b][0].answer))
        responses_PG[b // settings.num_samples].append(response)
    return responses_PG


def reward(text: str, answer: str) -> float:
    r"""Line 11: 1 if the last \boxed{...} of a response contains the gold answer, else 0."""
    _, mark, rest = text.rpartition(r"\boxed{")
    content, brace, _ = rest.partition("}")
    return float(bool(mark and brace) and content == answer)


def capability_ratios(capability_KA: Tensor, settings: Settings) -> Tensor:
    """Line 12: ratio of the capabilities of agents k and j, from the mean rewards of the last K steps.

        P_hat[k] = mean over the window of P[k]                                 Eq. 9
        omega[k, j] = P_hat[k] / P_hat[j]                                       Eq. 8

    Returns ratio_AA.
    """
    # Official code: the bounds. Without them, an agent with zero reward causes a division by zero.
    smoothed_A = capability_KA.mean(dim=0).clamp(min=settings.capability_floor)
    return (smoothed_A[:, None] / smoothed_A[None, :]).clamp(settings.lowest_ratio, settings.highest_ratio)


def advantages(reward_PAG: Tensor, ratio_AA: Tensor) -> Tensor:
    """Line 15: the advantage of each response over the baseline of the agent that sampled it.

        mu[k] = 1/(A G) sum_j sum_i omega[k, j] R[j, i]                         Eq. 7
        A[k, i] = (R[k, i] - mu[k]) / sigma, sigma over all A G rewards         Eq. 6

    Returns advantage_PAG, the same for all learners.
    """
    mean_PA = reward_PAG.mean(dim=2)
    baseline_PA = mean_PA @ ratio_AA.T / len(ratio_AA)
    # Official code: rewards are at most 1, so a baseline above 1 is replaced by the agent's own mean.
    baseline_PA = torch.where(baseline_PA > 1, mean_PA, baseline_PA)
    group_PR = reward_PAG.flatten(start_dim=1)
    std_P = group_PR.std(dim=1)  # with A G - 1 in the denominator
    advantage_PAG = (reward_PAG - baseline_PA[:, :, None]) / (std_P[:, None, None] + 1e-6)
    # Official code: if all rewards of a problem are equal, its advantages are 0.
    is_uniform_P = group_PR.amax(dim=1) == group_PR.amin(dim=1)
    return advantage_PAG.masked_fill(is_uniform_P[:, None, None], 0.0)


def retokenize(response: Response, learner: Agent, settings: Settings) -> list[int]:
    """Another agent's response in the learner's tokens.

    The text is tokenized again, and a finished response gets the learner's EOS. A response with only special tokens has
    no text and is dropped: otherwise its EOS alone would get the whole reward. A response with only EOS stays EOS.
    """
    token_ids = list(learner.tokenizer(response.text, add_special_tokens=False)["input_ids"])
    if not token_ids and not (response.is_finished and len(response.token_ids) == 1):
        return []
    eos = [learner.tokenizer.eos_token_id] if response.is_finished else []
    return (token_ids + eos)[: settings.max_response_tokens]


def minibatches(agents: Sequence[Agent], k: int, step: int, settings: Settings) -> list[list[tuple[int, int, int]]]:
    """Line 16: the mini-batches of learner k, which hold all responses of the step as (j, p, i).

    Problems are shuffled, responses to one problem stay together, and every mini-batch has equally many of each agent.
    With A agents a learner makes A times as many updates as alone, with the same number of samples per agent.
    """
    sources = [k, *(j for j in range(len(agents)) if j != k)]
    order = generator(settings.seed, "minibatch", step, agents[k].name).permutation(settings.num_problems).tolist()
    keys = [(j, p, i) for p in order for i in range(settings.num_samples) for j in sources]
    size = settings.minibatch_problems * settings.num_samples
    return [keys[start : start + size] for start in range(0, len(keys), size)]


def objective(learner: Agent, k: int, rows: Sequence[Row], m: int, settings: Settings) -> Tensor:
    """Line 17: objective that learner k maximises in a mini-batch, after m updates in this step.

        s = exp(mean log pi_k - mean log pi_j,old)                              Eq. 11, 48, 51
        own row:    min(s A, clip(s, 1 - epsilon_l, 1 + epsilon_h) A)           Eq. 47, 49
        other row:  clip(s, 1 - delta + m delta_step, 1) sg(s)^alpha omega A    Eq. 10, 12-14, 50, 52
        J = mean over own rows + mean over the other agent's rows               Eq. 53

    The two means of s are over different tokens: the same text in each agent's tokenizer.
    """
    source_B = torch.tensor([row.source for row in rows])
    advantage_B = torch.tensor([row.advantage for row in rows])
    weight_B = torch.tensor([row.weight for row in rows])
    log_s_B = mean_logprobs(learner, rows) - torch.tensor([row.old_mean_logprob for row in rows])
    s_B = log_s_B.clamp(-10, 10).exp()  # official code: the bounds

    clipped_B = s_B.clamp(1 - settings.own_low, 1 + settings.own_high)
    own_B = torch.minimum(s_B * advantage_B, clipped_B * advantage_B)

    # No minimum here: a row outside the bounds has no gradient, whatever the sign of its advantage.
    floor = min(1.0, settings.cross_floor + m * settings.cross_step)
    cross_B = s_B.clamp(floor, 1.0) * s_B.detach() ** settings.alpha * weight_B * advantage_B

    value_B = torch.where(source_B == k, own_B, cross_B)
    return torch.stack([value_B[source_B == j].mean() for j in source_B.unique()]).sum()


def mean_logprobs(learner: Agent, rows: Sequence[Row]) -> Tensor:
    """Mean log-probability (nats per token) of each row's response under the learner's current weights."""
    longest = max(len(row.prompt_ids) + len(row.token_ids) for row in rows)
    input_BT = torch.zeros(len(rows), longest, dtype=torch.long)  # padded on the right; no token attends to padding
    mask_BT = torch.zeros(len(rows), longest, dtype=torch.bool)  # True on the tokens of the response
    for b, row in enumerate(rows):
        end = len(row.prompt_ids) + len(row.token_ids)
        input_BT[b, :end] = torch.tensor(row.prompt_ids + row.token_ids)
        mask_BT[b, len(row.prompt_ids) : end] = True
    # The logits at a position predict the next token.
    logits_BTV: Tensor = learner.model(input_ids=input_BT, use_cache=False).logits[:, :-1]
    logprob_BT = logits_BTV.log_softmax(dim=2).gather(2, input_BT[:, 1:, None])[:, :, 0]
    return (logprob_BT * mask_BT[:, 1:]).sum(dim=1) / mask_BT.sum(dim=1)


def load_agent(name: str, folder: Path, settings: Settings) -> Agent:
    """Load an agent from a Hugging Face model folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    lr, betas, eps, decay = settings.learning_rate, settings.betas, settings.epsilon, settings.weight_decay
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=betas, eps=eps, weight_decay=decay)
    return Agent(name, model, AutoTokenizer.from_pretrained(folder), optimizer)


def main() -> None:
    """Train a tiny Qwen3 with a character tokenizer and a tiny Llama with tokens for numbers and phrases."""
    parser = argparse.ArgumentParser(description="HACPO in one file, on sums and differences of three digits")
    parser.add_argument("--steps", type=int, default=40)
    num_steps = parser.parse_args().steps
    torch.set_num_threads(1)
    settings = Settings()

    def tiny_agent(name: str, family: str, tokenizer: str, seed: int) -> Agent:
        # Supervised warm-up on demonstrations with planted errors; reinforcement learning then improves the model.
        warm_up = WarmUpConfig(
            source="arithmetic",
            template="{problem}",
            misconceptions=[0.7, 0.7, 0.1],
            num_steps=700,
            learning_rate=4e-3,
            seed=seed,
        )
        tiny = TinyModelConfig(family=family, tokenizer=tokenizer, seed=seed)
        model = InitialModel(name, AgentConfig(tiny=tiny, warm_up=warm_up), Path("runs/models"))
        return load_agent(name, model.make(), settings)

    agents = [tiny_agent("qwen-tiny", "qwen3", "character", 0), tiny_agent("llama-tiny", "llama", "merged", 1)]
    problems = [Problem(f"arithmetic/{e}", str(e), str(e.work()[2])) for e in split_expressions("train")]
    train(agents, problems, num_steps, settings)


if __name__ == "__main__":
    main()
