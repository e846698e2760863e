"""Sampling with transformers: a KV cache, each distinct prompt encoded once, finished rows dropped.

Shapes: U distinct prompt, B sequence, C row of the cache, T token, V vocabulary, E token that ends a response, K token
by rank, N block of the vocabulary, L token of a block.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from hacpo_core.engines.sampling.base import Sampled, SampleRequest
from hacpo_core.engines.sampling.decoder_choice import Decoder, decoder_of
from hacpo_core.engines.sampling.decoders import ModelDecoder
from hacpo_core.records import SamplingLimits
from hacpo_core.seeds import uniforms

_NOTHING = (np.empty(0, np.int32), np.empty(0, np.float32), False)
BLOCK = 128
"""number of neighbouring tokens whose probabilities are summed first"""
NUCLEUS = 1024
"""number of likeliest tokens that are searched for the smallest set; eight times as many if they do not hold it"""
COMPACT_BELOW = 0.8  # drop finished rows from the cache when less than this share of its rows is unfinished


class TransformersSampler:
    """Samples from a model whose weights it may share with the learner; they are never copied.

    The random numbers of a response depend only on its request's seed (one uniform number per token, inverse CDF). The
    same request therefore gives the same response in any batch, up to floating-point differences between batch shapes.
    Reported log-probabilities are those of the policy, softmax(logits / temperature), before top_p, over all rows of
    the output embedding, as the learner's.
    """

    name = "transformers"
    mixes_limits = False

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        eos_ids: Iterable[int],
        pad_id: int,
        batch_size: int,
        unknown_ids: Collection[int] = (),
    ) -> None:
        """
        Args:
            model: the learner's; every call uses its current weights.
            eos_ids: all ids that end a response.
            pad_id: padding of a batch's shorter rows.
            batch_size: number of concurrent responses.
            unknown_ids: rows of the output embedding without a token, which are never sampled.
        """
        self.model = model
        self._pad_id = pad_id
        self._batch_size = batch_size
        self._eos_E = torch.tensor(sorted(eos_ids), device=model.device)
        self._unknown_ids = torch.tensor(sorted(unknown_ids), dtype=torch.int64, device=model.device)
        self._new_decoder: Callable[[], Decoder] | None = None

    @torch.no_grad()
    def sample(
        self, requests: Sequence[SampleRequest], limits: SamplingLimits, *, stop_ids: Collection[int] = ()
    ) -> Sampled:
        """One response per request, in order."""
        stop_E = torch.cat([self._eos_E, self._eos_E.new_tensor(sorted(stop_ids))]) if stop_ids else self._eos_E
        self.model.eval()
        if self._new_decoder is None:
            self._new_decoder = decoder_of(self.model)
        responses: list[tuple[NDArray[Any], NDArray[Any], bool]] = [_NOTHING] * len(requests)
        by_length = sorted(range(len(requests)), key=lambda r: (len(requests[r].prompt_ids), requests[r].prompt_ids))
        decoder = self._new_decoder()
        # A model's own class may cache tensors and train with them later, which inference tensors do not allow.
        mode = torch.no_grad if isinstance(decoder, ModelDecoder) else torch.inference_mode
        for start in range(0, len(by_length), self._batch_size):
            positions = by_length[start : start + self._batch_size]
            batch = [requests[position] for position in positions]
            with mode(), without_cudnn_attention(self.model.device):
                for position, response in zip(
                    positions, self._sample_batch(decoder, batch, limits, stop_E), strict=True
                ):
                    responses[position] = response
        return Sampled.of(responses)

    def synchronise(self, version: int, check: Callable[[], None]) -> None:
        """Do nothing: the weights are shared with the learner."""

    def rest(self) -> None:
        """Do nothing: memory is only used during a call."""

    def close(self) -> None:
        """Do nothing."""

    def _sample_batch(
        self, decoder: Decoder, requests: Sequence[SampleRequest], limits: SamplingLimits, stop_E: Tensor
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any], bool]]:
        """(token ids, log-probabilities, whether it was cut) for each request."""
        device = self.model.device
        token_limits = [request.token_limit(limits) for request in requests]
        num_rows, max_tokens = len(requests), max(token_limits)
        max_B = torch.tensor(token_limits, device=device) if min(token_limits) < max_tokens else None
        logits_BV = self.prefill(decoder, requests, max_tokens)
        token_BT = torch.full((num_rows, max_tokens), self._pad_id, device=device)
        logprob_BT = torch.zeros(num_rows, max_tokens, device=device)
        if not limits.is_greedy:
            uniform_BT = torch.from_numpy(uniforms([request.seed for request in requests], max_tokens)).to(device)
        # `row_C[c]` is the request of cache row c; finished rows stay until the next compaction.
        row_C = torch.arange(num_rows, device=device)
        is_alive_C = torch.ones(num_rows, dtype=torch.bool, device=device)
        for t in range(max_tokens):
            logits_CV = logits_BV.float()
            if not limits.is_greedy and limits.temperature != 1.0:
                logits_CV = logits_CV / limits.temperature
            probability_CV = logits_CV.softmax(dim=1)
            if limits.is_greedy:
                token_C = self._known(logits_CV, -torch.inf).argmax(dim=1)
            else:
                token_C = choose(nucleus(self._known(probability_CV, 0.0), limits.top_p), uniform_BT[row_C, t])
            token_BT[row_C, t] = token_C  # finished rows too: tokens after their end are cut off below
            logprob_BT[row_C, t] = probability_CV.gather(1, token_C[:, None])[:, 0].log()
            is_alive_C = is_alive_C & (token_C[:, None] != stop_E).all(dim=1)
            if max_B is not None:
                is_alive_C &= max_B[row_C] > t + 1
            num_alive = int(is_alive_C.sum())
            if num_alive == 0 or t == max_tokens - 1:
                break
            if num_alive < COMPACT_BELOW * len(row_C):
                alive_C = is_alive_C.nonzero()[:, 0]
                decoder.keep(alive_C)
                row_C, token_C, is_alive_C = row_C[alive_C], token_C[alive_C], is_alive_C[alive_C]
            logits_BV = decoder.extend(token_C)
        is_end_BT = torch.isin(token_BT[:, : t + 1], stop_E)
        last_B: Tensor | int = t
        if max_B is not None:
            last_B = (max_B - 1).clamp(max=t)
            is_end_BT &= torch.arange(t + 1, device=device) <= last_B[:, None]
        is_stopped_B = is_end_BT.any(dim=1)
        length_B = torch.where(is_stopped_B, is_end_BT.int().argmax(dim=1), last_B) + 1
        tokens_BT, logprobs_BT = token_BT.cpu().numpy(), logprob_BT.cpu().numpy()
        for b, (length, is_stopped) in enumerate(zip(length_B.tolist(), is_stopped_B.tolist(), strict=True)):
            yield tokens_BT[b, :length], logprobs_BT[b, :length], not is_stopped

    def _known(self, value_CV: Tensor, other: float) -> Tensor:
        """The values of tokens that there are; another value for unknown ids."""
        return value_CV.index_fill(1, self._unknown_ids, other) if len(self._unknown_ids) else value_CV

    def prefill(self, decoder: Decoder, requests: Sequence[SampleRequest], max_tokens: int) -> Tensor:
        """Encode each distinct prompt once, padded on the left; logits_BV of every request's first response token."""
        device = self.model.device
        prompts = list(dict.fromkeys(request.prompt_ids for request in requests))
        place = {prompt: u for u, prompt in enumerate(prompts)}
        longest = max(len(prompt) for prompt in prompts)
        prompt_ids = [[self._pad_id] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
        mask_UT = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
        prompt_B = torch.tensor([place[request.prompt_ids] for request in requests], device=device)
        return decoder.start(torch.tensor(prompt_ids, device=device), mask_UT, prompt_B, max_tokens=max_tokens)


@contextmanager
def without_cudnn_attention(device: torch.device) -> Iterator[None]:
    """Turn off cuDNN's attention on a GPU: it compiles a plan for each new shape, and each token has a new one."""
    was_on = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(was_on and device.type == "cpu")
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was_on)


def choose(probability_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Inverse-CDF sampling.

    Probabilities are first summed over blocks of the vocabulary. These sums are accumulated in float64, and so are the
    probabilities of the one block in which the cumulative distribution exceeds the uniform number: accumulating all in
    float64 would take as long as a small model's layers (docs/history.md).

    Args:
        probability_BV: of each token, >= 0; only their ratios count.
        uniform_B: uniform numbers in [0, 1), float64.

    Returns:
        token_B.
    """
    size = probability_BV.shape[1]
    if size <= BLOCK:
        return _first_above(probability_BV.double(), uniform_B)
    whole = size // BLOCK * BLOCK
    blocks_BN = probability_BV[:, :whole].unflatten(1, (-1, BLOCK)) @ probability_BV.new_ones(BLOCK)
    blocks_BN = torch.cat([blocks_BN, probability_BV[:, whole:].sum(dim=1, keepdim=True)], dim=1).double()
    block_B1 = _first_above(blocks_BN, uniform_B)[:, None]
    before_B1 = (blocks_BN.cumsum(dim=1) - blocks_BN).gather(1, block_B1)
    token_BL = block_B1 * BLOCK + torch.arange(BLOCK, device=block_B1.device)
    inside_BL = probability_BV.gather(1, token_BL.clamp(max=size - 1)).double().masked_fill(token_BL >= size, 0.0)
    rest_B = (uniform_B * blocks_BN.sum(dim=1) - before_B1[:, 0]) / blocks_BN.gather(1, block_B1)[:, 0]
    return (block_B1[:, 0] * BLOCK + _first_above(inside_BL, rest_B)).clamp(max=size - 1)


def _first_above(weight_BN: Tensor, share_B: Tensor) -> Tensor:
    """Where the cumulative sum of weights exceeds a share of their total: always a place with a weight above 0."""
    cumulative_BN = weight_BN.cumsum(dim=1)
    total_B = cumulative_BN[:, -1]
    threshold_B = torch.minimum(share_B * total_B, total_B.nextafter(torch.zeros_like(total_B))).clamp(min=0.0)
    place_B = torch.searchsorted(cumulative_BN, threshold_B[:, None], right=True)[:, 0]
    return place_B.clamp(max=weight_BN.shape[1] - 1)  # nan weights exceed nothing; the learner reports them


def nucleus(probability_BV: Tensor, top_p: float) -> Tensor:
    """Probabilities of the smallest set of tokens that holds `top_p`, 0 elsewhere; of equal ones any may be in it.

    They need not add up to 1.
    """
    if top_p == 1:
        return probability_BV
    size = probability_BV.shape[1]
    number = NUCLEUS
    while True:
        if number >= size:
            ordered_BK, token_BK = probability_BV.sort(dim=1, descending=True, stable=True)
        else:
            ordered_BK, token_BK = probability_BV.topk(number, dim=1)
        cumulative_BK = ordered_BK.cumsum(dim=1, dtype=torch.float64)
        if number >= size or bool((cumulative_BK[:, -1] >= top_p).all()):
            is_outside_BK = cumulative_BK - ordered_BK >= top_p
            return torch.zeros_like(probability_BV).scatter(1, token_BK, ordered_BK.masked_fill(is_outside_BK, 0.0))
        number *= 8
