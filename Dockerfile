# A server for a model that `pbprompt fit` wrote:
#
#   docker build . -t pbprompt
#   docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/model:/model:ro" pbprompt
#
# torch comes from the index that pip uses here; --build-arg TORCH_INDEX=URL names that of another build.
FROM python:3.11-slim
ARG TORCH_INDEX=
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /opt/pbprompt
COPY constraints.txt pyproject.toml README.md LICENSE THIRD_PARTY_NOTICES.md ./
COPY locks locks
COPY sbom sbom
# the versions that the tests ran with; hashes are left out, since they are of one kind of machine
RUN sed 's/ --hash=.*//' locks/linux-x86_64-py311.txt > tested.txt
RUN python -m pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -c constraints.txt -c tested.txt torch
COPY src src
RUN python -m pip install -c constraints.txt -c tested.txt '.[serve]'
RUN useradd --system --uid 10001 --create-home pbprompt
USER pbprompt
WORKDIR /home/pbprompt
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
  CMD ["python", "-c", "import urllib.request as ask; ask.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["pbprompt", "serve", "/model", "--host", "0.0.0.0", "--port", "8000"]
