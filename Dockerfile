# One image for the server, the sites and the administrator: `docker compose up` (see docs/deploy.md).
FROM python:3.12-slim
RUN useradd --create-home pmsfl
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
# torch for CPUs alone is a fraction of the size: --build-arg PIP_EXTRA_INDEX_URL=<PyTorch's index of CPU wheels>
ARG PIP_EXTRA_INDEX_URL
RUN pip install --no-cache-dir -c constraints.txt '.[deploy]'
USER pmsfl
WORKDIR /home/pmsfl
ENV OMP_NUM_THREADS=1
ENTRYPOINT ["pmsfl"]
