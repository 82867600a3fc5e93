import shutil
import subprocess
from pathlib import Path

import pytest

from trainers.runs import versions as module
from trainers.runs.versions import versions


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commit_is_that_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            [*command, *arguments], check=True, capture_output=True
        ).stdout.decode()

    monkeypatch.setattr(module, "_ROOT", tmp_path)
    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-qm", "first")
    git("tag", "v1")
    commit = git("rev-parse", "--short=12", "HEAD").strip()
    assert versions()["commit"] == commit
    (tmp_path / "file").write_text("two")
    assert versions()["commit"] == f"{commit}-dirty"
    (tmp_path / "site-packages").mkdir()
    monkeypatch.setattr(module, "_ROOT", tmp_path / "site-packages")
    assert "commit" not in versions(), "a package in a folder of another repository"
