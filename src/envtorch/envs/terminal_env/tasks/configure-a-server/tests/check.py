"""Asks the server that the agent has left running, and looks at its address and at its configuration."""
import configparser
import urllib.error
import urllib.request

HERE = "http://127.0.0.1:8080"
LISTENING, LOOPBACK, PORT = "0A", "0100007F", "1F90"

settings = configparser.ConfigParser()
settings.read("/app/server.ini")
assert settings["server"]["host"] in ("127.0.0.1", "localhost") and int(settings["server"]["port"]) == 8080
for path, wanted in (("/health", "ok"), ("/version", "2.1")):
    assert settings["routes"][path] == wanted, path
    with urllib.request.urlopen(HERE + path, timeout=10) as answer:
        assert answer.read().decode().strip() == wanted, path
try:
    urllib.request.urlopen(f"{HERE}/another", timeout=10)
except urllib.error.HTTPError as error:
    assert error.code == 404, error.code
else:
    raise AssertionError("a path that is not configured is answered")

addresses = []
for table in ("/proc/net/tcp", "/proc/net/tcp6"):
    with open(table) as file:
        rows = [line.split() for line in file][1:]
    addresses += [row[1] for row in rows if row[3] == LISTENING and row[1].endswith(f":{PORT}")]
assert addresses == [f"{LOOPBACK}:{PORT}"], addresses
open(3, "w").write("1")
