"""Our sandbox as a sandbox of Inspect AI: `Task(..., sandbox="envtorch")`.

Inspect finds it by its entry point; nothing has to be imported. Each sample has a live, kernel-isolated
sandbox of its own, without a container engine.
"""

from typing import Any, Literal, Self, overload

from pydantic import BaseModel, ConfigDict

from envtorch.errors import ConfigurationError, SessionLost
from envtorch.extras import missing_extra
from envtorch.sandbox import AsyncSandbox, Outcome, Policy

try:
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxEnvironment,
        SandboxEnvironmentLimits,
        SandboxUnavailableError,
        sandboxenv,
    )
except ImportError as error:
    raise missing_extra("inspect", "the Inspect AI adapter needs the inspect-ai package") from error

__all__ = ["InspectSandbox", "SandboxLimits"]

MEGABYTE = 1024 * 1024
NOT_RUN = (126, 127)
"""The status of a program that could not be started."""
SIGNALLED = 128
"""What a shell adds to the signal that ended a program."""


class SandboxLimits(BaseModel):
    """The configuration: `sandbox=("envtorch", SandboxLimits(memory_bytes=2**30))`. Fields of `Policy`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory_bytes: int = 512 * MEGABYTE
    disk_bytes: int = 256 * MEGABYTE
    processes: int = 64
    timeout_s: float = 3600.0
    """For a command without a timeout of its own."""
    readable: tuple[str, ...] = ()

    def policy(self) -> Policy:
        return Policy(output_bytes=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE, **self.model_dump())


@sandboxenv(name="envtorch")
class InspectSandbox(SandboxEnvironment):
    """One sample's sandbox."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        super().__init__()
        self._sandbox = sandbox

    @classmethod
    async def open(cls, limits: SandboxLimits | None = None) -> Self:
        """A sandbox with these limits."""
        return cls(await AsyncSandbox.open((limits or SandboxLimits()).policy()))

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Any, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        if config is not None and not isinstance(config, SandboxLimits):
            raise ConfigurationError("the configuration of this sandbox is a `SandboxLimits`")
        return {"default": await cls.open(config)}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        for environment in environments.values():
            await environment.as_type(InspectSandbox).close()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return SandboxLimits.model_validate(config)

    async def close(self) -> None:
        """End everything in the sandbox."""
        await self._sandbox.close()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command. It is not run again when it times out: what it did cannot be taken back."""
        if user is not None:
            raise ConfigurationError("this sandbox has one user: leave `user` out")
        if cwd is not None:
            cmd = ["sh", "-c", 'cd -- "$1" && shift && exec "$@"', "sh", cwd, *cmd]
        stdin = input.encode() if isinstance(input, str) else input or b""
        try:
            done = await self._sandbox.exec(cmd, stdin=stdin, environment=env, timeout_s=timeout)
        except SessionLost as error:
            raise SandboxUnavailableError(str(error)) from error
        if done.outcome is Outcome.TIMED_OUT:
            raise TimeoutError(f"{cmd[0]} took more than {timeout} s")
        stdout, stderr = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        if done.truncated:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, stdout)
        if done.exit_status in NOT_RUN and not stdout and stderr.rstrip().endswith("Permission denied"):
            raise PermissionError(stderr.strip())
        status = done.exit_status if done.exit_status >= 0 else SIGNALLED - done.exit_status
        return ExecResult(status == 0, status, stdout, stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        await self._sandbox.write_file(file, contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...
    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            data = await self._sandbox.read_file(file, limit=limit)
        except OverflowError:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from None
        except OSError as error:
            if type(error) is OSError and (await self._sandbox.exec(["test", "-d", file])).ok:
                raise IsADirectoryError(error.errno, "Is a directory", file) from None
            raise
        return data.decode() if text else data
