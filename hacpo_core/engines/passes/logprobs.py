"""Log-probabilities of given tokens, computed without keeping the logits of all of them in memory.

Shapes: N token (of all rows, padding left out), D model width, V vocabulary.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

COMPILER = "inductor"
"""backend of torch.compile"""


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
    has_entropy_gradient: bool = False,
    is_compiled: bool = False,
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
        has_entropy_gradient: whether entropies have a gradient, which needs one more buffer in the backward pass.
        is_compiled: whether torch.compile makes a few kernels of what is done with each chunk's logits.

    Returns:
        scores, fp32 (float64 for float64 input).
    """
    rows = max(1, chunk_mb * 2**20 // (4 * weight_VD.shape[0]))
    logprob_N, entropy_N = _ChunkedScores.apply(  # type: ignore[no-untyped-call]
        hidden_ND, weight_VD, bias_V, target_N, temperature, rows, has_entropy_gradient, is_compiled
    )
    return TokenScores(logprob_N, entropy_N)


def scores_of_logits(
    logits_NV: Tensor, target_N: Tensor, *, temperature: float = 1.0, has_entropy_gradient: bool = False
) -> TokenScores:
    """The same scores from full logits, for heads that are not just a linear layer."""
    logprob_NV = (widened(logits_NV) / temperature).log_softmax(dim=1)
    entropy_logprob_NV = logprob_NV if has_entropy_gradient else logprob_NV.detach()
    entropy_N = -(entropy_logprob_NV.exp() * entropy_logprob_NV).sum(dim=1)
    return TokenScores(logprob_NV.gather(1, target_N[:, None])[:, 0], entropy_N)


def widened(tensor: Tensor) -> Tensor:
    """The tensor in fp32; float64 stays float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    logits = functional.linear(hidden.to(weight.dtype), weight)
    return logits if bias is None else logits + bias


def _scaled(logits_NV: Tensor, temperature: float) -> Tensor:
    """Logits of a chunk in fp32, divided by the temperature."""
    logits_NV = widened(logits_NV)
    return logits_NV.div_(temperature) if temperature != 1.0 else logits_NV


def _chunk_scores(logits_NV: Tensor, target_N: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability, entropy and normaliser of each target of a chunk."""
    logits_NV = _scaled(logits_NV, temperature)
    normaliser_N = logits_NV.logsumexp(dim=1)
    logprob_N = logits_NV.gather(1, target_N[:, None])[:, 0] - normaliser_N
    mean_logit_N = (logits_NV - normaliser_N[:, None]).exp_().mul_(logits_NV).sum(dim=1)
    return logprob_N, normaliser_N - mean_logit_N, normaliser_N


def _chunk_gradient(
    logits_NV: Tensor,
    target_N: Tensor,
    normaliser_N: Tensor,
    grad_N: Tensor,
    entropy_N: Tensor | None,
    entropy_grad_N: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Gradient of a chunk's logits, in their dtype, except at the targets, and that at the targets, in fp32.

    Entropies have a gradient unless they are None.
    """
    logprob_NV = _scaled(logits_NV, temperature).sub_(normaliser_N[:, None])
    if entropy_N is None:
        probability_NV, scale_N = logprob_NV.exp_(), grad_N / temperature
        at_target_N = (1.0 - probability_NV.gather(1, target_N[:, None])[:, 0]) * scale_N
        return probability_NV.mul_(-scale_N[:, None]).to(logits_NV.dtype), at_target_N
    probability_NV = logprob_NV.exp()
    grad_NV = logprob_NV.add_(entropy_N[:, None]).mul_(entropy_grad_N[:, None]).add_(grad_N[:, None])
    grad_NV.mul_(probability_NV).neg_()
    at_target_N = (grad_NV.gather(1, target_N[:, None])[:, 0] + grad_N) / temperature
    return grad_NV.div_(temperature).to(logits_NV.dtype), at_target_N


def compiled_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, to be compiled at its first call: once for all numbers of tokens."""
    compiled: Callable[..., Any] = torch.compile(function, dynamic=True, backend=COMPILER)
    return compiled


_compiled_once = cache(compiled_function)


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
        has_entropy_gradient: bool,
        is_compiled: bool,
    ) -> tuple[Tensor, Tensor]:
        chunk_scores = _compiled_once(_chunk_scores) if is_compiled else _chunk_scores
        dtype = torch.float64 if hidden_ND.dtype == torch.float64 else torch.float32
        num_tokens = hidden_ND.shape[0]
        logprob_N = torch.empty(num_tokens, dtype=dtype, device=hidden_ND.device)
        entropy_N, normaliser_N = torch.empty_like(logprob_N), torch.empty_like(logprob_N)
        for start in range(0, num_tokens, rows):
            part = slice(start, start + rows)
            scores = chunk_scores(_logits(hidden_ND[part], weight_VD, bias_V), target_N[part], temperature)
            logprob_N[part], entropy_N[part], normaliser_N[part] = scores
        saved_entropy_N = entropy_N if has_entropy_gradient else None
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, target_N, normaliser_N, saved_entropy_N)
        ctx.temperature, ctx.rows, ctx.is_compiled = temperature, rows, is_compiled
        if not has_entropy_gradient:
            ctx.mark_non_differentiable(entropy_N)
        return logprob_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, target_N, normaliser_N, entropy_N = ctx.saved_tensors
        grad_N, entropy_grad_N = grads
        chunk_gradient = _compiled_once(_chunk_gradient) if ctx.is_compiled else _chunk_gradient
        grad_hidden_ND = torch.empty_like(hidden_ND)
        # Accumulate the weight's gradient in fp32: summing hundreds of chunks in bf16 would lose small terms.
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=normaliser_N.dtype) if ctx.needs_input_grad[1] else None
        grad_bias_V = torch.zeros_like(bias_V, dtype=normaliser_N.dtype) if ctx.needs_input_grad[2] else None
        for start in range(0, hidden_ND.shape[0], ctx.rows):
            part = slice(start, start + ctx.rows)
            grad_logits, at_target = chunk_gradient(
                _logits(hidden_ND[part], weight_VD, bias_V),
                target_N[part],
                normaliser_N[part],
                grad_N[part],
                None if entropy_N is None else entropy_N[part],
                entropy_grad_N[part],
                ctx.temperature,
            )
            grad_logits.scatter_(1, target_N[part, None], at_target[:, None].to(grad_logits.dtype))
            if grad_bias_V is not None:
                grad_bias_V += grad_logits.sum(dim=0, dtype=grad_bias_V.dtype)
            grad_logits = grad_logits.to(weight_VD.dtype)  # a wider bias makes wider logits
            grad_hidden_ND[part] = grad_logits @ weight_VD
            if grad_weight_VD is not None:
                hidden = hidden_ND[part].to(weight_VD.dtype)
                if grad_weight_VD.dtype == hidden.dtype:
                    grad_weight_VD.addmm_(grad_logits.T, hidden)  # avoids a temporary as large as the weight
                else:
                    grad_weight_VD += grad_logits.T @ hidden
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
