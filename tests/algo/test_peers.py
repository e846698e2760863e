"""The algorithm against TRL and verl: same inputs, their numbers (tests/peers/fixture.json, made by their own code).

Loss = -objective, one source. N rows of n_i tokens, L the response limit:

| `token_aggregation`       | weight of a token | verl `loss_agg_mode`          | TRL `loss_type`                    |
|---------------------------|-------------------|-------------------------------|------------------------------------|
| `token_mean`              | 1 / sum n_i       | `token-mean`                  | `dapo`; `bnpo` (of a micro-batch)  |
| `seq_mean_token_mean`     | 1 / (N n_i)       | `seq-mean-token-mean`         | `grpo`                             |
| `seq_mean_token_sum_norm` | 1 / (N L)         | `seq-mean-token-sum-norm`     | `dr_grpo`                          |
| (ratio per sequence)      | 1 / N per row     | `gspo`, `seq-mean-token-mean` | `grpo`, level `sequence`           |
| CISPO: `token_mean`       | 1 / sum n_i       |                               | `cispo`                            |
| SAPO: `seq_mean_token_mean` | 1 / (N n_i)     |                               | `sapo`                             |
| GMPO                      | 1 / N per row     | `geo_mean`                    |                                    |

Conventions of theirs that the project does not have:
- TRL divides advantages by sigma + 1e-4; the project and verl by sigma + 1e-6. ddof is 1 in all three.
- Both divide the rounding error of a uniform group by epsilon (verl in float32: up to 0.06); here such a group gives 0.
- verl alone gives a group of one response A = R; here and in TRL it gives 0.
- TRL counts responses that it masks (`mask_truncated_completions`) where it divides by the number of responses; here
  they leave that number as well.
- verl's `clip_ratio_c` (dual clip, 3 by default): set out of reach in the fixture.
- TRL's `use_bias_correction_kl` (ratio times KL, on by default): off in the fixture.
- Log-ratios: clamped to +-10 here, +-20 in verl's vanilla loss, at most 10 in its GSPO, not at all in TRL.
- k3: d clamped to +-20 and the estimate to 10 nats here and in verl; nothing in TRL.
- Both let a sequence ratio be averaged over tokens, a row weighing n_i / sum n_i or n_i / (N L). No configuration of
  the project does so, but the weights of `Rows` can.

Shapes: P problem, A agent, G response, B sequence, T token.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hacpo_core.algo.advantages import leave_one_out, whitened
from hacpo_core.algo.groups import agent_std
from hacpo_core.algo.objectives import kl_to_reference, sequence_weights
from hacpo_core.algo.ratios import masked_mean
from hacpo_core.methods.objective import Objective
from hacpo_core.methods.objectives.cispo import Cispo
from hacpo_core.methods.objectives.gmpo import Gmpo
from hacpo_core.methods.objectives.sapo import Sapo
from hacpo_core.methods.objectives.sequence_clip import SequenceClip
from hacpo_core.methods.objectives.token_clip import TokenClip
from hacpo_core.methods.objectives.token_level import TokenLevel
from tests.algo.joint import joint
from tests.algo.micro_batch import MicroBatch, Value, value_of

TOLERANCE = 1e-9
TRL_EPSILON, OUR_EPSILON = 1e-4, 1e-6
VERL_AGGREGATIONS: dict[str, str] = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "seq_mean_token_mean",
    "seq-mean-token-sum-norm": "seq_mean_token_sum_norm",
}
TRL_AGGREGATIONS: dict[str, str] = {
    "dapo": "token_mean",
    "bnpo": "token_mean",
    "grpo": "seq_mean_token_mean",
    "dr_grpo": "seq_mean_token_sum_norm",
}

FIXTURE = json.loads((Path(__file__).parents[1] / "peers" / "fixture.json").read_text())
REWARD_CASES = {case["name"]: case for case in FIXTURE["advantages"]}
LOSS_CASES = {case["name"]: case for case in FIXTURE["losses"]}
ORDINARY_CASES = [name for name in LOSS_CASES if name != "beyond_clamp"]


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def rewards(case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """reward_PAG and is_scored_PAG; null in the fixture is a missing verdict."""
    nested = [[[math.nan if r is None else r for r in group] for group in agent] for agent in case["reward_PAG"]]
    return tensor(nested), ~tensor(nested).isnan()


def our_advantages(case: dict[str, Any], baseline: str) -> Tensor:
    return joint(*rewards(case), baseline=baseline).advantage_LPAG[0]


def std_of_groups(case: dict[str, Any], baseline: str) -> Tensor:
    """Standard deviation (ddof 1) of the group that every response belongs to."""
    reward_PAG, is_scored_PAG = rewards(case)
    if baseline == "pooled":
        flat = reward_PAG.flatten(1)[:, None], is_scored_PAG.flatten(1)[:, None]
        return agent_std(*flat)[:, :, None].expand_as(reward_PAG)
    return agent_std(reward_PAG, is_scored_PAG)[:, :, None].expand_as(reward_PAG)


def assert_close(found: Tensor, expected: Tensor, *, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def method_of(case: dict[str, Any], level: str, kl_coef: float = 0.0) -> Objective:
    low, high = case["clip_low"], case["clip_high"]
    if level == "token":
        return TokenClip(token_low=low, token_high=high, kl_coef=kl_coef)
    return SequenceClip(sequence_low=low, sequence_high=high, kl_coef=kl_coef)


def rows_of(case: dict[str, Any], level: str, aggregation: str) -> MicroBatch:
    """The mini-batch; a sequence-level row that is averaged over tokens weighs its tokens."""
    mask_BT = tensor(case["mask_BT"]).bool()
    num_tokens_B, num_rows = mask_BT.sum(dim=1), len(mask_BT)
    is_sequence_mean = level == "sequence" and aggregation == "seq_mean_token_mean"
    source_B = torch.zeros(num_rows, dtype=torch.long)
    by_tokens = TokenClip(token_aggregation=aggregation)
    weight_B = (
        sequence_weights(source_B)
        if is_sequence_mean
        else by_tokens.row_weights(source_B, num_tokens_B, max_tokens=case["max_tokens"])
    )
    is_weighed_by_tokens = level == "sequence" and not is_sequence_mean
    old_logprob_BT = tensor(case["old_logprob_BT"])
    return MicroBatch(
        mask_BT=mask_BT,
        is_own_B=torch.ones(num_rows, dtype=torch.bool),
        advantage_B=tensor(case["advantage_B"]),
        weight_B=torch.ones(num_rows, dtype=torch.float64),
        old_mean_logprob_B=masked_mean(old_logprob_BT, mask_BT),
        row_weight_B=weight_B * num_tokens_B if is_weighed_by_tokens else weight_B,
        old_logprob_BT=old_logprob_BT,
        reference_logprob_BT=tensor(case["reference_logprob_BT"]),
    )


def loss_and_gradient(method: Objective, rows: MicroBatch, case: dict[str, Any]) -> tuple[Value, Tensor]:
    """Our objective and the gradient of its negative."""
    logprob_BT = tensor(case["logprob_BT"]).requires_grad_()
    result = rows.value(method, logprob_BT)
    (-result.own_objective).backward()
    assert logprob_BT.grad is not None
    return result, logprob_BT.grad


@pytest.mark.parametrize("baseline", ["own", "pooled"])
@pytest.mark.parametrize("name", ["binary", "graded", "two_agents"])
def test_advantages_are_verls(name: str, baseline: str) -> None:
    case = REWARD_CASES[name]
    assert_close(our_advantages(case, baseline), tensor(case[baseline]["verl"]))


@pytest.mark.parametrize("baseline", ["own", "pooled"])
@pytest.mark.parametrize("name", ["binary", "graded", "two_agents", "unscored"])
def test_advantages_are_trls_once_its_larger_epsilon_is_put_in(name: str, baseline: str) -> None:
    case = REWARD_CASES[name]
    std_PAG = std_of_groups(case, baseline)
    with_trl_epsilon_PAG = our_advantages(case, baseline) * (std_PAG + OUR_EPSILON) / (std_PAG + TRL_EPSILON)
    assert_close(with_trl_epsilon_PAG, tensor(case[baseline]["trl"]))


def test_the_epsilons_differ_visibly_where_rewards_hardly_do() -> None:
    case = REWARD_CASES["graded"]
    ratio_G = our_advantages(case, "own")[2, 0] / tensor(case["own"]["trl"])[2, 0]
    assert float(ratio_G.min()) > 1.05


def test_uniform_groups_give_exactly_nothing_where_verl_divides_a_rounding_error() -> None:
    case = REWARD_CASES["graded"]
    assert our_advantages(case, "own")[1].abs().max() == 0.0
    assert 0.0 < tensor(case["own"]["verl"])[1].abs().max() < TOLERANCE


@pytest.mark.parametrize("aggregation", VERL_AGGREGATIONS)
@pytest.mark.parametrize(("level", "loss_name"), [("token", "vanilla"), ("sequence", "gspo")])
@pytest.mark.parametrize("name", ORDINARY_CASES)
def test_objective_gradient_clipped_share_and_global_normalisers_are_verls(
    name: str, level: str, loss_name: str, aggregation: str
) -> None:
    case = LOSS_CASES[name]
    peer = next(r for r in case["verl"] if (r["loss_name"], r["aggregation"]) == (loss_name, aggregation))
    rows = rows_of(case, level, VERL_AGGREGATIONS[aggregation])
    result, gradient_BT = loss_and_gradient(method_of(case, level), rows, case)
    assert_close(-result.own_objective.detach(), tensor(peer["loss"]))
    assert_close(gradient_BT, tensor(peer["gradient_BT"]))
    num_tokens_B = rows.mask_BT.sum(dim=1)
    clipped_share = (result.surrogate.stopped_share_B * num_tokens_B).sum() / num_tokens_B.sum()
    assert_close(clipped_share, tensor(peer["clipped_share"]), tolerance=1e-6)  # verl counts in float32
    half = len(rows.mask_BT) // 2
    for part, expected in zip((slice(None, half), slice(half, None)), peer["loss_of_halves"], strict=True):
        found = rows.part(part).value(method_of(case, level), tensor(case["logprob_BT"])[part])
        assert_close(-found.own_objective, tensor(expected))


@pytest.mark.parametrize("scale", ["batch", "none"])
@pytest.mark.parametrize("name", ["binary", "graded"])
def test_advantages_with_another_scale_are_trls(name: str, scale: str) -> None:
    case = REWARD_CASES[name]
    reward_PAG, is_scored_PAG = rewards(case)
    found_PAG = joint(reward_PAG, is_scored_PAG, baseline="own", scale=scale).advantage_LPAG[0]
    if scale == "batch":
        std = reward_PAG.std()
        found_PAG = found_PAG * (std + OUR_EPSILON) / (std + TRL_EPSILON)
    assert_close(found_PAG, tensor(case["scaled"][scale]))


@pytest.mark.parametrize("name", ["binary", "graded", "two_agents"])
def test_leave_one_out_is_verls_rloo(name: str) -> None:
    case = REWARD_CASES[name]
    reward_PAG, is_scored_PAG = rewards(case)
    found_PAG = leave_one_out(reward_PAG, is_scored_PAG, is_scored_PAG)
    assert_close(found_PAG, tensor(case["others"]["rloo"]))
    assert float(found_PAG.abs().max()) > 0.1


@pytest.mark.parametrize("subtracts_group_mean", [False, True])
@pytest.mark.parametrize("name", ["binary", "graded", "two_agents"])
def test_batch_normalised_advantages_are_verls_reinforce_plus_plus(name: str, subtracts_group_mean: bool) -> None:
    case = REWARD_CASES[name]
    reward_PAG, num_tokens_PAG = rewards(case)[0], tensor(case["num_tokens_PAG"])
    expected_PAG = tensor(case["others"]["reinforce_pp_baseline" if subtracts_group_mean else "reinforce_pp"])
    for k in range(reward_PAG.shape[1]):
        reward_R = reward_PAG[:, k].flatten()
        if subtracts_group_mean:
            reward_R = (reward_PAG[:, k] - reward_PAG[:, k].mean(dim=1, keepdim=True)).flatten()
        found_R = whitened(reward_R, num_tokens_PAG[:, k].flatten(), torch.ones(len(reward_R), dtype=torch.bool))
        assert_close(found_R, expected_PAG[:, k].flatten(), tolerance=1e-6)  # verl's mean adds 1e-8 to the count


@pytest.mark.parametrize("loss_type", ["cispo", "sapo"])
@pytest.mark.parametrize("name", ORDINARY_CASES)
def test_objectives_without_a_clip_and_their_gradients_are_trls(name: str, loss_type: str) -> None:
    case = LOSS_CASES[name]
    peer = next(r for r in case["trl"] if (r["level"], r["loss_type"]) == ("token", loss_type))
    methods: dict[str, TokenLevel] = {
        "cispo": Cispo(ratio_ceiling=1.0 + case["clip_high"]), "sapo": Sapo()
    }  # fmt: skip
    method = methods[loss_type]
    aggregation = "seq_mean_token_mean" if loss_type == "sapo" else "token_mean"
    assert method.token_aggregation == aggregation
    result, gradient_BT = loss_and_gradient(method, rows_of(case, "token", aggregation), case)
    tolerance = 1e-7 if loss_type == "sapo" else TOLERANCE  # TRL rounds tau to float32
    assert_close(-result.own_objective.detach(), tensor(peer["loss"]), tolerance=tolerance)
    assert_close(gradient_BT, tensor(peer["gradient_BT"]), tolerance=tolerance)


@pytest.mark.parametrize("name", ORDINARY_CASES)
def test_entropy_bonus_and_its_gradients_are_trls(name: str) -> None:
    case = LOSS_CASES[name]
    peer, rows = case["trl_entropy"], rows_of(case, "token", "token_mean")
    mask_BT, entropy_BT = rows.mask_BT, (tensor(case["entropy_BT"]) * rows.mask_BT).requires_grad_()
    logprob_BT = tensor(case["logprob_BT"]).requires_grad_()
    method = replace(method_of(case, "token"), entropy_coef=peer["coefficient"])
    found = value_of(
        method,
        rows.rows(),
        logprob_BT,
        rows.row_weight_B,
        update=0,
        num_own_tokens=int(mask_BT.sum()),
        entropy_BT=entropy_BT,
    )
    (-found.own_objective).backward()
    assert_close(-found.own_objective.detach(), tensor(peer["loss"]))
    assert logprob_BT.grad is not None
    assert_close(logprob_BT.grad, tensor(peer["gradient_BT"]))
    assert entropy_BT.grad is not None
    assert_close(entropy_BT.grad * mask_BT, tensor(peer["entropy_gradient_BT"]) * mask_BT)


@pytest.mark.parametrize("loss_type", TRL_AGGREGATIONS)
@pytest.mark.parametrize("name", ORDINARY_CASES)
def test_loss_without_cut_responses_and_its_gradient_are_trls(name: str, loss_type: str) -> None:
    case = LOSS_CASES[name]
    peer = next(r for r in case["trl_truncated"] if r["loss_type"] == loss_type)
    method = replace(method_of(case, "token", peer["kl_coef"]), mask_truncated="all")
    is_kept_B = ~method.masked_rows(np.array(peer["is_cut_B"], bool), np.array(case["advantage_B"]))
    columns = ("mask_BT", "logprob_BT", "old_logprob_BT", "reference_logprob_BT", "advantage_B")
    kept = {**case, **{name: np.array(case[name])[is_kept_B] for name in columns}}
    result, kept_gradient_BT = loss_and_gradient(method, rows_of(kept, "token", TRL_AGGREGATIONS[loss_type]), kept)
    gradient_BT = torch.zeros_like(tensor(case["logprob_BT"]))
    gradient_BT[torch.from_numpy(is_kept_B)] = kept_gradient_BT
    # TRL leaves cut responses out of sums over tokens, but counts them where it divides by the number of responses
    share = is_kept_B.mean() if loss_type in ("grpo", "dr_grpo") else 1.0
    assert 0 < is_kept_B.mean() < 1
    assert_close(-result.own_objective.detach() * share, tensor(peer["loss"]))
    assert_close(gradient_BT * share, tensor(peer["gradient_BT"]))


@pytest.mark.parametrize("name", ORDINARY_CASES)
def test_geometric_mean_objective_and_its_gradient_are_verls(name: str) -> None:
    case = LOSS_CASES[name]
    peer = next(r for r in case["verl"] if r["loss_name"] == "geo_mean")
    method = Gmpo(log_low=case["clip_low"], log_high=case["clip_high"])
    result, gradient_BT = loss_and_gradient(method, rows_of(case, "sequence", "seq_mean_token_mean"), case)
    assert_close(
        -result.own_objective.detach(), tensor(peer["loss"]), tolerance=1e-7
    )  # verl adds 1e-8 to the number of tokens
    assert_close(gradient_BT, tensor(peer["gradient_BT"]), tolerance=1e-7)


def our_weights(case: dict[str, Any], level: str, correction: str) -> Tensor:
    """Weights for what the sampler differs from the learner in."""
    objective = TokenClip(correction=correction, correction_level=level, correction_limit=case["correction_limit"])
    return objective.correction_weights(
        tensor(case["old_logprob_BT"]), tensor(case["sampler_logprob_BT"]), tensor(case["mask_BT"]).bool()
    )


@pytest.mark.parametrize("level", ["sequence", "token"])
@pytest.mark.parametrize("name", LOSS_CASES)
def test_truncated_sampler_corrections_are_verls(name: str, level: str) -> None:
    case = LOSS_CASES[name]
    assert_close(our_weights(case, level, "truncate"), tensor(case["verl_weights"][level]))


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("name", ORDINARY_CASES)
def test_corrected_objective_and_its_gradient_are_trls(name: str, place: int) -> None:
    case = LOSS_CASES[name]
    peer = case["trl_corrected"][place]
    correction_level, correction = peer["mode"].split("_")
    weight_BT = our_weights(case, correction_level, correction)
    mask_BT = tensor(case["mask_BT"]).bool()
    assert_close(weight_BT, tensor(peer["weight"]).expand_as(weight_BT) * mask_BT)
    rows = replace(rows_of(case, peer["level"], TRL_AGGREGATIONS[peer["loss_type"]]), correction_BT=weight_BT)
    method = replace(
        method_of(case, peer["level"], peer["kl_coef"]), correction=correction, correction_level=correction_level
    )
    result, gradient_BT = loss_and_gradient(method, rows, case)
    assert_close(-result.own_objective.detach(), tensor(peer["loss"]))
    assert_close(gradient_BT, tensor(peer["gradient_BT"]))
    plain, _ = loss_and_gradient(replace(method, correction="none"), rows_of(case, peer["level"], "token_mean"), case)
    assert not torch.isclose(plain.own_objective, result.own_objective, rtol=1e-6), "the weight matters"


def test_fixture_has_weights_on_both_sides_of_the_limit() -> None:
    for level in ("sequence", "token"):
        weights = torch.cat(
            [our_weights(case, level, "mask")[tensor(case["mask_BT"]).bool()] for case in LOSS_CASES.values()]
        )
        assert (weights == 0).any()
        assert (weights > 1).any()
        assert ((weights > 0) & (weights < 1)).any()


@pytest.mark.parametrize("kl_coef", [0.0, 0.05])
@pytest.mark.parametrize("loss_type", TRL_AGGREGATIONS)
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("name", ORDINARY_CASES)
def test_objective_gradient_and_clipped_share_are_trls(name: str, level: str, loss_type: str, kl_coef: float) -> None:
    case = LOSS_CASES[name]
    wanted = level, loss_type, kl_coef
    peer = next(r for r in case["trl"] if (r["level"], r["loss_type"], r["kl_coef"]) == wanted)
    rows = rows_of(case, level, TRL_AGGREGATIONS[loss_type])
    result, gradient_BT = loss_and_gradient(method_of(case, level, kl_coef), rows, case)
    assert_close(-result.own_objective.detach(), tensor(peer["loss"]))
    assert_close(gradient_BT, tensor(peer["gradient_BT"]))
    unit_B = rows.mask_BT.sum(dim=1) if level == "token" else torch.ones(len(rows.mask_BT))
    clipped_share = (result.surrogate.stopped_share_B * unit_B).sum() / unit_B.sum()
    assert_close(clipped_share, tensor(peer["clipped_share"]), tolerance=1e-6)  # TRL counts in float32


@pytest.mark.parametrize("name", LOSS_CASES)
def test_kl_to_the_reference_and_its_gradient_are_verls_k3(name: str) -> None:
    case = LOSS_CASES[name]
    logprob_BT = tensor(case["logprob_BT"]).requires_grad_()
    kl_BT = kl_to_reference(logprob_BT, tensor(case["reference_logprob_BT"]))
    kl_BT.sum().backward()
    assert logprob_BT.grad is not None
    assert_close(kl_BT.detach(), tensor(case["verl_k3"]["kl_BT"]))
    assert_close(logprob_BT.grad, tensor(case["verl_k3"]["gradient_BT"]))


@pytest.mark.parametrize(("level", "name"), [("token", "grpo_bounds"), ("sequence", "gspo_bounds")])
def test_swapped_bounds_would_be_noticed(level: str, name: str) -> None:
    case = LOSS_CASES[name]
    method = method_of(case, level)
    swapped = method_of(case | {"clip_low": case["clip_high"], "clip_high": case["clip_low"]}, level)
    rows = rows_of(case, level, "seq_mean_token_mean")
    right, right_BT = loss_and_gradient(method, rows, case)
    wrong, wrong_BT = loss_and_gradient(swapped, rows, case)
    assert float((right.own_objective - wrong.own_objective).detach().abs()) > 1e3 * TOLERANCE
    assert not torch.allclose(right_BT, wrong_BT, rtol=0.0, atol=1e3 * TOLERANCE)


def test_fixture_meets_both_bounds_with_both_signs_of_the_advantage() -> None:
    for level, name in [("token", "grpo_bounds"), ("token", "long_rows"), ("sequence", "gspo_bounds")]:
        case = LOSS_CASES[name]
        mask_BT, advantage_B = tensor(case["mask_BT"]).bool(), tensor(case["advantage_B"])
        log_ratio_BT = tensor(case["logprob_BT"]) - tensor(case["old_logprob_BT"])
        advantage_BT = advantage_B[:, None].expand_as(log_ratio_BT)
        if level == "token":
            ratio, advantage = log_ratio_BT.exp()[mask_BT], advantage_BT[mask_BT]
        else:
            ratio, advantage = masked_mean(log_ratio_BT, mask_BT).exp(), advantage_B
        is_above, is_below = ratio > 1 + case["clip_high"], ratio < 1 - case["clip_low"]
        for where in (is_above, is_below, ~(is_above | is_below)):
            assert (where & (advantage > 0)).any()
            assert (where & (advantage < 0)).any()


def test_beyond_a_log_ratio_of_ten_we_stop_where_vanilla_and_trl_go_on() -> None:
    case = LOSS_CASES["beyond_clamp"]
    trl = {r["level"]: r for r in case["trl"] if (r["loss_type"], r["kl_coef"]) == ("grpo", 0.0)}
    verl = {r["loss_name"]: r for r in case["verl"] if r["aggregation"] == "seq-mean-token-mean"}
    for level, peers in [("token", [trl["token"], verl["vanilla"]]), ("sequence", [trl["sequence"]])]:
        rows = rows_of(case, level, "seq_mean_token_mean")
        _, gradient_BT = loss_and_gradient(method_of(case, level), rows, case)
        for peer in peers:
            peer_BT = tensor(peer["gradient_BT"])
            is_outlier_B = torch.arange(len(peer_BT)) == 1
            assert_close(gradient_BT[~is_outlier_B], peer_BT[~is_outlier_B])
            assert gradient_BT[1, 0] == 0.0
            assert peer_BT[1, 0] > -rows.advantage_B[1] * math.exp(10) / len(peer_BT)


def test_beyond_a_log_ratio_of_ten_we_stop_where_verls_gspo_stops() -> None:
    case = LOSS_CASES["beyond_clamp"]
    peer = next(r for r in case["verl"] if (r["loss_name"], r["aggregation"]) == ("gspo", "seq-mean-token-mean"))
    rows = rows_of(case, "sequence", "seq_mean_token_mean")
    result, gradient_BT = loss_and_gradient(method_of(case, "sequence"), rows, case)
    assert_close(-result.own_objective.detach(), tensor(peer["loss"]))
    assert_close(gradient_BT, tensor(peer["gradient_BT"]))
