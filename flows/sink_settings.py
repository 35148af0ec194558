"""Where decisions are handed to: file drops and webhooks, under ``[[sinks]]`` in ``slackwater.toml``."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

#: Names of HTTP headers.
_HEADER = re.compile(r"[A-Za-z0-9-]+")


class Sink(BaseModel):
    """One place that decisions go to: a folder, or a web address that takes a POST.

    Secrets stand in environment variables; here are only their names.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="name, by which deliveries are remembered"
    )
    kind: Literal["file", "webhook"]
    folder: Path | None = Field(None, description="file: where <job>/<slot>.json and <job>/latest.json go")
    url: str | None = Field(None, repr=False, description="webhook: where the document is posted to")
    timeout_seconds: float = Field(10.0, gt=0, le=300, description="webhook: most time of one attempt")
    token_env: str | None = Field(None, description="webhook: environment variable that holds the token")
    token_header: str = Field("Authorization", description="webhook: header the token goes into")
    token_prefix: str = Field("Bearer ", description="webhook: what stands before the token")
    secret_env: str | None = Field(
        None, description="webhook: environment variable that holds the secret of the signature"
    )
    attempts: int = Field(3, ge=1, le=10, description="attempts in one turn")
    backoff_seconds: float = Field(
        1.0, ge=0, le=60, description="wait before the second attempt; each next waits twice as long"
    )
    budget_seconds: float = Field(
        60.0,
        gt=0,
        description="most time that one turn spends on this sink; the rest waits for the next turn",
    )
    give_up_after: int = Field(
        12, ge=1, description="turns in which a decision is tried before it is given up"
    )

    @field_validator("url")
    @classmethod
    def _plain_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        try:
            parts = urlsplit(url)
            named = parts.hostname
            _ = parts.port
        except ValueError:
            raise ValueError("not a web address") from None
        if parts.scheme not in ("http", "https") or not named or re.search(r"[\s\x00-\x1f]", url):
            raise ValueError("not a web address, expected https://HOST/PATH")
        if parts.username is not None or parts.password is not None:
            raise ValueError("a web address with a user or password in it, expected token_env instead")
        return url

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Sink:
        wanted = "folder" if self.kind == "file" else "url"
        if getattr(self, wanted) is None:
            raise ValueError(f"a sink of kind {self.kind} needs {wanted}")
        if self.kind == "file" and (self.url or self.token_env or self.secret_env):
            raise ValueError("a sink of kind file takes no url, token_env or secret_env")
        if self.kind == "webhook" and self.folder is not None:
            raise ValueError("a sink of kind webhook takes no folder")
        if not _HEADER.fullmatch(self.token_header):
            raise ValueError("token_header is no name of an HTTP header")
        if self.token_env and urlsplit(self.url or "").scheme == "http" and not self._on_this_machine():
            raise ValueError("a token over http to another machine can be read on the way, expected https")
        return self

    def _on_this_machine(self) -> bool:
        host = urlsplit(self.url or "").hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    @property
    def place(self) -> str:
        """Where it goes, as may be shown to anybody: a folder, or scheme, host and port of an address without its path."""
        if self.kind == "file":
            return str(self.folder)
        parts = urlsplit(self.url or "")
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")
