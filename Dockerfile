# The image of pods (docs/clusters.md): distbench with torch and DeepSpeed, sh and GNU tar, for a user without rights.
#
#   docker build -t registry.example/distbench:1 .
#   docker build --build-arg BASE=nvidia/cuda:13.0.2-devel-ubuntu24.04 -t registry.example/distbench:1-cuda .
#
# For GPUs the base has to be a devel one: DeepSpeed compiles its CUDA ops when they are first used, with the nvcc
# that a runtime base lacks. Its CUDA has the major version of that which torch was built with. A base needs apt,
# and Python 3.11 or newer if it brings one; the packages go into a virtual environment beside it.
ARG BASE=python:3.12-slim
FROM ${BASE}

# a mirror of PyPI; or, for a small image without CUDA: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL

# g++ builds the ops (ninja comes with the packages), libaio is for offload to NVMe; Debian and Ubuntu split venv and
# headers off their Python
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libaio-dev \
    && { python3 -c 'import ensurepip, os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' \
        || apt-get install --yes --no-install-recommends python3 python3-dev python3-venv; } \
    && rm -rf /var/lib/apt/lists/*

COPY pyproject.toml constraints.txt README.md LICENSE /opt/source/
COPY distbench /opt/source/distbench
RUN python3 -m venv /opt/distbench \
    && /opt/distbench/bin/pip install --no-cache-dir -c /opt/source/constraints.txt '/opt/source[train]' \
    && rm -rf /opt/source
# manifests call it python
ENV PATH=/opt/distbench/bin:$PATH

# a number, by which runAsNonRoot sees that it is not root; the cache of built ops is in its home
RUN useradd --create-home --uid 10001 distbench && mkdir /workspace && chown distbench /workspace
USER 10001
# of the ranks: what a suite imports can be copied here
WORKDIR /workspace
CMD ["distbench", "--help"]
