#!/bin/bash
set -e
cd /app
cat > server.ini <<'E'
[server]
host = 127.0.0.1
port = 8080

[routes]
/health = ok
/version = 2.1
E
setsid python3 server.py >/dev/null 2>&1 </dev/null &
for n in $(seq 50); do (echo > /dev/tcp/127.0.0.1/8080) 2>/dev/null && break; sleep 0.1; done
