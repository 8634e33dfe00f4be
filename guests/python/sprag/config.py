"""The handler's table `config` in `sprag.toml`. Needs the import in `wit/world.wit`."""

from typing import Optional

from wit_world.imports import config


def get(key: str, default: Optional[str] = None) -> Optional[str]:
    """The value of this key: a text as it is, everything else as JSON."""
    value = config.get(key)
    return default if value is None else value


def all() -> dict[str, str]:
    return dict(config.all())
