# Stand-ins for the images that docker-compose.yml pulls, from Debian's packages. The context holds the wheels of
# constraints.txt in `wheels` and `postgres-entrypoint`.
ARG DEBIAN
FROM ${DEBIAN} AS postgres
COPY postgres-entrypoint /usr/local/bin/
RUN ln -s /usr/lib/postgresql/*/bin/* /usr/local/bin/
STOPSIGNAL SIGINT
ENTRYPOINT ["postgres-entrypoint"]

FROM ${DEBIAN} AS valkey
RUN install -d -o valkey -g valkey /data

FROM ${DEBIAN} AS python
COPY wheels /opt/wheels
RUN printf '[global]\nno-index = true\nfind-links = /opt/wheels\n' >/etc/pip.conf
