"""The image and the job script agree with the project; nobody here builds or submits them."""

import re
import shlex
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

from flows.planning.capacity import check_fits, with_memory_plan
from flows.planning.compose import compose
from flows.planning.memory import ModelShape, peak_gib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DOCKERFILE = (ROOT / "examples" / "cluster" / "Dockerfile").read_text(encoding="utf-8")
GPU_GIB = 24.0
"""the card that docs/gpu.md names"""
SBATCH = ROOT / "examples" / "cluster" / "train.sbatch"


def test_image_installs_the_pinned_extras_and_copies_all_that_the_package_has() -> None:
    lines = [line for line in DOCKERFILE.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    assert all(re.match(r"(FROM|RUN|ENV|WORKDIR|COPY|ENTRYPOINT) ", line) for line in lines)
    (install,) = (shlex.split(line)[1:] for line in lines if line.startswith("RUN pip install"))
    assert install[install.index("-c") + 1] == "constraints.txt"
    extras = re.fullmatch(r"\.\[(.*)\]", install[-1])
    assert extras is not None
    known = set(PROJECT["project"]["optional-dependencies"])
    assert set(extras[1].split(",")) == known - {"dev", "bench"}
    copied = {word for line in lines if line.startswith("COPY") for word in shlex.split(line)[1:-1]}
    packages = {name.rstrip("*") for name in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
    modules = {f"{name}.py" for name in PROJECT["tool"]["setuptools"]["py-modules"]}
    needed = packages | modules | {"pyproject.toml", "constraints.txt", "README.md", "LICENSE", "prefect.yaml"}
    assert copied == needed
    assert all((ROOT / name).exists() for name in copied)


def test_job_script_is_bash_whose_training_can_be_composed_and_needs_no_server() -> None:
    text = SBATCH.read_text(encoding="utf-8")
    subprocess.run(["bash", "-n", SBATCH], check=True)
    assert SBATCH.stat().st_mode & 0o100
    for option in ("--signal=B:TERM@", "--requeue", "--nodes=", "--gpus-per-node="):
        assert f"#SBATCH {option}" in text
    command = re.search(r"hacpo train (.*?) &\n", text.replace("\\\n", " "))
    assert command is not None
    words = shlex.split(re.sub(r"\$\{\w+[^}]*\}", "/shared/runs", command[1]))
    hardware = words[words.index("--hardware") + 1]
    overrides = [word for word in words if re.match(r"[a-z_.]+=", word)]
    config = compose("qwen3-4b-base+llama3.2-3b-instruct", "hacpo", hardware=hardware, overrides=overrides)
    assert (config.runtime.runner, config.tracking.enabled) == ("direct", False)
    assert config.placement.ray.address == "auto"
    assert config.placement.total_ranks in (None, 8)
    num_nodes = int(re.search(r"--nodes=(\d+)", text)[1])  # type: ignore[index]
    assert config.placement.num_ranks * len(config.pair.agents) == 8 * num_nodes


def test_pair_of_the_page_for_one_gpu_is_planned_on_a_card_of_24_gib(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    found = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert found is not None
    (tmp_path / "two_qwens.yaml").write_text(found[1], encoding="utf-8")
    config = compose(str(tmp_path / "two_qwens.yaml"), "hacpo", hardware="one_gpu_vllm")
    size = ModelShape(600_000_000, 28, 1024, 2048, 1024, 3072, 151_936)
    shapes = dict.fromkeys(config.pair.agents, size)
    config = with_memory_plan(replace(config, engine=replace(config.engine, gpu_memory_gb=GPU_GIB)), shapes)
    check_fits(config, shapes)
    assert peak_gib(config, shapes, gpu_gib=GPU_GIB, is_least=True) < GPU_GIB
