"""Advantages and losses as TRL computes them.

Both stand inside methods of GRPOTrainer. They are TRL's own code, called on a stand-in for the trainer that has a
real GRPOConfig and a real Accelerator, and that returns the given rewards and log-probabilities where the trainer
would run a model.

Shapes: P problem, A agent, G response, B sequence, T token.
"""

from collections import defaultdict
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from cases import Array, IterationCase, LossCase
from transformers import LlamaConfig, LlamaForCausalLM
from trl import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

LEVELS = ("token", "sequence")
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo")
TOKEN_LOSS_TYPES = ("cispo", "sapo")
KL_COEF = 0.05
ENTROPY_COEF = 0.3
EOS = 2
CORRECTIONS = ("sequence_mask", "sequence_truncate", "token_mask", "token_truncate")


def grpo_advantages(reward_PAG: Array, *, is_pooled: bool, scale: str = "group") -> Array:
    """TRL's advantage: `GRPOTrainer._generate_and_score_completions` with generation and rewards replaced.

    The default dtype is float64 meanwhile: TRL's Bessel correction divides two integer tensors, and so would be rounded
    to float32 (1e-8) even for float64 rewards.
    """
    num_G = reward_PAG.shape[1] * reward_PAG.shape[2] if is_pooled else reward_PAG.shape[2]
    completions = [[1]] * reward_PAG.size
    scored = _generated(reward_PAG.ravel(), completions, num_generations=num_G, scale_rewards=scale)
    return scored["advantages"].numpy().reshape(reward_PAG.shape)


def _generated(
    reward_B: Array, completions: list[list[int]], sampled: list[list[float]] | None = None, **attributes: Any
) -> dict[str, torch.Tensor]:
    """What TRL makes of these completions, their rewards and the log-probabilities that a sampler gave them."""
    num_rows = len(reward_B)
    one_function = {
        "reward_funcs": [None],
        "reward_func_names": ["verdict"],
        "reward_weights": torch.ones(1, dtype=torch.float64),
        "multi_objective_aggregation": "sum_then_normalize",
    }
    trainer = _trainer(
        beta=0.0,
        environment_factories=None,
        environments=None,
        tools=None,
        _tokenizer=SimpleNamespace(pad_token_id=0),
        pad_to_multiple_of=None,
        num_iterations=1,
        _pending_extra_logs={},
        _pending_metrics={},
        _generate=lambda prompts: ([[1]] * num_rows, completions, None, [""] * num_rows, sampled, {}, None, None),
        _calculate_rewards=lambda *_: torch.from_numpy(reward_B.reshape(num_rows, -1).copy()),
        **{"mask_truncated_completions": False, **one_function, **attributes},
    )
    torch.set_default_dtype(torch.float64)
    try:
        return GRPOTrainer._generate_and_score_completions(trainer, [{"prompt": ""} for _ in range(num_rows)])
    finally:
        torch.set_default_dtype(torch.float32)


def policy_losses(case: LossCase) -> list[dict[str, Any]]:
    """Loss and gradient for every level of the ratio and every loss type, without and with the KL term."""
    return [
        _policy_loss(case, level, loss_type, kl_coef)
        for level in LEVELS
        for loss_type in LOSS_TYPES
        for kl_coef in (0.0, KL_COEF)
    ] + [_policy_loss(case, "token", loss_type, 0.0) for loss_type in TOKEN_LOSS_TYPES]


def entropy_loss(case: LossCase) -> dict[str, Any]:
    """Loss and gradients with an entropy bonus."""
    logprob_BT, entropy_BT = (torch.from_numpy(value).requires_grad_() for value in (case.logprob_BT, case.entropy_BT))
    trainer = _loss_trainer(
        case,
        "token",
        "dapo",
        0.0,
        top_entropy_quantile=1.0,
        _entropy_bonus_enabled=True,
        entropy_coef=ENTROPY_COEF,
        use_adaptive_entropy=False,
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprob_BT, entropy_BT, None),
    )
    loss = GRPOTrainer._compute_loss(trainer, None, _inputs_of(case))
    loss.backward()
    return {
        "coefficient": ENTROPY_COEF,
        "loss": loss.item(),
        "gradient_BT": logprob_BT.grad.numpy(),
        "entropy_gradient_BT": entropy_BT.grad.numpy(),
    }


def truncated_losses(case: LossCase) -> list[dict[str, Any]]:
    """Loss and gradient where every third row was cut at the limit and TRL masks what was cut."""
    length_B = case.mask_BT.sum(axis=1)
    is_cut_B = np.arange(len(length_B)) % 3 == 0
    completions = [
        [1] * (length - 1) + [1 if is_cut else EOS] for length, is_cut in zip(length_B, is_cut_B, strict=True)
    ]
    generated = _generated(
        np.zeros(len(length_B)),
        completions,
        num_generations=len(length_B),
        scale_rewards="group",
        mask_truncated_completions=True,
        eos_token_ids=[EOS],
    )
    mask_BT = np.zeros_like(case.mask_BT)
    mask_BT[:, : generated["completion_mask"].shape[1]] = generated["completion_mask"].numpy()
    kept = replace(case, mask_BT=mask_BT)
    return [{"is_cut_B": is_cut_B, **_policy_loss(kept, "token", loss_type, KL_COEF)} for loss_type in LOSS_TYPES]


def iterations(case: IterationCase) -> dict[str, Any]:
    """What TRL trains on in each update of several iterations, and what the responses' log-probabilities become.

    `GRPOTrainer._prepare_inputs` splits and repeats the rows, `GRPOTrainer._compute_loss` gives the losses; torch's
    AdamW updates a model of transformers.
    """
    torch.set_default_dtype(torch.float64)
    try:
        model = LlamaForCausalLM(LlamaConfig(**case.config))
    finally:
        torch.set_default_dtype(torch.float32)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in case.weights.items()})
    optimizer = torch.optim.AdamW(model.parameters(), case.learning_rate, eps=case.epsilon, weight_decay=0.0)
    length_B = np.array([len(ids) for ids in case.response_ids])
    num_rows, num_tokens = len(length_B), int(length_B.max())
    mask_BT = torch.from_numpy((np.arange(num_tokens) < length_B[:, None]).astype(np.int64))
    completion_BT = torch.zeros_like(mask_BT)
    for row, ids in enumerate(case.response_ids):
        completion_BT[row, : len(ids)] = torch.tensor(ids)
    ids_BT = torch.cat([torch.tensor(case.prompt_ids), completion_BT], dim=1)

    def logprobs(rows: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=ids_BT[rows], use_cache=False).logits[:, -num_tokens - 1 : -1]
        return logits.log_softmax(dim=-1).gather(2, completion_BT[rows][:, :, None])[:, :, 0]

    with torch.no_grad():
        old_BT = logprobs(torch.arange(num_rows))
    trainer = _loss_trainer(
        None,
        "token",
        "grpo",
        0.0,
        top_entropy_quantile=1.0,
        _entropy_bonus_enabled=False,
        num_iterations=case.num_iterations,
        _buffered_inputs=None,
        _generate_and_score_completions=lambda batch: batch,
    )
    trainer.epsilon_low, trainer.epsilon_high = case.clip_low, case.clip_high
    trainer.args.report_to = []
    trainer.args.steps_per_generation = case.num_minibatches
    batch = {**_loss_inputs(mask_BT, torch.from_numpy(case.advantage_B), old_BT), "row": torch.arange(num_rows)}
    rows, ratios = [], []
    torch.manual_seed(0)  # of TRL's shuffle
    for trainer._step in range(case.num_minibatches * case.num_iterations):
        inputs = GRPOTrainer._prepare_inputs(trainer, batch)
        new_BT = logprobs(inputs["row"])
        trainer._get_per_token_logps_and_entropies = lambda *_, new=new_BT, **__: (new, torch.zeros_like(new), None)
        optimizer.zero_grad()
        GRPOTrainer._compute_loss(trainer, None, inputs).backward()
        optimizer.step()
        rows.append(inputs["row"].tolist())
        difference_BT = (new_BT.detach() - inputs["old_per_token_logps"]) * inputs["completion_mask"]
        ratios.append((difference_BT.sum(dim=1) / inputs["completion_mask"].sum(dim=1)).exp().numpy())
    with torch.no_grad():
        final_BT = logprobs(torch.arange(num_rows)) * mask_BT
    return {"rows": rows, "ratios": ratios, "logprob_BT": final_BT.numpy()}


def corrected_losses(case: LossCase) -> list[dict[str, Any]]:
    """TRL's importance weights for what the sampler differs from the learner in, and the loss with them."""
    return [
        {"mode": mode, "weight": weight.numpy(), **_policy_loss(case, level, loss_type, KL_COEF, weight)}
        for mode in CORRECTIONS
        for weight in [_importance_weights(case, mode)]
        for level, loss_type in (("token", "dapo"), ("sequence", "grpo"))
        if level == "token" or mode.startswith("sequence")
    ]


def _importance_weights(case: LossCase, mode: str) -> torch.Tensor:
    """TRL's `GRPOTrainer._generate_and_score_completions`, which makes them from the log-probabilities of a rollout."""
    lengths = case.mask_BT.sum(axis=1).tolist()
    old_BT = torch.from_numpy(case.old_logprob_BT)
    return _generated(
        np.zeros(len(lengths)),
        [[1] * length for length in lengths],
        [row[:length].tolist() for row, length in zip(case.sampler_logprob_BT, lengths, strict=True)],
        num_generations=len(lengths),
        scale_rewards="group",
        use_vllm=True,
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_min=None,
        vllm_importance_sampling_clip_max=case.correction_limit,
        _get_per_token_logps_and_entropies=lambda *_, **__: (old_BT, None, None),
    )["importance_sampling_ratio"]


def _policy_loss(
    case: LossCase, level: str, loss_type: str, kl_coef: float, correction: torch.Tensor | None = None
) -> dict[str, Any]:
    logprob_BT = torch.from_numpy(case.logprob_BT).requires_grad_()
    entropy_BT = torch.zeros_like(logprob_BT)
    trainer = _loss_trainer(
        case,
        level,
        loss_type,
        kl_coef,
        top_entropy_quantile=1.0,
        _entropy_bonus_enabled=False,
        use_vllm=correction is not None,
        vllm_importance_sampling_correction=correction is not None,
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprob_BT, entropy_BT, None),
    )
    inputs = _inputs_of(case)
    if correction is not None:
        inputs["importance_sampling_ratio"] = correction
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    return {
        "level": level,
        "loss_type": loss_type,
        "kl_coef": kl_coef,
        "loss": loss.item(),
        "gradient_BT": logprob_BT.grad.numpy(),
        "clipped_share": next(iter(trainer._metrics["train"]["clip_ratio/region_mean"]), 0.0),
    }


def _inputs_of(case: LossCase) -> dict[str, Any]:
    mask_BT = torch.from_numpy(case.mask_BT.astype(np.int64))
    inputs = _loss_inputs(mask_BT, torch.from_numpy(case.advantage_B), torch.from_numpy(case.old_logprob_BT))
    return {**inputs, "ref_per_token_logps": torch.from_numpy(case.reference_logprob_BT)}


def _loss_inputs(mask_BT: torch.Tensor, advantage_B: torch.Tensor, old_logprob_BT: torch.Tensor) -> dict[str, Any]:
    ids_BT = torch.zeros_like(mask_BT)
    return {
        "prompt_ids": ids_BT[:, :1],
        "prompt_mask": mask_BT[:, :1],
        "completion_ids": ids_BT,
        "completion_mask": mask_BT,
        "advantages": advantage_B,
        "old_per_token_logps": old_logprob_BT,
        "num_items_in_batch": mask_BT.sum(),
    }


def _loss_trainer(
    case: LossCase | None, level: str, loss_type: str, kl_coef: float, **attributes: Any
) -> SimpleNamespace:
    low, high = (0.2, 0.28) if case is None else (case.clip_low, case.clip_high)
    trainer = _trainer(
        aux_loss_enabled=False,
        off_policy_mask_threshold=None,
        importance_sampling_level=level,
        beta=kl_coef,
        loss_type=loss_type,
        epsilon_low=low,
        epsilon_high=1.0 + high if loss_type == "cispo" else high,  # CISPO's is the ceiling itself
        max_completion_length=1 if case is None else case.max_tokens,
        current_gradient_accumulation_steps=1,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        **attributes,
    )
    trainer.get_high_entropy_mask = partial(GRPOTrainer.get_high_entropy_mask, trainer)
    return trainer


def _trainer(**attributes: Any) -> SimpleNamespace:
    """What both methods read from the trainer whatever they are asked.

    TRL multiplies the KL by the ratio by default (`use_bias_correction_kl`); the project and verl do not.
    """
    config = GRPOConfig(
        output_dir="unused", use_cpu=True, bf16=False, use_bias_correction_kl=False, per_device_train_batch_size=8
    )
    return SimpleNamespace(
        accelerator=Accelerator(cpu=True),
        args=config,
        model=SimpleNamespace(training=True, is_gradient_checkpointing=False),
        _metrics={"train": defaultdict(list)},
        _logs=defaultdict(list, rewards=defaultdict(list), extra=defaultdict(list)),
        **{"use_vllm": False, **attributes},
    )
