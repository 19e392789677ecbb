# The image of operator, gateway and built-in runtime: one static file on nothing.
# `make image` builds the binary first; it needs docker, podman or buildah.
FROM scratch
COPY bin/stationmaster-static /stationmaster
USER 65532:65532
ENTRYPOINT ["/stationmaster"]
