"""`AutoEnv`: a client for an environment, by its name, its Space or its address."""

import ipaddress
import re
import shutil
import subprocess
import sys
from typing import Any
from urllib.parse import urlsplit

import httpx

from envtorch.compat.auto.discovery import (
    _is_hub_url,
    get_discovery,
    known,
    reset_discovery,
)
from envtorch.compat.generic_client import GenericEnvClient
from envtorch.compat.utils import hf_space_subdomain, run_async_safely
from envtorch.settings import Settings
from envtorch.shown_urls import shown_url

__all__ = ["AutoEnv"]

INSTALL_S = 600.0


class AutoEnv:
    """Finds the client class that belongs to a name, and makes a client."""

    def __init__(self) -> None:
        raise TypeError("AutoEnv is a factory class: use AutoEnv.from_hub() or AutoEnv.from_env()")

    @classmethod
    def from_env(
        cls,
        name: str,
        base_url: str | None = None,
        docker_image: str | None = None,
        container_provider: Any = None,
        wait_timeout: float = 30.0,
        env_vars: dict[str, str] | None = None,
        trust_remote_code: bool = False,
        skip_install: bool = False,
        **options: Any,
    ) -> Any:
        """A client of the environment: at `base_url`, at its running Space, or in a container.

        With `skip_install` nothing of the environment's own code is used, and the client is generic.
        """
        if skip_install:
            address = cls._reachable(name, base_url)
            return cls._generic(name, address, docker_image, container_provider, env_vars, options)
        installed = name
        if _is_hub_url(name):
            installed = cls._ensure_package_from_hub(name, trust_remote_code=trust_remote_code)
        info = known(get_discovery(), installed)
        try:
            client = info.get_client_class()
        except ImportError as error:
            raise ImportError(
                f"Failed to import {info.client_class_name}: {error}. "
                f"Try pip install --force-reinstall {info.package_name}"
            ) from error
        address = cls._reachable(name, base_url)
        if address is not None:
            return client(base_url=address, provider=container_provider, **options)
        variables = {"env_vars": env_vars} if env_vars else {}
        image = docker_image or info.default_image
        return run_async_safely(
            client.from_docker_image(image=image, provider=container_provider, **variables, **options)
        )

    @classmethod
    def from_hub(cls, name: str, **options: Any) -> Any:
        """`from_env`."""
        return cls.from_env(name, **options)

    @classmethod
    def _reachable(cls, name: str, base_url: str | None) -> str | None:
        """The address to use, known to answer; None when a server has to be started."""
        if base_url is not None:
            if not cls._check_server_availability(base_url):
                raise ConnectionError(f"Server not available at {shown_url(base_url)}")
            return base_url
        if _is_hub_url(name):
            space = cls._resolve_space_url(name)
            if cls._check_space_availability(space):
                return space
        return None

    @classmethod
    def _generic(
        cls,
        name: str,
        base_url: str | None,
        docker_image: str | None,
        provider: Any,
        env_vars: dict[str, str] | None,
        options: dict[str, Any],
    ) -> Any:
        if base_url is not None:
            return GenericEnvClient(base_url=base_url, provider=provider, **options)
        variables = {"env_vars": env_vars} if env_vars else {}
        if docker_image is not None:
            return run_async_safely(
                GenericEnvClient.from_docker_image(docker_image, provider=provider, **variables)
            )
        if _is_hub_url(name):
            repo = _repo_id(name)
            start = GenericEnvClient.from_env(repo, use_docker=True, provider=provider, **variables)
            return run_async_safely(start)
        raise ValueError(
            f"with skip_install=True nothing is known of {name!r}: pass base_url or docker_image"
        )

    # What is known of a name.

    @classmethod
    def get_env_class(cls, name: str) -> type:
        """The client class of an environment."""
        return known(get_discovery(), name).get_client_class()

    @classmethod
    def get_env_info(cls, name: str) -> dict[str, Any]:
        """What is known of an environment."""
        info = known(get_discovery(), name)
        return {
            "env_key": info.env_key,
            "name": info.name,
            "package": info.package_name,
            "version": info.version,
            "description": info.description,
            "env_class": info.client_class_name,
            "action_class": info.action_class_name,
            "observation_class": info.observation_class_name,
            "module": info.client_module_path,
            "default_image": info.default_image,
            "spec_version": info.spec_version,
        }

    @classmethod
    def list_environments(cls) -> None:
        """Write the installed environments to standard output."""
        get_discovery().list_environments()

    # Servers and Spaces.

    @classmethod
    def _check_server_availability(cls, base_url: str, timeout_s: float = 2.0) -> bool:
        try:
            return httpx.get(f"{base_url.rstrip('/')}/health", timeout=timeout_s).is_success
        except httpx.HTTPError:
            return False

    @classmethod
    def _check_space_availability(cls, space_url: str, timeout_s: float = 5.0) -> bool:
        return cls._check_server_availability(space_url, timeout_s)

    @classmethod
    def _resolve_space_url(cls, name: str) -> str:
        return f"https://{hf_space_subdomain(_repo_id(name))}.hf.space"

    @classmethod
    def _get_hub_git_url(cls, name: str) -> str:
        return f"git+https://huggingface.co/spaces/{_repo_id(name)}"

    @classmethod
    def _is_local_url(cls, url: str) -> bool:
        host = urlsplit(url).hostname or ""
        if host == "localhost":
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return address.is_loopback or address.is_unspecified

    @classmethod
    def _ensure_package_from_hub(cls, name: str, trust_remote_code: bool = False) -> str:
        """The name of the environment that a Space's package brings, installed if need be."""
        package = cls._install_from_hub(name, trust_remote_code=trust_remote_code)
        reset_discovery()
        return re.sub(r"^openenv[-_]", "", package)

    @classmethod
    def _install_from_hub(cls, name: str, trust_remote_code: bool = False) -> str:
        """Install a Space's package, which is somebody else's code: only with consent."""
        if not trust_remote_code and not _confirm_remote_install(name):
            raise ValueError(f"Installation cancelled: {name} would run code of its author here")
        command = [*_get_pip_command(), "install", cls._get_hub_git_url(name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=True)  # noqa: S603
        told = re.search(
            r"(?:Successfully installed|\+)\s+.*?(openenv[-_][\w-]+?)(?:==|-)\d", done.stdout + done.stderr
        )
        return told[1] if told else _repo_id(name).rpartition("/")[2]


def _repo_id(name: str) -> str:
    """`user/space`, out of an address or as it is."""
    path = re.sub(r"^(https?://)?(www\.)?huggingface\.co/", "", name.strip())
    return path.removeprefix("spaces/").strip("/")


def _confirm_remote_install(name: str) -> bool:
    if Settings.from_environ().trust_remote_code:
        return True
    if not sys.stdin.isatty():
        return False
    answer = input(f"{name} is somebody else's code, and would be installed here. Go on? [y/N] ")
    return answer.strip().lower() in ("y", "yes")


def _has_uv() -> bool:
    return shutil.which("uv") is not None


def _get_pip_command() -> list[str]:
    return ["uv", "pip"] if _has_uv() else [sys.executable, "-m", "pip"]
