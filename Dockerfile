# syntax=docker/dockerfile:1
# The library with PyTorch for a CPU, an NVIDIA or an AMD GPU. docs/install.md has the commands:
#   docker build --build-arg DEVICE=cuda -t torchrl-gpu:cuda .
#   docker run --rm --gpus all -v "$PWD/runs:/work/runs" torchrl-gpu:cuda agent=sac env=fanuc
FROM python:3.11-slim-bookworm

# cpu, cuda or rocm
ARG DEVICE=cpu
# extras, as in EXTRAS=genesis,export
ARG EXTRAS=

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1

# g++ compiles the updates of long runs; the other packages let Genesis draw images without a display.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libegl1 libgl1 libglib2.0-0 \
    && rm -rf /var/lib/apt/lists/*

RUN case "$DEVICE" in \
      cpu) pip install "torch>=2.4.1,<2.14" --index-url https://download.pytorch.org/whl/cpu ;; \
      cuda) pip install "torch>=2.4.1,<2.14" --index-url https://download.pytorch.org/whl/cu130 ;; \
      rocm) pip install "torch[device-all]>=2.4.1,<2.14" --index-url https://repo.amd.com/rocm/whl-multi-arch/ ;; \
      *) echo "DEVICE=$DEVICE: choose cpu, cuda or rocm" >&2; exit 2 ;; \
    esac

# PyTorch is there already, and fits: this step adds the library and its other dependencies.
RUN --mount=type=bind,target=/src,rw pip install "/src${EXTRAS:+[$EXTRAS]}"

# Any user may run it, as in `docker run --user $(id -u):$(id -g)`: caches and runs are writable.
ENV HOME=/home/trainer
RUN mkdir -p /home/trainer /work/runs && chmod -R 777 /home/trainer /work
WORKDIR /work
USER 1000:1000

ENTRYPOINT ["torchrl-gpu"]
CMD ["doctor"]
