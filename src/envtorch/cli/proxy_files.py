"""The configurations of proxies that route by the name of the replica."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from envtorch.server.sessions.slots import REPLICA_MARK

__all__ = ["Upstream", "haproxy_file", "nginx_file"]

ROUTED_BY = ("EnvTorch-Replica", "EnvTorch-Session", "Mcp-Session-Id")
"""The headers that name a session's replica; `EnvTorch-Session` is a cookie, too."""

# A WebSocket may be silent for an hour: servers ping every connection sooner.
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
    map $envtorch_key $envtorch_pool {
        default $envtorch_anywhere;
@ROUTES@
    }
    # A page's requests have no session: the same visitor gets the same replica.
    map $uri $envtorch_anywhere {
        default envtorch_any;
        "~^/(web|ws/ui|gradio_api)" envtorch_visitors;
    }
    map $http_upgrade $envtorch_connection {
        default upgrade;
        "" "";
    }

    upstream envtorch_any {
        least_conn;
@SERVERS@
    }
    upstream envtorch_visitors {
        hash $remote_addr$http_user_agent consistent;
@SERVERS@
    }
@POOLS@

    server {
        listen @LISTEN@;
        client_max_body_size 0;
        location / {
            proxy_pass http://$envtorch_pool;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $envtorch_connection;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_buffering off;
            proxy_connect_timeout 2s;
            proxy_read_timeout 3600s;
            proxy_send_timeout 3600s;
        }
    }
}"""

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
    use_backend envtorch_pages if { path_beg /web /ws/ui /gradio_api }
    default_backend envtorch_sessions

backend envtorch_sessions
    balance leastconn
    option httpchk GET /health
@ROUTES@
@SERVERS@

# A page's requests have no session: a cookie keeps a visitor on one replica.
backend envtorch_pages
    balance leastconn
    cookie EnvTorch-Page insert indirect nocache httponly
    option httpchk GET /health
@SERVERS@"""


@dataclass(frozen=True, slots=True)
class Upstream:
    """One server behind the proxy."""

    name: str
    address: str


def nginx_file(upstreams: Sequence[Upstream], listen: str) -> str:
    """A complete configuration for nginx. An upstream has its replica, and the others as a backup: they
    answer for one that is gone that its sessions are lost."""
    routes = "\n".join(f'        "~^{re.escape(u.name)}{REPLICA_MARK}" {_pool(u)};' for u in upstreams)
    pools = "\n".join(_nginx_pool(upstream, upstreams) for upstream in upstreams)
    servers = "\n".join(f"        server {u.address} max_fails=1 fail_timeout=2s;" for u in upstreams)
    return _filled(NGINX, ROUTES=routes, POOLS=pools, SERVERS=servers, LISTEN=listen)


def _pool(upstream: Upstream) -> str:
    return f"envtorch_at_{upstream.name}"


def _nginx_pool(upstream: Upstream, upstreams: Sequence[Upstream]) -> str:
    others = [other for other in upstreams if other is not upstream]
    lines = [f"        server {upstream.address} max_fails=1 fail_timeout=2s;"]
    lines += [f"        server {other.address} backup;" for other in others]
    return f"    upstream {_pool(upstream)} {{\n" + "\n".join(lines) + "\n    }"


def haproxy_file(upstreams: Sequence[Upstream], listen: str) -> str:
    """A complete configuration for HAProxy. A rule whose server is down is passed over: another one answers
    that the session is lost."""
    rules = "\n".join(_haproxy_rules(upstream) for upstream in upstreams)
    servers = "\n".join(
        f"    server {u.name} {u.address} check inter 1s fall 2 rise 1 cookie {u.name}" for u in upstreams
    )
    return _filled(HAPROXY, ROUTES=rules, SERVERS=servers, LISTEN=listen)


def _filled(template: str, **parts: str) -> str:
    """A template with each `@NAME@` replaced."""
    for name, part in parts.items():
        template = template.replace(f"@{name}@", part)
    return template


def _haproxy_rules(upstream: Upstream) -> str:
    begins = f"{upstream.name}{REPLICA_MARK}"
    named, session, mcp = ROUTED_BY
    conditions = [
        f"req.hdr({named}) -m str {upstream.name}",
        f"req.hdr({session}) -m beg {begins}",
        f"req.cook({session}) -m beg {begins}",
        f"req.hdr({mcp}) -m beg {begins}",
    ]
    return "\n".join(f"    use-server {upstream.name} if {{ {condition} }}" for condition in conditions)
