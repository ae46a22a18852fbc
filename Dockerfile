# One image for every service of docker-compose.yml that has conquiet in it: Airflow, Dagster, Spark, metrics.

FROM python:3.11.14-slim-bookworm AS build
WORKDIR /build
RUN python -m venv /opt/venv
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN /opt/venv/bin/pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt '.[all,deploy]'

FROM python:3.11.14-slim-bookworm
# curl for the health checks, Java for Spark; its package links manual pages, whose directory slim images lack.
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update \
    && apt-get install --yes --no-install-recommends curl openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
# A volume that is mounted for the first time belongs to whoever owns the directory of the image.
RUN useradd --uid 10001 --create-home conquiet \
    && mkdir -p /opt/conquiet/airflow/logs /opt/conquiet/dagster/storage /opt/conquiet/spark-work \
    && chown -R conquiet:conquiet /opt/conquiet
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /opt/conquiet
USER conquiet
EXPOSE 3000 4000 7077 8080 8081 8321 8974 9464
CMD ["conquiet", "--help"]
