"""The terminal of somebody who follows a page: a shell that keeps its directory, variables and servers."""

import asyncio
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests.docs.scene import FOR_A_CLUSTER

PATIENCE_S = 120.0
LISTENING = re.compile(r" on (http://127\.0\.0\.1:\d+)")
DONE = "the command ended with"


class PageShell:
    """Runs the commands of a page. Servers listen on free ports, whatever port the page names.

    `addresses` maps what the page calls an address (`127.0.0.1:8000`) to where that is found here.
    """

    def __init__(self, addresses: dict[str, str]) -> None:
        self._addresses = dict(addresses)
        self._servers: dict[str, int] = {}
        dropped = ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTEST_ADDOPTS")
        environ = {name: value for name, value in os.environ.items() if name not in dropped}
        environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
        self._environ = environ
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environ,
        )

    def here(self, text: str) -> str:
        """What the page says, with the addresses of this machine."""
        for said, found in self._addresses.items():
            text = text.replace(said, found)
        return text

    def run(self, command: str) -> str:
        """Do what the line says, as far as a person would go on from there, and return what was printed."""
        command = FOR_A_CLUSTER.sub("", command)
        words = shlex.split(command, comments=True)
        program = [word for word in words if not re.match(r"[A-Z_]+=", word)][:2]
        if program == ["envtorch", "serve"]:
            return self._serve(words)
        if program == ["envtorch", "mcp"]:
            return asyncio.run(self._speak(words))
        if program == ["envtorch", "play"]:
            return self._play(words)
        code, said = self._type(f"{{ {self.here(command)}\n}} </dev/null")
        print(f"$ {command}\n{said}")
        assert code == 0, f"{command} ended with {code}"
        return said

    def close(self) -> None:
        for address in list(self._servers):
            self._stop(address)
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        assert self._bash.stdout is not None
        self._bash.stdout.close()
        self._bash.wait(timeout=PATIENCE_S)

    def _type(self, line: str) -> tuple[int, str]:
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f"{line}\nprintf '\\n{DONE} %s\\n' $?\n")
        self._bash.stdin.flush()
        said: list[str] = []
        for printed in self._bash.stdout:
            if printed.startswith(DONE):
                return int(printed.removeprefix(DONE)), "".join(said)[:-1]
            said.append(printed)
        raise AssertionError(f"the shell ended at {line}")

    def _serve(self, words: list[str]) -> str:
        """Start a server, wait until it says where it listens, and ask whether it is well."""
        words = [word for word in words if word != "&"]
        address = "127.0.0.1:8000"
        if "--port" in words:
            at = words.index("--port")
            address = f"127.0.0.1:{words[at + 1]}"
            del words[at : at + 2]
        words = ["127.0.0.1" if word == "0.0.0.0" else word for word in words]
        self._stop(address)
        log = Path(f"server-{address.rpartition(':')[2]}-{time.monotonic_ns()}.log").resolve()
        command = f"{shlex.join(words)} --port 0 </dev/null >/dev/null 2>{log} &\necho $!"
        _, pid = self._type(command)
        deadline = time.monotonic() + PATIENCE_S
        while (found := LISTENING.search(log.read_text() if log.exists() else "")) is None:
            alive, _ = self._type(f"kill -0 {pid.strip()} 2>/dev/null")
            assert alive == 0, f"{shlex.join(words)} ended: {log.read_text()}"
            assert time.monotonic() < deadline, f"{shlex.join(words)} never said where it listens"
            time.sleep(0.05)
        self._servers[address] = int(pid)
        self._addresses[address] = found[1].removeprefix("http://")
        assert httpx.get(f"{found[1]}/health", timeout=PATIENCE_S).json()["status"] == "healthy"
        if "--web" in words:
            assert httpx.get(f"{found[1]}/web/", timeout=PATIENCE_S).status_code == 200
        return log.read_text().replace(self._addresses[address], address)

    def _stop(self, address: str) -> None:
        """End the server that the page has at this address; it must end well."""
        pid = self._servers.pop(address, None)
        if pid is not None:
            code, said = self._type(f"kill {pid}; wait {pid}")
            assert code == 0, f"the server at {address} ended with {code}: {said}"

    async def _speak(self, words: list[str]) -> str:
        """Start the program as an agent would, and list its tools."""
        from fastmcp import Client
        from fastmcp.client.transports import StdioTransport

        transport = StdioTransport(words[0], words[1:], env=self._environ)
        async with Client(transport, timeout=PATIENCE_S) as agent:
            tools = [tool.name for tool in await agent.list_tools()]
        assert tools, "no tools over MCP"
        return " ".join(tools)

    def _play(self, words: list[str]) -> str:
        """Start the program in a terminal, wait for its screen, and leave it with its key."""
        keyboard, terminal = pty.openpty()
        environ = {**self._environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
        player = subprocess.Popen(words, stdin=terminal, stdout=terminal, stderr=terminal, env=environ)
        os.close(terminal)
        shown = b""
        deadline = time.monotonic() + PATIENCE_S
        try:
            while player.poll() is None:
                assert time.monotonic() < deadline, f"it never ended: {shown!r}"
                if select.select([keyboard], [], [], 0.1)[0]:
                    shown += _read(keyboard)
                    if b"quit" in shown.lower():
                        os.write(keyboard, b"q\x11")
        finally:
            player.kill()
            player.wait()
            os.close(keyboard)
        assert player.returncode == 0, f"{words} ended with {player.returncode}: {shown!r}"
        return shown.decode(errors="replace")


def _read(keyboard: int) -> bytes:
    try:
        return os.read(keyboard, 65536)
    except OSError:  # the program has closed the terminal
        return b""
