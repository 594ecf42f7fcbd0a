"""docker-compose.yml as compose reads it, and its commands brought to a machine without containers."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

import activity_platform

PROJECT = Path(activity_platform.__file__).parent.parent
HOME_IN_IMAGE = "/opt/dagster"
_VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)(?:(:?[-?])([^}]*))?\})")


class VariableMissing(Exception):
    """Compose stops with this message."""


def read_composition(environment: Mapping[str, str]) -> dict[str, Any]:
    """The file with the variables of `environment`. Raises `VariableMissing` where compose would."""
    text = (PROJECT / "docker-compose.yml").read_text()
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    composition = yaml.safe_load("\n".join(lines))
    found = _interpolated(composition, environment)
    assert isinstance(found, dict)
    return found


def new_secrets(directory: Path) -> dict[str, str]:
    """What `make env` writes."""
    file = directory / "secrets"
    subprocess.run(["sh", PROJECT / "deploy" / "env", file], check=True, capture_output=True)
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def command_of(service: Mapping[str, Any]) -> list[str]:
    """The service's command as words."""
    command = service["command"]
    return shlex.split(command) if isinstance(command, str) else list(command)


def health_check_of(service: Mapping[str, Any]) -> list[str]:
    """The service's health check as words."""
    kind, *words = service["healthcheck"]["test"]
    return ["sh", "-c", *words] if kind == "CMD-SHELL" else list(words)


def brought_here(words: Sequence[str], home: Path, ports: Mapping[str, int]) -> list[str]:
    """The words with the image's home, interfaces and ports replaced by those of this machine."""
    replacements = {HOME_IN_IMAGE: str(home), "0.0.0.0": "127.0.0.1"} | {
        number: str(port) for number, port in ports.items()
    }
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(old)}(?!\w)" for old in replacements))
    return [pattern.sub(lambda match: replacements[match[0]], word) for word in words]


def _interpolated(value: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _interpolated(inner, environment) for key, inner in value.items()}
    if isinstance(value, list):
        return [_interpolated(inner, environment) for inner in value]
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: _value(match, environment), value)
    return value


def _value(match: re.Match[str], environment: Mapping[str, str]) -> str:
    dollar, name, operator, word = match.groups()
    if dollar:
        return "$"
    text = environment.get(name)
    present = bool(text) if (operator or "").startswith(":") else text is not None
    if present or not operator:
        return text or ""
    if operator.endswith("?"):
        raise VariableMissing(word)
    return str(word)
