"""Asks the server that the agent has left running."""
import urllib.request

for path, wanted in (("/health", "ok"), ("/version", "2.1")):
    with urllib.request.urlopen(f"http://127.0.0.1:8080{path}", timeout=10) as answer:
        assert answer.read().decode().strip() == wanted, path
open(3, "w").write("1")
