"""Where the API server is and how to prove who we are: in-cluster service account or kubeconfig."""

import os
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import yaml
from kubernetes.aio import client, config
from kubernetes.aio.config import incluster_config

_RELOAD_EVERY_S = 5.0

Load = Callable[[client.Configuration], Awaitable[None]]


class NoCredentials(Exception):
    """There is no usable configuration; the message says what was looked for."""


class Credentials:
    """One server's address, TLS context and authorization header.

    A service account's token is read again every minute, since the kubelet rotates it. Whatever else rotates is read
    again when the server answers 401.
    """

    def __init__(self, load: Load, clock: Callable[[], float] = time.monotonic) -> None:
        """``load`` fills a configuration; call ``load`` of this object before use."""
        self._load, self._clock = load, clock
        self._loaded_at = -_RELOAD_EVERY_S
        self._config = client.Configuration(host="http://localhost")
        self.ssl: ssl.SSLContext | bool = True
        """What aiohttp is given as ``ssl``."""

    @property
    def server(self) -> str:
        """Base URL, without a final slash."""
        return str(self._config.host).rstrip("/")

    @property
    def server_name(self) -> str | None:
        """What the server's certificate must be for, if that is not the host."""
        return self._config.tls_server_name or None

    @property
    def proxy(self) -> str | None:
        """URL of a forward proxy."""
        return self._config.proxy or None

    async def load(self) -> None:
        """Read everything anew.

        Raises:
            NoCredentials: what is there cannot be used.
        """
        fresh = client.Configuration(host="http://localhost")
        fresh.api_key = {}
        try:
            await self._load(fresh)
            self.ssl = _tls(fresh)
        except (config.ConfigException, yaml.YAMLError, OSError, ValueError, AttributeError, TypeError) as error:
            raise NoCredentials(f"cannot read the cluster's configuration: {error}") from error
        self._config, self._loaded_at = fresh, self._clock()

    async def reload(self) -> bool:
        """Read the credentials anew after a 401; False if that was done a moment ago and nothing new can be tried."""
        if self._clock() - self._loaded_at < _RELOAD_EVERY_S:
            return False
        await self.load()
        return True

    async def headers(self) -> dict[str, str]:
        """``Authorization``, or nothing with client certificates.

        Raises:
            NoCredentials: a rotated token cannot be read.
        """
        try:
            token = await self._config.get_api_key_with_prefix("BearerToken")
        except (config.ConfigException, OSError) as error:
            raise NoCredentials(f"cannot read the service account's token: {error}") from error
        return {} if not token else {"Authorization": str(token).strip()}


def _tls(configuration: client.Configuration) -> ssl.SSLContext | bool:
    if not str(configuration.host).startswith("https"):
        return True
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def from_kubeconfig(path: Path, context: str | None = None, clock: Callable[[], float] = time.monotonic) -> Credentials:
    """Credentials of one context; the current one if none is named. ``path``: a file, or several as ``KUBECONFIG``."""
    files = [Path(part).expanduser() for part in str(path).split(os.pathsep) if part]

    async def load(into: client.Configuration) -> None:
        if not any(file.is_file() for file in files):
            raise config.ConfigException(f"there is no kubeconfig {path}")
        await config.load_kube_config(  # type: ignore[no-untyped-call]
            str(path), context=context, client_configuration=into, persist_config=False
        )

    return Credentials(load, clock)


def in_cluster(
    environ: Mapping[str, str] = os.environ,
    token: Path = Path(incluster_config.SERVICE_TOKEN_FILENAME),
    ca: Path = Path(incluster_config.SERVICE_CERT_FILENAME),
) -> Credentials:
    """The credentials of the pod's service account."""

    async def load(into: client.Configuration) -> None:
        loader = incluster_config.InClusterConfigLoader(  # type: ignore[no-untyped-call]
            str(token), str(ca), environ=environ
        )
        loader.load_and_set(into)  # type: ignore[no-untyped-call]

    return Credentials(load)


def find(environ: Mapping[str, str] = os.environ) -> Credentials:
    """``KUBECONFIG`` if it is set, else the pod's service account, else ``~/.kube/config``."""
    if named := environ.get("KUBECONFIG"):
        return from_kubeconfig(Path(named))
    if environ.get(incluster_config.SERVICE_HOST_ENV_NAME):
        return in_cluster(environ)
    return from_kubeconfig(Path.home() / ".kube" / "config")
