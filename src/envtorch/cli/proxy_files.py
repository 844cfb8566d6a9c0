"""The configurations of proxies that route by the name of the replica."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from envtorch.server.sessions.slots import REPLICA_MARK

__all__ = ["Upstream", "haproxy_file", "nginx_file"]

# A WebSocket may be silent for an hour: servers ping every connection sooner. No upstream has `max_fails`:
# one bad request would take its replica away from everybody.
NGINX = """\
# Made by `envtorch proxy-config nginx`. Make it anew when replicas come or go, and `nginx -s reload`.
events {
    worker_connections 16384;
}

http {
    # The replica of a session: a WebSocket that reconnects names it, ids and cookies begin with it.
    map $http_cookie $envtorch_cookie {
        default "";
        "~EnvTorch-Session=([^;]+)" $1;
    }
    map $http_mcp_session_id $envtorch_mcp {
        default $http_mcp_session_id;
        "" $envtorch_cookie;
    }
    map $http_envtorch_session $envtorch_session {
        default $http_envtorch_session;
        "" $envtorch_mcp;
    }
    map $http_envtorch_replica $envtorch_key {
        default "$http_envtorch_replica~";
        "" $envtorch_session;
    }
    map $envtorch_key $envtorch_replica {
        default "";
@ROUTES@
    }
    # The connection to the replica failed at once: nothing listens at its address any more. (nginx does not
    # tell a refusal from an address that this machine has no way to, or from having no port left.)
    map "$upstream_status:$upstream_bytes_sent" $envtorch_gone {
        volatile;
        default "";
        "~^502:[0-]" $envtorch_replica;
    }
    map $http_upgrade $envtorch_connection {
        default upgrade;
        "" "";
    }

    upstream envtorch_any {
        least_conn;
@SERVERS@
    }
    # A page's requests have no session: the same visitor gets the same replica.
    upstream envtorch_visitors {
        hash $remote_addr$http_user_agent consistent;
@SERVERS@
    }
@POOLS@

    server {
        listen @LISTEN@;
        client_max_body_size @MAX_BYTES@;  # ENVTORCH_MAX_MESSAGE_BYTES of the servers
        proxy_http_version 1.1;
        proxy_set_header Host $http_host;
        proxy_set_header Upgrade $http_upgrade;
        proxy_set_header Connection $envtorch_connection;
        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        proxy_set_header X-Forwarded-Proto $scheme;
        proxy_set_header EnvTorch-Replica-Gone $envtorch_gone;
        proxy_buffering off;
        proxy_connect_timeout 2s;
        proxy_read_timeout 3600s;
        proxy_send_timeout 3600s;

        # Requests for a session stay with its replica. (In each location: before, bodies are not measured.)
        recursive_error_pages on;
        error_page 418 = @named;
        location @named {
            proxy_next_upstream off;
            error_page 502 504 = @unreached;
            proxy_pass http://envtorch_at_$envtorch_replica;
        }
        # Another replica says what became of the session, of a request that was not sent to its own.
        location @unreached {
            if ($upstream_bytes_sent !~ "(^| )[0-]$") {
                return 502;
            }
            proxy_pass http://envtorch_any;
        }

        # What opens a session: a server that is full or is shutting down answers 503, and the next is asked.
        # A request that was sent and not answered may have run: it is not sent again.
        location ~ ^/(reset|mcp|ws)$ {
            if ($envtorch_replica != "") {
                return 418;
            }
            proxy_next_upstream http_503 non_idempotent;
            error_page 418 = @named;
            error_page 502 504 = @unreached;
            proxy_pass http://envtorch_any;
        }
        location ~ ^/(web|ws/ui|gradio_api) {
            if ($envtorch_replica != "") {
                return 418;
            }
            proxy_pass http://envtorch_visitors;
        }
        location / {
            if ($envtorch_replica != "") {
                return 418;
            }
            proxy_pass http://envtorch_any;
        }
    }
}"""

# A named session's server is looked at by its port alone: while that answers, the session may be there. A
# check that is refused fails at once, and one that is not answered after `inter`: twenty in a row are five
# seconds, or a minute. (The first check after a start or a reload decides alone.)
NAMED_CHECK = "check inter 3s fastinter 100ms fall 20 rise 1"
HAPROXY = """\
# Made by `envtorch proxy-config haproxy`. Make it anew when replicas come or go, and reload.
defaults
    mode http
    timeout connect 2s
    timeout client 3600s
    timeout server 3600s
    timeout tunnel 3600s
    retries 2
    option redispatch 1

frontend envtorch
    bind @LISTEN@
    # The replica of a session: a WebSocket that reconnects names it, ids and cookies begin with it.
    http-request set-var(txn.key) req.cook(EnvTorch-Session)
    http-request set-var(txn.key) req.hdr(Mcp-Session-Id) if { req.hdr(Mcp-Session-Id) -m found }
    http-request set-var(txn.key) req.hdr(EnvTorch-Session) if { req.hdr(EnvTorch-Session) -m found }
    http-request set-var(txn.key) req.hdr(EnvTorch-Replica) if { req.hdr(EnvTorch-Replica) -m found }
    http-request set-var(txn.replica) var(txn.key),field(1,~)
    http-request del-header EnvTorch-Replica-Gone
    use_backend envtorch_pages if { path_beg /web /ws/ui /gradio_api }
@NAMES@
    use_backend envtorch_named if is_named
    use_backend envtorch_ready if { nbsrv(envtorch_ready) gt 0 }
    default_backend envtorch_any

# Requests for a session stay with its replica while anything listens there; then another one answers.
backend envtorch_named
    balance leastconn
@ROUTES@
@NAMED_SERVERS@

# Requests without a session go to a server that would open one.
backend envtorch_ready
    balance leastconn
    option httpchk GET /ready
    http-check expect status 200
@READY_SERVERS@

# Where none would, any server says why, or lets a client wait.
backend envtorch_any
    balance leastconn
@ANY_SERVERS@

# A page's requests have no session: a cookie keeps a visitor on one replica.
backend envtorch_pages
    balance leastconn
    cookie EnvTorch-Page insert indirect nocache httponly
    option httpchk GET /health
@PAGE_SERVERS@"""


@dataclass(frozen=True, slots=True)
class Upstream:
    """One server behind the proxy."""

    name: str
    address: str


def nginx_file(upstreams: Sequence[Upstream], listen: str, max_bytes: int) -> str:
    """A complete configuration for nginx. `max_bytes` is the largest body that the servers read: a larger
    one is refused here, as a server that refuses it does not read it to its end."""
    routes = "\n".join(f'        "~^{re.escape(u.name)}{REPLICA_MARK}" {u.name};' for u in upstreams)
    pools = "\n".join(
        f"    upstream envtorch_at_{u.name} {{\n        server {u.address} max_fails=0;\n    }}"
        for u in upstreams
    )
    servers = "\n".join(f"        server {u.address} max_fails=0;" for u in upstreams)
    return _filled(
        NGINX, ROUTES=routes, POOLS=pools, SERVERS=servers, LISTEN=listen, MAX_BYTES=str(max_bytes)
    )


def haproxy_file(upstreams: Sequence[Upstream], listen: str, max_bytes: int) -> str:
    """A complete configuration for HAProxy, which has no limit for bodies and needs none."""
    return _filled(
        HAPROXY,
        NAMES="\n".join(
            f"    acl is_named var(txn.replica) -m str {upstream.name}" for upstream in upstreams
        ),
        ROUTES="\n".join([*map(_haproxy_gone, upstreams), *map(_haproxy_route, upstreams)]),
        NAMED_SERVERS=_haproxy_servers(upstreams, NAMED_CHECK),
        ANY_SERVERS=_haproxy_servers(upstreams, "check inter 3s fastinter 500ms fall 3 rise 1"),
        READY_SERVERS=_haproxy_servers(upstreams, "check inter 500ms fall 1 rise 1"),
        PAGE_SERVERS="\n".join(
            f"    server {u.name} {u.address} check inter 1s fall 2 rise 1 cookie {u.name}" for u in upstreams
        ),
        LISTEN=listen,
    )


def _filled(template: str, **parts: str) -> str:
    """A template with each `@NAME@` replaced."""
    for name, part in parts.items():
        template = template.replace(f"@{name}@", part)
    return template


def _haproxy_servers(upstreams: Sequence[Upstream], checked: str) -> str:
    return "\n".join(f"    server {u.name} {u.address} {checked}" for u in upstreams)


def _haproxy_gone(upstream: Upstream) -> str:
    """A request for a session of this replica says that it is down, if it is."""
    name = upstream.name
    return (
        f"    http-request set-header EnvTorch-Replica-Gone {name}"
        f" if {{ var(txn.replica) -m str {name} }} !{{ srv_is_up({name}) }}"
    )


def _haproxy_route(upstream: Upstream) -> str:
    """A request for a session of this replica goes there, while it is up."""
    return f"    use-server {upstream.name} if {{ var(txn.replica) -m str {upstream.name} }}"
