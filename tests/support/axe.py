"""axe-core, which looks for barriers on a page; fetched once with npm, version and hash pinned."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Browser

VERSION = "4.14.1"
SHA512 = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
_RUN = """const done = arguments[0];
axe.run(document, {resultTypes: ["violations"]}).then(
  (result) => done(result.violations.map((v) => [v.id, ...v.nodes.map((node) => node.html.slice(0, 200))])),
  (error) => done([["axe failed", String(error)]]));"""


def axe_script(folder: Path) -> str:
    """axe-core's source, kept in `folder`; skips the test where npm is not there or reaches no registry."""
    archive = folder / f"axe-core-{VERSION}.tgz"
    if not archive.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("axe-core comes from npm, which is not here (Debian package: npm)")
        command = [npm, "pack", "--silent", f"axe-core@{VERSION}"]
        packed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
        if packed.returncode:
            pytest.skip(f"npm cannot fetch axe-core: {packed.stderr.strip().splitlines()[-1:]}")
    found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    assert found == SHA512, f"{archive} is not axe-core {VERSION}"
    with tarfile.open(archive) as files:
        member = files.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


def violations(browser: Browser, script: str) -> list[list[Any]]:
    """Of the open page: the rule, then the elements that break it."""
    browser.js(script)
    return list(browser.driver.execute_async_script(_RUN))
