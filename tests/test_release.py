"""The release: one version, one range of every package that its files name, types, contents."""

import importlib.metadata
import re
from pathlib import Path

import pytest

from torchrl_gpu.doctor.findings import find

REPOSITORY = Path(__file__).parent.parent
PROJECT = (REPOSITORY / "pyproject.toml").read_text()
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()
INSTALL = (REPOSITORY / "docs" / "install.md").read_text()
DEVICES = (REPOSITORY / "docs" / "devices.md").read_text()

VERSION = re.findall(r'^version = "(.+?)"', PROJECT, re.MULTILINE)[0]
PYTHONS = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
TORCH = re.findall(r'"torch(>=.+?)"', PROJECT)[0]


def test_changelog_and_docs_name_the_version_of_the_release() -> None:
    changelog = (REPOSITORY / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (\S+) - \d{4}-\d\d-\d\d$", changelog, re.MULTILINE)[0] == VERSION
    assert {*re.findall(r"torchrl_gpu-([\d.]+)-py3", INSTALL)} == {VERSION}


def test_the_classifiers_name_the_pythons_of_the_release() -> None:
    first, after = re.findall(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', PROJECT)[0]
    assert [f"3.{minor}" for minor in range(int(first), int(after))] == PYTHONS


@pytest.mark.parametrize("package", ["agents", "envs", "torchrl_gpu", "trainers"])
def test_every_package_of_the_release_has_type_information(package: str) -> None:
    assert (REPOSITORY / package / "py.typed").exists()


def test_the_images_of_the_release_have_versions_that_the_package_takes() -> None:
    wanted = re.findall(r'"torch(?:\[.+?\])?(>=.+?)"', DOCKERFILE)
    assert wanted == [TORCH] * 3
    assert {*re.findall(r'"torch(>=.+?)"', INSTALL)} == {TORCH}
    assert re.findall(r"^FROM python:(3\.\d+)-", DOCKERFILE, re.MULTILINE)[0] in PYTHONS


def test_the_images_of_the_release_take_pytorch_from_where_the_docs_do() -> None:
    indices = re.findall(r"--index-url (\S+)", DOCKERFILE)
    documented = {*re.findall(r"--index-url (\S+)", DEVICES + INSTALL)}
    assert len(indices) == 3
    assert {*indices} <= documented


def test_the_images_of_the_release_are_built_from_files_that_there_are() -> None:
    needed = re.findall(r"^!(\S+)$", (REPOSITORY / ".dockerignore").read_text(), re.MULTILINE)
    packages = re.findall(r"^include = \[(.+)\]$", PROJECT, re.MULTILINE)[0]
    assert {name.strip('" *') for name in packages.split(",")} <= {*needed}
    assert all((REPOSITORY / name).exists() for name in needed)


def extras_of_the_release() -> list[str]:
    section = re.findall(r"^\[project\.optional-dependencies\]\n(.*?)^\[", PROJECT, re.M | re.S)[0]
    return re.findall(r"^(\w+) = ", section, re.MULTILINE)


def test_the_docs_explain_every_extra_of_the_release() -> None:
    extras = extras_of_the_release()
    rows = [row.partition("|")[0] for row in re.findall(r"^\| (`.+)$", INSTALL, re.MULTILINE)]
    assert sorted(re.findall(r"`(\w+)`", "".join(rows))) == sorted(extras)


def test_the_doctor_names_every_extra_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name in ("torchrl", "tensordict"):
            return "1.0"
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    named = re.findall(r"not installed \(extra (\w+)\)", "".join(find().system.values()))
    development = ["test", "benchmark", "peers", "docs", "dev"]
    assert sorted([*named, *development, "box2d"]) == sorted(extras_of_the_release())
