"""Argument checks against the annotations of a constructor.

A constructor is the schema of its component: `Annotated[int, Field(ge=1, description="...")]`
states type, range and meaning once, for the reader, for the constructor itself and for the command
line, which can therefore explain a setting, and reject an invalid one before anything is built. The
docstring's `Args:` describes an argument that no other constructor has, or adds to the meaning.
"""

import contextlib
import difflib
import functools
import inspect
import math
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import (
    BeforeValidator,
    ConfigDict,
    InstanceOf,
    TypeAdapter,
    ValidationError,
    WrapValidator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from typing_extensions import dataclass_transform  # in typing from Python 3.11 on

from torchrl_gpu.errors import ConfigurationError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Note = TypeVar("Note")


def _ascending(limits: Any, convert: Callable[[Any], tuple[float, float]]) -> tuple[float, float]:
    with contextlib.suppress(ValidationError):
        low, high = convert(limits)
        if 0 < low <= high < math.inf:
            return low, high
    raise ValueError("write [lowest, highest], above 0")


# End of the first clause of a description.
_FIRST_END = r"(?=;|\. [A-Z])"

# Lowest and highest value of a random factor.
Range = Annotated[tuple[float, float], WrapValidator(_ascending)]

# Class method of a component: takes all its settings by name, without those that are components,
# and refuses those that exclude or need each other. Its constructor calls it, too.
COMBINATION = "check_combination"


@dataclass(frozen=True)
class Search:
    """Values of a setting that a search of settings tries; stands in an annotation beside `Field`.

    Without `low`, `high` is a multiple: from 1 / `high` to `high` times the value of the command.
    """

    low: float | None = None  # lowest number to try
    high: float | None = None  # highest number to try
    log: bool = False  # draw numbers evenly on a logarithmic scale
    choices: tuple[Any, ...] = ()  # values to try, instead of a range


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(field,))
class CheckedFields:
    """Base of classes whose annotated attributes are the arguments of their constructors.

    Each derived class is a dataclass with keyword arguments, which `checked` checks. It inherits
    the attributes of its bases and may state other defaults and types for them. An annotated
    attribute that is not an argument is a `ClassVar` or `field(init=False)`.

    An argument whose default is an instance of such a class is a component with settings, as in
    `agent.encoder.channels`: those of the class of the instance unless `_target_` names another.

    Raises:
        TypeError: (when a class is derived) an attribute that is an argument has no annotation.
    """

    def __init_subclass__(cls) -> None:
        """Build the constructor from the annotated attributes, unless the class defines one."""
        super().__init_subclass__()
        generates = "__init__" not in vars(cls)
        dataclass(eq=False, repr=False, kw_only=True)(cls)
        for each in fields(cls):  # type: ignore[arg-type]
            # The constructor would replace a default without annotation by that of the base.
            if each.init and vars(cls).get(each.name, each.default) is not each.default:
                raise TypeError(
                    f"{cls.__name__}.{each.name}: another default needs the annotation of the base"
                )
        if generates:
            constructor: Any = cls.__init__
            constructor.fields_of = cls
            cls.__init__ = checked(constructor)  # type: ignore[method-assign]


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a constructor so that its arguments are checked against its annotations.

    Raises:
        ConfigurationError: (when the decorated function is called) an argument has the wrong type
            or lies outside its range. Values are converted where no information is lost: 64.0 to
            64, and the name of a device to a `torch.device`.
        TypeError: (likewise) an argument is unknown or missing.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            owner = function.__qualname__.removesuffix(".__init__")
            known = [name for name in signature.parameters if name != "self"]
            unknown = [name for name in kwargs if str(error).endswith(f"keyword argument {name!r}")]
            hint = suggest(unknown[0], known) if unknown else ""
            raise TypeError(f"{owner}: {error}{hint}") from None
        for name, value in bound.arguments.items():
            if signature.parameters[name].kind not in _VARIADIC:
                bound.arguments[name] = check_value(function, name, value)
        return function(*bound.args, **bound.kwargs)

    return wrapper


def check_value(function: Callable[..., Any], name: str, value: Any, prefix: str = "") -> Any:
    """Return `value` converted to the annotated type of the argument `name` of `function`.

    A `prefix` stands before the name in the error message, as in `env.` for `env.num_envs`.

    Raises:
        ConfigurationError: the value has the wrong type or lies outside its range.
    """
    adapter = _adapter(inspect.unwrap(function), name)
    if adapter is None:
        return value
    # Modules and TensorDicts print themselves in several lines.
    shown = type(value).__name__ if "\n" in str(value) else str(value)
    if prefix:
        shown = AS_TYPED.get(shown, shown)
    try:
        converted = adapter.validate_python(value)
    except ValidationError as error:
        reason = _reason(error.errors(), shown)
        raise ConfigurationError(f"{prefix}{name}={shown}: {reason}") from None
    if isinstance(converted, Path) and value == "":  # which would be the working directory
        raise ConfigurationError(f"{prefix}{name}=: the value is missing")
    if isinstance(value, bool) and type(converted) in (int, float):
        raise ConfigurationError(f"{prefix}{name}={shown}: input should be a number")
    return converted


def _reason(problems: Sequence[ErrorDetails], shown: str) -> str:
    """Return why a value, which messages show as `shown`, is invalid."""
    problem, place = problems[0], problems[-1]["loc"][-1:]
    match problem["type"], problem.get("ctx", {}):
        case "missing", _ if place and isinstance(place[0], int):
            return f"it takes {place[0] + 1} values"
        case "too_short", {"min_length": number}:
            return f"it takes at least {number} {'value' if number == 1 else 'values'}"
        case ("sequence_str" | "list_type", _) | ("is_instance_of", {"class": "Sequence"}):
            return f"input should be a list; write [{shown}]"
        case "path_type", _:
            return "input should be a path"
        case "value_error", {"error": error}:  # of a validator, and may begin with a name
            return str(error)
    words = problem["msg"]
    return words[0].lower() + words[1:]


def check_settings(
    component: Callable[..., Any],
    settings: Mapping[str, Any],
    group: str,
    provided: Iterable[str] = (),
    parts: Iterable[str] = (),
) -> dict[str, Any]:
    """Check the settings of one component without building it.

    Args:
        component: class whose constructor is the schema, or function that is the schema itself.
        settings: the user's settings, by argument name.
        group: name of the component's group in error messages (`agent`, `env`, `trainer`).
        provided: arguments that the program passes itself and that no setting may name.
        parts: settings that are components themselves and are checked separately.

    Returns:
        All settings of the component by name, defaults included, converted to the types of the
        constructor.

    Raises:
        ConfigurationError: a name is unknown, a value has the wrong type or range, a required
            setting is missing, or the method `check_combination` of the class refuses the settings.
    """
    constructor = constructor_of(component)
    parameters = parameters_of(component)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    own = [n for n, p in parameters.items() if p.kind not in _VARIADIC and n not in set(provided)]
    known = [name for name in own if name not in set(parts)]
    if not isinstance(settings, Mapping):
        raise ConfigurationError(f"{group}={settings}: write {group}.NAME=... for each setting")
    for name in settings:
        if name not in known and not (takes_any and name not in set(provided)):
            raise ConfigurationError(
                f"{group}.{name}: {component.__name__} has no such setting{suggest(name, own)}"
            )
    for name in known:
        if name not in settings and parameters[name].default is inspect.Parameter.empty:
            meaning = re.split(_FIRST_END, descriptions_of(component).get(name, ""), maxsplit=1)[0]
            raise ConfigurationError(
                f"{group}.{name}: {component.__name__} needs this setting"
                + (f": {meaning.replace('`', '')}" if meaning else "")
            )
    defaults = {name: parameters[name].default for name in known if name not in settings}
    values = {
        name: check_value(constructor, name, value, prefix=f"{group}.") if name in known else value
        for name, value in {**settings, **defaults}.items()
    }
    if (check := getattr(component, COMBINATION, None)) is not None:
        with contextlib.suppress(KeyError):  # the constructor of a subclass lacks a setting
            check(values)
    return values


def constructor_of(component: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function whose annotations are the schema of a class or function."""
    return inspect.unwrap(component.__init__ if inspect.isclass(component) else component)


def parameters_of(component: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function, or of the constructor of a class, by name.

    The constructor is inspected instead of the class, because a metaclass (TorchRL's environments
    have one) can hide its parameters from `inspect.signature`.
    """
    parameters = dict(inspect.signature(constructor_of(component)).parameters)
    if inspect.isclass(component):
        parameters.pop("self")
    return parameters


def annotations_of(function: Callable[..., Any], include_extras: bool = True) -> dict[str, Any]:
    """Return the annotations of the arguments of a function: see `typing.get_type_hints`."""
    # The annotations of a generated constructor refer to names in the modules of several classes.
    return get_type_hints(getattr(function, "fields_of", function), include_extras=include_extras)


def descriptions_of(component: Callable[..., Any]) -> dict[str, str]:
    """Return the meaning of each argument of a class or function that has one, by name.

    The meaning stands in the annotation of the argument or in the `Args:` section of the docstring,
    or of those of the base classes. With both, the docstring adds the particulars of the argument
    here, and follows behind a semicolon. The range of the annotation stands behind the first
    clause, as in `final learning rate, at least 0; None for no schedule`.
    """
    owners = inspect.getmro(component) if inspect.isclass(component) else (component,)
    described: dict[str, str] = {}
    for owner in reversed(owners):
        described |= _docstring_arguments(inspect.cleandoc(owner.__doc__ or ""))
    for name, hint in annotations_of(constructor_of(component)).items():
        fields = _notes_of(hint, FieldInfo)
        shared = next((each.description for each in fields if each.description), "")
        limits = next((words for each in fields if (words := _range(each))), "")
        text = "; ".join(words for words in (shared, described.get(name, "")) if words)
        if text:
            first, *rest = re.split(_FIRST_END, text, maxsplit=1)
            described[name] = "".join([first, f", {limits}" if limits else "", *rest])
    return described


def searches_of(component: Callable[..., Any]) -> dict[str, Search]:
    """Return the search space of each argument of a class or function that declares one."""
    hints = annotations_of(constructor_of(component)).items()
    return {name: notes[0] for name, hint in hints if (notes := _notes_of(hint, Search))}


def _notes_of(annotation: Any, kind: type[Note]) -> list[Note]:
    """Return the notes of a kind in an annotated type, outermost first, and in its options."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        own = [note for note in reversed(metadata) if isinstance(note, kind)]
        return own + _notes_of(inner, kind)
    if isinstance(annotation, types.UnionType) or get_origin(annotation) is Union:
        return [note for option in get_args(annotation) for note in _notes_of(option, kind)]
    return []


def _range(field: FieldInfo) -> str:
    """Return the range of a field in words, as in `at least 1`; an empty text without one."""
    words = {
        side: f"{getattr(limit, name):,}".removesuffix(".0")
        for limit in field.metadata
        for name, side in _SIDES.items()
        if hasattr(limit, name)
    }
    if words.keys() == {"at least", "at most"}:
        return f"{words['at least']} to {words['at most']}"
    return " and ".join(f"{side} {number}" for side, number in words.items())


def _docstring_arguments(docstring: str) -> dict[str, str]:
    """Return the text of each argument in the `Args:` section of a docstring."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", docstring, flags=re.M | re.S)
    if section is None:
        return {}
    entries = re.findall(r"^    (\w+): (.*?)(?=^    \w|\Z)", section[1], flags=re.M | re.S)
    return {name: " ".join(words.split()).rstrip(".") for name, words in entries}


def suggest(name: str, known: Iterable[str], places: Sequence[str] = ()) -> str:
    """Return the end of an error message on an unknown `name`: the closest known name, or all.

    `places` are names that mean the same, which take precedence.
    """
    if places:
        return f"; did you mean {' or '.join(places)}?"
    known = sorted(known)
    if not known:
        return ""
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; choose one of: {', '.join(known)}"


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


# Values of Python as they are typed in settings.
AS_TYPED = {"None": "null", "True": "true", "False": "false"}

_SIDES = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}  # of a range

_PLAIN_VALUES = (bool, int, float, str, Path)


def as_device(device: type, value: Any) -> Any:
    """Return a value as a `device` of torch, which this module must not import."""
    try:
        return device(value)
    except (RuntimeError, TypeError):
        raise ValueError("not a device of PyTorch, such as cpu or cuda:0") from None


@functools.cache
def _adapter(function: Callable[..., Any], name: str) -> TypeAdapter[Any] | None:
    """Return the validator of one argument; None for an argument without annotation."""
    annotation = annotations_of(function).get(name)
    if annotation is None:
        return None
    kind = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    # Python 3.10 takes list[int] for a type.
    if isinstance(kind, type) and get_origin(kind) is None and kind not in _PLAIN_VALUES:
        instance: Any = InstanceOf.__class_getitem__(kind)
        if (kind.__module__, kind.__name__) == ("torch", "device"):
            instance = Annotated[instance, BeforeValidator(functools.partial(as_device, kind))]
        return TypeAdapter(instance)
    # No setting is infinite; one without a limit is None.
    config = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)
    return TypeAdapter(annotation, config=config)
