"""A real Envoy before engines, set up as Envoy-based gateways set it up for an InferencePool."""

import json
import pathlib
import subprocess

import requests

from standin import eventually, free_ports

# The path that the requests' endpoint takes to the cluster: header and metadata are both set.
ORIGINAL_DST, OVERRIDE_HOST = "original-dst", "override-host"


def _http2(**more):
    return {"typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}}}}, **more}


def _static(name, addresses):
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": [
        {"endpoint": {"address": {"socket_address": {"address": a.rsplit(":", 1)[0], "port_value": int(a.rsplit(":", 1)[1])}}}}
        for a in addresses]}]}


def config(port, admin, picker, engines, *, by, mode="FULL_DUPLEX_STREAMED", tls=True, subset=None, fail_open=False):
    """Envoy's configuration: engines behind an endpoint picker that listens at picker."""
    trailers = "SEND" if mode == "FULL_DUPLEX_STREAMED" else "SKIP"
    ext_proc = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "10s"},
        "failure_mode_allow": fail_open, "message_timeout": "10s",
        "response_attributes": ["response.code_details"],
        "metadata_options": {"forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
                             "receiving_namespaces": {"untyped": ["envoy.lb"]}},
        "processing_mode": {"request_header_mode": "SEND", "response_header_mode": "SEND", "request_body_mode": mode, "response_body_mode": mode,
                            "request_trailer_mode": trailers, "response_trailer_mode": trailers},
    }
    filters = [{"name": "ext_proc", "typed_config": ext_proc},
               {"name": "router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]
    if subset is not None:
        filters.insert(0, {"name": "subset", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
            "metadata": [{"metadata_namespace": "envoy.lb.subset_hint", "value": {"x-gateway-destination-endpoint-subset": subset}}]}})
    if by == ORIGINAL_DST:
        pool = {"name": "pool", "type": "ORIGINAL_DST", "connect_timeout": "2s", "lb_policy": "CLUSTER_PROVIDED",
                "original_dst_lb_config": {"use_http_header": True, "http_header_name": "x-gateway-destination-endpoint"}}
    else:
        pool = {"name": "pool", "type": "STATIC", "connect_timeout": "2s", "load_assignment": _static("pool", engines),
                "load_balancing_policy": {"policies": [{"typed_extension_config": {"name": "override_host", "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost",
                    "override_host_sources": [{"metadata": {"key": "envoy.lb", "path": [{"key": "x-gateway-destination-endpoint"}]}}],
                    "selected_host_key": {"key": "envoy.lb", "path": [{"key": "x-gateway-destination-endpoint-served"}]},
                    "fallback_policy": {"policies": [{"typed_extension_config": {"name": "round_robin", "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin"}}}]}}}}]}}
    picker_cluster = _http2(name="picker", type="STATIC", connect_timeout="2s", load_assignment=_static("picker", [picker]))
    if tls:  # as gateways do: the certificate isn't checked
        picker_cluster["transport_socket"] = {"name": "tls", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", "common_tls_context": {"alpn_protocols": ["h2"]}}}
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "front", "http_filters": filters, "stream_idle_timeout": "60s",
        "route_config": {"virtual_hosts": [{
            "name": "all", "domains": ["*"],
            "response_headers_to_add": [{"header": {"key": "x-served-by", "value": "%UPSTREAM_REMOTE_ADDRESS%"}}],
            "routes": [{"match": {"prefix": "/"}, "route": {
                "cluster": "pool", "timeout": "60s",
                "retry_policy": {"retry_on": "connect-failure", "num_retries": 2}}}]}]},
    }
    return {
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": admin}}},
        "static_resources": {
            "listeners": [{"name": "front", "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
                           "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}]}],
            "clusters": [pool, picker_cluster],
        },
    }


class Envoy:
    """A running Envoy; url is where clients ask."""

    def __init__(self, binary, directory, picker, engines, **how):
        self.dir = pathlib.Path(directory)
        self.dir.mkdir(parents=True, exist_ok=True)
        self.binary, self.picker, self.engines, self.how = binary, picker, engines, how

    def __enter__(self):
        port, self.admin = free_ports(2)
        self.url = f"http://127.0.0.1:{port}"
        path = self.dir / "envoy.json"
        path.write_text(json.dumps(config(port, self.admin, self.picker, self.engines, **self.how)))
        self.log = open(self.dir / "envoy.log", "wb")
        self.process = subprocess.Popen(
            [self.binary, "-c", path, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"],
            stdout=self.log, stderr=subprocess.STDOUT)

        def ready():
            assert self.process.poll() is None, (self.dir / "envoy.log").read_text()[-2000:]
            return requests.get(f"http://127.0.0.1:{self.admin}/ready", timeout=5).text.strip() == "LIVE"
        eventually(ready, 60)
        return self

    def __exit__(self, *exc):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(20)
        self.log.close()
