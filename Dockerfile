# hacpo with vLLM, DeepSpeed and Ray for NVIDIA GPUs. Nobody here has built it: no machine of ours had Docker and a GPU. A
# test compares what it installs with pyproject.toml and constraints.txt.
#
#   docker build -t hacpo .
#   docker run --gpus all --ipc=host -v "$PWD/runs:/work/runs" -v "$HOME/.cache/huggingface:/root/.cache/huggingface" \
#       hacpo doctor --hardware one_gpu_vllm
#
# --ipc=host: vLLM gets weights, and NCCL its buffers, through /dev/shm, of which Docker gives 64 MB; they need the size of
# the largest model's weights. The driver must know the CUDA of torch's wheels: 580 or newer for CUDA 13.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-dev python3-venv git build-essential \
    && rm -rf /var/lib/apt/lists/*
ENV VIRTUAL_ENV=/opt/hacpo PATH=/opt/hacpo/bin:$PATH
RUN python3 -m venv /opt/hacpo
WORKDIR /opt/src
COPY pyproject.toml constraints.txt README.md LICENSE hacpo.py ./
COPY hacpo_core hacpo_core
COPY flows flows
COPY dashboards dashboards
COPY experiments experiments
RUN pip install --no-cache-dir -c constraints.txt ".[vllm,deepspeed,ray,lora,gguf,dashboard]"
WORKDIR /work
ENTRYPOINT ["hacpo"]
