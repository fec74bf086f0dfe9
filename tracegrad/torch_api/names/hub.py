"""torch.hub: where downloaded files are kept, and how they are got."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import sys
import urllib.request
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from tracegrad.errors import UnsupportedError
from tracegrad.nn import saving
from tracegrad.runtime.disk import replaced

HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")          # the hash in a name like resnet18-f37072fd.pth
_dir: list[str] = []


def tqdm(iterable: Any = None, **options: Any) -> Any:
    """A progress bar, if tqdm is installed; else what it is given, as it is."""
    try:
        bar = import_module("tqdm.auto").tqdm
    except ImportError:
        return iterable
    return bar(iterable, **options)


def _get_torch_home() -> str:
    """torch's folder of downloads, which its own programs use, too: TORCH_HOME, or below the user's cache folder."""
    return os.path.expanduser(os.getenv("TORCH_HOME", os.path.join(os.getenv("XDG_CACHE_HOME", "~/.cache"), "torch")))


def get_dir() -> str:
    """The folder of the hub's files."""
    return _dir[0] if _dir else os.path.join(_get_torch_home(), "hub")


def set_dir(d: str | os.PathLike[str]) -> None:
    """Another one."""
    _dir[:] = [os.path.expanduser(d)]


def load(repo_or_dir: str, model: str, *args: Any, source: str = "github", **kwargs: Any) -> Any:
    """What the function `model` of a folder's hubconf.py returns. Folders only: a repository is cloned first.

    Raises UnsupportedError for source="github", ValueError for another source or a name that hubconf.py does not have.
    """
    for option in ("trust_repo", "force_reload", "verbose", "skip_validation"):             # of downloads
        kwargs.pop(option, None)
    return _entry("load", repo_or_dir, model, source)(*args, **kwargs)


def list(github: str, source: str = "github", **_: Any) -> Any:
    """The names of the functions of a folder's hubconf.py."""
    found = _hubconf("list", github, source)
    return [name for name, value in vars(found).items() if callable(value) and not name.startswith("_")]


def help(github: str, model: str, source: str = "github", **_: Any) -> str | None:
    """What the function `model` of a folder's hubconf.py says of itself."""
    return _entry("help", github, model, source).__doc__  # type: ignore[no-any-return]


def _hubconf(call: str, folder: str, source: str) -> Any:
    if source == "github":
        raise UnsupportedError(f'hub.{call}: no code is downloaded; clone {folder!r} and give the folder, with source="local"')
    if source != "local":
        raise ValueError(f'hub.{call}: source must be "github" or "local", got {source!r}')
    path = os.path.join(os.path.expanduser(folder), "hubconf.py")
    spec = importlib.util.spec_from_file_location("hubconf", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.path.insert(0, os.path.dirname(path))                       # what it imports stands beside it
    try:
        spec.loader.exec_module(found)
    finally:
        sys.path.remove(os.path.dirname(path))
    return found


def _entry(call: str, folder: str, model: str, source: str) -> Any:
    found = getattr(_hubconf(call, folder, source), model, None)
    if not callable(found):
        raise ValueError(f"hub.{call}: {folder}/hubconf.py has no function {model!r}")
    return found


def download_url_to_file(url: str, dst: str, hash_prefix: str | None = None, progress: bool = True) -> None:
    """Get a file. hash_prefix: how its SHA-256 begins; RuntimeError where it does not, and then nothing is left at dst."""
    Path(dst).parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with replaced(dst) as file, urllib.request.urlopen(url) as answer:
        while part := answer.read(1 << 20):
            digest.update(part)
            file.write(part)
        found = digest.hexdigest()
        if hash_prefix and not found.startswith(hash_prefix):
            raise RuntimeError(f"download_url_to_file: the file at {url} has the hash {found}, expected {hash_prefix}...")


def load_state_dict_from_url(url: str, model_dir: str | None = None, map_location: Any = None, progress: bool = True,
                             check_hash: bool = False, file_name: str | None = None, weights_only: bool = True) -> Any:
    """What `tg.load` makes of the file at a URL, which is got once and kept."""
    name = file_name or Path(urlparse(url).path).name
    path = Path(model_dir or os.path.join(get_dir(), "checkpoints")) / name
    if not path.exists():
        expected = name.rpartition("-")[2].partition(".")[0] if check_hash else None
        download_url_to_file(url, str(path), expected, progress)
    return saving.load(str(path), map_location=map_location)
