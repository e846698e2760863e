"""DeepSpeed's configuration, derived from hacpo's."""

from typing import Any

from hacpo_core.config import EngineConfig, OptimizerConfig

MAX_BUCKET = 500_000_000  # elements that are reduced at once; DeepSpeed's default


def zero_settings(engine: EngineConfig, optimizer: OptimizerConfig, *, num_elements: int) -> dict[str, Any]:
    """The configuration for `deepspeed.initialize`, for a model with this number of trained elements."""
    stage = engine.deepspeed.stage
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": False, "reduce_bucket_size": min(MAX_BUCKET, num_elements)}
    if engine.deepspeed.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": engine.device != "cpu"}
    is_bfloat16 = engine.dtype == "bfloat16"
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "managed_gradient_accumulation": False,  # the learner calls step() after any number of passes
        "gradient_clipping": optimizer.max_grad_norm,
        "bf16": {"enabled": is_bfloat16},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # DeepSpeed's would be compiled at the first run
        "steps_per_print": None,
    }
    if is_bfloat16:
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
        if stage == 1:
            settings["communication_data_type"] = "fp32"
    return settings
