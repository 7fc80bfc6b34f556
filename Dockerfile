# One image, four commands: hotdelta, exporter, server, python -m examples.train. docker-compose.yml and
# deploy/kubernetes say who runs which; none of them writes anywhere but to /data and /tmp.
FROM python:3.11-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source

# The dependencies first: their layer stays when only our own code changes. Nothing is installed where it runs, so there
# is no pip; and TensorFlow's headers, a fifth of its size, are for those who compile operations.
COPY requirements requirements
RUN python -m venv --without-pip /opt/hotdelta \
    && pip --python /opt/hotdelta/bin/python install --require-hashes --no-deps --requirement requirements/runtime.txt \
    && rm -r /opt/hotdelta/lib/python3.11/site-packages/tensorflow/include \
    && pip install --require-hashes --no-deps --requirement requirements/build.txt

COPY . .
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && pip --python /opt/hotdelta/bin/python install --no-deps /wheels/*.whl


FROM python:3.11-slim
# Modules are compiled already: the root may be read-only.
ENV PATH=/opt/hotdelta/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 TF_CPP_MIN_LOG_LEVEL=2
RUN useradd --create-home --uid 10001 hotdelta \
    && install --directory --owner hotdelta --group hotdelta /data/run /data/export /data/spool /data/mirror /data/state
COPY --from=build /opt/hotdelta /opt/hotdelta
COPY examples /home/hotdelta/examples
# By its number: Kubernetes refuses a name where it has to know that it is not root.
USER 10001:10001
WORKDIR /home/hotdelta
# HTTP, gRPC (--grpc-port 8500)
EXPOSE 8000 8500
CMD ["server", "--help"]
