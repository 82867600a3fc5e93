"""The parts of a training, and a way to enclose every call that belongs to one of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import GeneratorType
from typing import Any, Final

# The calls of each part, as attributes of the trainer; `*` stands for every item.
PARTS: Final[dict[str, tuple[str, ...]]] = {
    "simulate": (
        "collector.env.reset",
        "collector.env.begin_step",
        "collector.env.step_and_maybe_reset",
    ),
    "copy": ("collector.to_host", "collector.to_device"),
    "act": ("execution.act",),
    "store": ("experience.store", "experience.learned"),
    "sample": ("experience.batches",),
    "update": ("execution.update",),
    "log": ("_log",),
    "evaluate": ("_evaluate",),
    "save": ("save",),
}


@contextmanager
def enclosed(trainer: object, part: Callable[[str], AbstractContextManager[Any]]) -> Iterator[None]:
    """Run every call of a part within a context manager, for as long as the block lasts.

    The calls are replaced on the objects that own them and put back at the end, so a training
    without this block runs none of this code.

    Args:
        trainer: trainer that owns all parts.
        part: function that returns the context manager of a part, given its name.
    """
    with ExitStack() as undo:
        for name, owner, attribute in calls_of(trainer):
            undo.callback(_replace(owner, attribute, functools.partial(part, name)))
        yield


def calls_of(trainer: object) -> Iterator[tuple[str, Any, str]]:
    """Yield the part, the owner and the attribute of every call of a trainer."""
    for name, paths in PARTS.items():
        for path in paths:
            *steps, attribute = path.split(".")
            owners = [trainer]
            for step in steps:
                owners = (
                    [item for items in owners for item in items]  # type: ignore[attr-defined]
                    if step == "*"
                    else [getattr(owner, step) for owner in owners]
                )
            for owner in owners:
                yield name, owner, attribute


def _replace(
    owner: Any, attribute: str, part: Callable[[], AbstractContextManager[Any]]
) -> Callable[[], None]:
    """Enclose one call and return the function that puts the original back."""
    is_own = attribute in vars(owner)
    original = getattr(owner, attribute)

    def enclosing(*args: Any, **kwargs: Any) -> Any:
        with part():
            result = original(*args, **kwargs)
        return _items(result, part) if isinstance(result, GeneratorType) else result

    setattr(owner, attribute, enclosing)
    if is_own:
        return functools.partial(setattr, owner, attribute, original)
    return functools.partial(delattr, owner, attribute)


def _items(generator: Iterator[Any], part: Callable[[], AbstractContextManager[Any]]) -> Any:
    """Yield the items of a generator, each of them made within the part."""
    while True:
        with part():
            try:
                item = next(generator)
            except StopIteration:
                return
        yield item
