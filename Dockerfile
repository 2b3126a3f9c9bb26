# The worker in a container, built from a clone:
#   docker build -t equipoise --build-arg COMMIT=$(git rev-parse HEAD) .
#   docker run -e EQUIPOISE_BOOTSTRAP=broker1:9092 equipoise
# Every other command works too: docker run equipoise status --bootstrap broker1:9092

FROM python:3.12-slim AS build
WORKDIR /src
COPY . .
# `equipoise --version` names it: .git is not copied.
ARG COMMIT=""
ENV EQUIPOISE_COMMIT=$COMMIT
RUN python -m venv /opt/equipoise \
 && /opt/equipoise/bin/pip install --no-cache-dir -c constraints.txt '.[kafka,otel]'

FROM python:3.12-slim
RUN useradd --uid 10001 --create-home equipoise \
 && install -d -o equipoise /state
COPY --from=build /opt/equipoise /opt/equipoise
# The sample application, for compose.yaml.
COPY examples /app/examples
WORKDIR /app
# Inside a container the loopback serves nobody.
ENV PATH=/opt/equipoise/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    EQUIPOISE_HTTP_HOST=0.0.0.0 \
    EQUIPOISE_LOG_FORMAT=json
USER equipoise
EXPOSE 8090
VOLUME /state
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8090/health', timeout=4)"]
ENTRYPOINT ["equipoise"]
CMD ["worker"]
