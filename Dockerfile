# One image, three commands: hotdelta, exporter, server. docker-compose.yml says who runs which.
FROM python:3.11-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source

# The dependencies first: their layer stays when only our own code changes.
COPY requirements requirements
RUN python -m venv /opt/hotdelta \
    && /opt/hotdelta/bin/pip install --require-hashes --no-deps --requirement requirements/runtime.txt \
    && pip install --require-hashes --no-deps --requirement requirements/build.txt

COPY . .
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/hotdelta/bin/pip install --no-deps /wheels/*.whl


FROM python:3.11-slim
ENV PATH=/opt/hotdelta/bin:$PATH PYTHONUNBUFFERED=1 TF_CPP_MIN_LOG_LEVEL=2
RUN useradd --create-home --uid 10001 hotdelta \
    && install --directory --owner hotdelta --group hotdelta /data/run /data/export
COPY --from=build /opt/hotdelta /opt/hotdelta
COPY --chown=hotdelta:hotdelta examples /home/hotdelta/examples
USER hotdelta
WORKDIR /home/hotdelta
EXPOSE 8000
CMD ["server", "--help"]
