"""torch.__future__: how modules take new values. A parameter stays the object that it is either way, so the settings are only kept."""

from __future__ import annotations

from tracegrad.support.cache import listed

_settings: dict[str, bool] = listed("settings of torch.__future__", {})


def set_overwrite_module_params_on_conversion(value: bool) -> None:
    """Keep the setting."""
    _settings["overwrite"] = value


def get_overwrite_module_params_on_conversion() -> bool:
    """The setting; False at first."""
    return _settings.get("overwrite", False)


def set_swap_module_params_on_conversion(value: bool) -> None:
    """Keep the setting."""
    _settings["swap"] = value


def get_swap_module_params_on_conversion() -> bool:
    """The setting; False at first."""
    return _settings.get("swap", False)
