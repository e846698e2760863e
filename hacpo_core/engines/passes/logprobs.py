"""Log-probabilities of given tokens, computed without keeping the logits of all of them in memory.

Shapes: N token (of all rows, padding left out), D model width, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hacpo_core.engines.cpu.speedups import linear


class TokenScores(NamedTuple):
    """Log-probability of each target and entropy of its distribution, nats.

    Log-probabilities have a gradient, entropies only if asked for.
    """

    logprob_N: Tensor
    entropy_N: Tensor


def token_scores(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    target_N: Tensor,
    *,
    temperature: float = 1.0,
    chunk_mb: int = 64,
    is_wide: bool = False,
    has_entropy_gradient: bool = False,
) -> TokenScores:
    """Log-softmax of a linear head at the targets, in fp32, chunk by chunk; the backward pass recomputes each chunk.

        log p(n) = z[n, target] - log sum_v exp z[n, v],   z = (hidden W^T + b) / temperature
        H(n) = - sum_v p[n, v] log p[n, v],   dH/dz[n, v] = - p[n, v] (log p[n, v] + H(n))

    Args:
        hidden_ND: last hidden states at the positions that predict the targets.
        weight_VD: output embedding.
        bias_V: its bias, if it has one.
        target_N: token ids.
        temperature: > 0.
        chunk_mb: MiB of one chunk's fp32 logits; up to three such buffers exist at a time.
        is_wide: also compute the logits of bf16 input in fp32, which needs an fp32 copy of the weight in each pass.
        has_entropy_gradient: whether entropies have a gradient, which needs one more buffer in the backward pass.

    Returns:
        scores, fp32 (float64 for float64 input).
    """
    rows = max(1, chunk_mb * 2**20 // (4 * weight_VD.shape[0]))
    logprob_N, entropy_N = _ChunkedScores.apply(  # type: ignore[no-untyped-call]
        hidden_ND, weight_VD, bias_V, target_N, temperature, rows, is_wide, has_entropy_gradient
    )
    return TokenScores(logprob_N, entropy_N)


def scores_of_logits(
    logits_NV: Tensor, target_N: Tensor, *, temperature: float = 1.0, has_entropy_gradient: bool = False
) -> TokenScores:
    """The same scores from full logits, for heads that are not just a linear layer."""
    logprob_NV = (widened(logits_NV) / temperature).log_softmax(dim=1)
    known_NV = logprob_NV if has_entropy_gradient else logprob_NV.detach()
    entropy_N = -(known_NV.exp() * known_NV).sum(dim=1)
    return TokenScores(logprob_NV.gather(1, target_N[:, None])[:, 0], entropy_N)


def widened(tensor: Tensor) -> Tensor:
    """The tensor in fp32; float64 stays float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    logits = linear(hidden.to(weight.dtype), weight)
    if bias is not None:
        logits = logits + bias
    logits = widened(logits)
    return logits.div_(temperature) if temperature != 1.0 else logits


class _ChunkedScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        target_N: Tensor,
        temperature: float,
        rows: int,
        is_wide: bool,
        has_entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        head_VD = widened(weight_VD) if is_wide else weight_VD
        dtype = torch.float64 if hidden_ND.dtype == torch.float64 else torch.float32
        num_tokens = hidden_ND.shape[0]
        logprob_N = torch.empty(num_tokens, dtype=dtype, device=hidden_ND.device)
        entropy_N, normaliser_N = torch.empty_like(logprob_N), torch.empty_like(logprob_N)
        for start in range(0, num_tokens, rows):
            part = slice(start, start + rows)
            logits = _logits(hidden_ND[part], head_VD, bias_V, temperature)
            normaliser = logits.logsumexp(dim=1)
            logprob_N[part] = logits.gather(1, target_N[part, None])[:, 0] - normaliser
            mean_logit = torch.linalg.vecdot((logits - normaliser[:, None]).exp_(), logits)
            entropy_N[part] = normaliser - mean_logit
            normaliser_N[part] = normaliser
        known_entropy_N = entropy_N if has_entropy_gradient else None
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, target_N, normaliser_N, known_entropy_N)
        ctx.temperature, ctx.rows, ctx.is_wide = temperature, rows, is_wide
        if not has_entropy_gradient:
            ctx.mark_non_differentiable(entropy_N)
        return logprob_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, target_N, normaliser_N, entropy_N = ctx.saved_tensors
        grad_N, entropy_grad_N = grads
        head_VD = widened(weight_VD) if ctx.is_wide else weight_VD
        grad_hidden_ND = torch.empty_like(hidden_ND)
        # Accumulate the weight's gradient in fp32: summing hundreds of chunks in bf16 would lose small terms.
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=normaliser_N.dtype) if ctx.needs_input_grad[1] else None
        grad_bias_V = torch.zeros_like(bias_V, dtype=normaliser_N.dtype) if ctx.needs_input_grad[2] else None
        for start in range(0, hidden_ND.shape[0], ctx.rows):
            part = slice(start, start + ctx.rows)
            logits = _logits(hidden_ND[part], head_VD, bias_V, ctx.temperature)
            logprob = logits.sub_(normaliser_N[part, None])
            if entropy_N is None:
                grad_logits = logprob.exp_().neg_()
                grad_logits.scatter_add_(1, target_N[part, None], torch.ones_like(grad_logits[:, :1]))
                grad_logits.mul_(grad_N[part, None] / ctx.temperature)
            else:
                probability, grad = logprob.exp(), grad_N[part, None]
                grad_logits = logprob.add_(entropy_N[part, None]).mul_(entropy_grad_N[part, None]).add_(grad)
                grad_logits.mul_(probability).neg_()
                grad_logits.scatter_add_(1, target_N[part, None], grad).div_(ctx.temperature)
            if grad_bias_V is not None:
                grad_bias_V += grad_logits.sum(dim=0)
            narrow = grad_logits.to(head_VD.dtype)
            grad_hidden_ND[part] = linear(narrow, head_VD.T)
            if grad_weight_VD is not None:
                hidden = hidden_ND[part].to(head_VD.dtype)
                if grad_weight_VD.dtype == hidden.dtype:
                    grad_weight_VD.addmm_(narrow.T, hidden)  # avoids a temporary as large as the weight
                else:
                    grad_weight_VD += narrow.T @ hidden
        return (
            grad_hidden_ND,
            None if grad_weight_VD is None else grad_weight_VD.to(weight_VD.dtype),
            None if grad_bias_V is None else grad_bias_V.to(bias_V.dtype),
            None,
            None,
            None,
            None,
            None,
        )
