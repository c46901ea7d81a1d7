"""`deploy_release`: plans a release, asks a person, then deploys exactly what was approved."""

import hashlib
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from string import Template
from typing import Annotated, Any, Final, Literal

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field, TypeAdapter

import mcptasks
from workers.tools.approval import ask_approval

_TEMPLATES: Final = {
    "VERSION": "$version\n",
    "config/app.toml": '[app]\nname = "samples"\nversion = "$version"\n',
    "web/index.html": "<!doctype html>\n<title>Samples $version</title>\n<h1>Release $version is live</h1>\n",
    "web/robots.txt": "User-agent: *\nDisallow: /\n",
}


class Change(BaseModel):
    """One file of a release, compared with what is live."""

    path: str
    action: Literal["add", "change", "keep"]
    sha256: str


class Release(BaseModel):
    """How a release ended."""

    version: str
    deployed: bool
    message: str
    note: str = Field(description="What the person wrote")
    changes: list[Change]


_PLAN: Final = TypeAdapter(list[Change])


def _home() -> Path:
    return Path(tempfile.gettempdir()) / "mcptasks-samples"


def _staging(version: str) -> Path:
    return _home() / "staging" / version


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _stage(version: str, folder: Path) -> dict[str, str]:
    """The files of the release lie below `folder`; returns the SHA-256 of each by its path."""
    checksums: dict[str, str] = {}
    for name, template in _TEMPLATES.items():
        content = Template(template).substitute(version=version).encode()
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        checksums[name] = _sha256(content)
    return checksums


def _plan(version: str) -> list[dict[str, Any]]:
    """The release is staged; returns the changes it would make to what is live, as JSON."""
    changes: list[Change] = []
    for name, checksum in _stage(version, _staging(version)).items():
        live = _home() / "live" / name
        action = "add" if not live.exists() else "keep" if _sha256(live.read_bytes()) == checksum else "change"
        changes.append(Change(path=name, action=action, sha256=checksum))
    return _PLAN.dump_python(changes, mode="json")


def _apply(version: str, approved: dict[str, str]) -> int:
    """The approved files are live, each swapped in whole; returns how many."""
    _home().mkdir(parents=True, exist_ok=True)
    # Staged anew: the person may have taken days, the worker that resumes may be another machine, and another
    # call for the same version may discard the staged plan meanwhile.
    with tempfile.TemporaryDirectory(prefix="apply-", dir=_home()) as folder:
        if _stage(version, Path(folder)) != approved:
            raise ToolError(f"Release {version} is no longer what was approved; nothing was deployed. Plan it again.")
        for name in approved:
            live = _home() / "live" / name
            live.parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).replace(live)
    return len(approved)


def _discard(version: str) -> None:
    shutil.rmtree(_staging(version), ignore_errors=True)


def _question(version: str, changes: list[Change]) -> str:
    counts = Counter(change.action for change in changes)
    lines = [f"  {change.action:<6} {change.path}  sha256 {change.sha256[:12]}" for change in changes]
    summary = f"{counts['add']} to add, {counts['change']} to change, {counts['keep']} to keep"
    return "\n".join([f"Deploy release {version}? {summary}:", *lines])


async def deploy_release(
    version: Annotated[str, Field(pattern=r"^\d+(\.\d+){0,3}(-[0-9A-Za-z]+)?$", max_length=40)],
    ctx: Context,
) -> Release:
    """Deploy a release of the sample site after a person approved its change plan.

    Stages the release, compares it file by file with what is live, shows a person the plan and waits for the decision,
    however long that takes. Approved, exactly the planned files go live; refused, nothing changes. Either way the
    result says in words what happened.

    Args:
        version: The release, for instance 1.4.0 or 2.0-rc1.
    """
    # A step, so that a resumed run shows and deploys the plan the person saw, whatever went live meanwhile.
    changes = _PLAN.validate_python(await mcptasks.step("plan", _plan, version))
    await ctx.report_progress(1, 3, f"planned {len(changes)} files, waiting for approval")
    verdict = await ask_approval(ctx, _question(version, changes))
    if not verdict.approved:
        _discard(version)
        message = f"The person {verdict.words}; release {version} was not deployed and nothing changed."
        return Release(version=version, deployed=False, message=message, note=verdict.note, changes=changes)
    await ctx.report_progress(2, 3, "approved, deploying")
    count = await mcptasks.step("apply", _apply, version, {change.path: change.sha256 for change in changes})
    _discard(version)
    await ctx.report_progress(3, 3, "deployed")
    message = f"The person approved; release {version} is live with {count} files."
    return Release(version=version, deployed=True, message=message, note=verdict.note, changes=changes)
