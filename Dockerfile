# One image for migrations, code server, webserver, daemon and ingest. BASE_IMAGE is a Debian with Python 3.11 to
# 3.13 as `python`. The wheel is built here, and installed with its dependencies at the versions of constraints.txt.
ARG BASE_IMAGE=python:3.13-slim

FROM ${BASE_IMAGE} AS build
# Each is read by pip when it is given as a build argument. None of them reaches the final image.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
# "local" adds the simulators of S3 and LINE.
ARG EXTRAS=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/venv/bin:$PATH
RUN python -m venv /opt/venv
WORKDIR /src
# Dependencies first: a change of the code leaves this layer as it is.
COPY pyproject.toml constraints.txt ./
RUN python -c 'import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
print(*project["dependencies"], *(line for extra in sys.argv[1:] for line in project["optional-dependencies"][extra]), sep="\n")' \
      $EXTRAS >requirements.txt \
    && pip install --constraint constraints.txt --requirement requirements.txt
COPY README.md LICENSE ./
COPY activity_platform activity_platform
RUN pip wheel --no-deps --wheel-dir dist . \
    && pip install --no-deps dist/*.whl \
    && pip uninstall --yes pip

FROM ${BASE_IMAGE}
RUN useradd --system --uid 10001 --home-dir /nonexistent --shell /usr/sbin/nologin platform
COPY --from=build /opt/venv /opt/venv
COPY dagster.yaml workspace.yaml /opt/dagster/
# Compute logs: a volume mounted here takes over this owner.
RUN install -d -o platform -g platform /opt/dagster/storage
ENV PATH=/opt/venv/bin:$PATH \
    DAGSTER_HOME=/opt/dagster \
    DAGSTER_DISABLE_TELEMETRY=yes \
    PYTHONUNBUFFERED=1
WORKDIR /opt/dagster
# A number, by which an orchestrator sees that it is not root.
USER 10001
CMD ["activity-platform", "--help"]
