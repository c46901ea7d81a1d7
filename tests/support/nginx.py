"""The real nginx with deploy/nginx.conf: the machine's own, or Debian's package unpacked beside the virtualenv."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
CONF: Final = ROOT / "deploy" / "nginx.conf"
_UNPACKED: Final = Path(sys.prefix) / "nginx"


def binary() -> str:
    """Its path. It is never installed: Debian's installation starts a service on port 80.

    Raises:
        RuntimeError: there is none, and no Debian to take one from.
    """
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin") or str(_UNPACKED / "usr/sbin/nginx")
    if Path(found).exists():
        return found
    _UNPACKED.mkdir(exist_ok=True)
    get = "(apt-get download -q nginx || (apt-get update -q && apt-get download -q nginx)) && dpkg -x nginx_*.deb ."
    done = subprocess.run(["sh", "-ec", get], cwd=_UNPACKED, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"No nginx on PATH, and none from apt-get: install it.\n{done.stderr}")
    return found


def moved(port: int, servers: Sequence[int], folder: Path) -> Path:
    """The file of deploy/ in that folder, with other addresses and nothing else changed."""
    fleet = "".join(f"server 127.0.0.1:{server}; " for server in servers)
    changes = {
        "listen 8080;": f"listen 127.0.0.1:{port};",
        "set $servers server:8000;": "set $servers fleet;",
        "http {\n": f"http {{\n    upstream fleet {{ {fleet}}}\n",
        " /tmp/": f" {folder}/",
        # The SDK asks nginx not to buffer; here the file alone has to see to it.
        "proxy_cache off;": "proxy_cache off; proxy_ignore_headers X-Accel-Buffering;",
    }
    text = CONF.read_text()
    for known, new in changes.items():
        assert known in text, known
        text = text.replace(known, new)
    path = folder / "nginx.conf"
    path.write_text(text)
    return path
