"""Columns of LeRobot's Parquet files: conversion of arrays, and descriptions."""

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[Any]

# Numbers of channels that a PNG can have here: grey, colour, and colour with transparency.
_CHANNELS = (1, 3, 4)


class Column:
    """Shape, dtype and statistics of the values of a column.

    It is made for rows of given values `[T, ...]`; images are uint8 `[T, C, H, W]`.
    """

    def __init__(self, values: Array) -> None:
        self.is_image = is_image(values)
        self._shape, self._dtype = list(values.shape[1:]) or [1], str(values.dtype)
        self._count = 0
        self._min: Any = np.inf
        self._max: Any = -np.inf
        self._sum: Any = 0.0
        self._squares: Any = 0.0

    def add(self, values: Array) -> None:
        """Add values `[T, ...]`, T at least 1, to the statistics."""
        numbers = values.astype(np.float64).reshape(len(values), *self._shape)
        if self.is_image:
            numbers = numbers.transpose(0, 2, 3, 1).reshape(-1, self._shape[0], 1, 1) / 255.0
        self._count += len(values)
        self._min = np.minimum(self._min, numbers.min(0))
        self._max = np.maximum(self._max, numbers.max(0))
        # Of an image, the mean over its pixels.
        pixels = len(numbers) / len(values)
        self._sum = self._sum + numbers.sum(0) / pixels
        self._squares = self._squares + (numbers**2).sum(0) / pixels

    def statistics(self) -> dict[str, Any]:
        """Return minimum, maximum, mean and standard deviation, of images by channel, in [0, 1]."""
        mean = self._sum / self._count
        std = np.sqrt(np.maximum(self._squares / self._count - mean**2, 0.0))
        found = {"min": self._min, "max": self._max, "mean": mean, "std": std}
        return {**{name: x.tolist() for name, x in found.items()}, "count": [self._count]}

    def feature(self) -> dict[str, Any]:
        """Return the description of the column in `info.json`."""
        if self.is_image:
            channels, height, width = self._shape
            names = ["height", "width", "channels"]
            return {"dtype": "image", "shape": [height, width, channels], "names": names}
        return {"dtype": self._dtype, "shape": self._shape, "names": None}

    def hub_feature(self) -> dict[str, Any]:
        """Return the description by which the library `datasets` reads the column."""
        if self.is_image:
            return {"_type": "Image"}
        value = {"dtype": self._dtype, "_type": "Value"}
        if self._shape == [1]:
            return value
        if len(self._shape) == 1:
            return {"feature": value, "length": self._shape[0], "_type": "Sequence"}
        kind = f"Array{len(self._shape)}D"
        return {"shape": self._shape, "dtype": self._dtype, "_type": kind}


def is_image(values: Array) -> bool:
    """Return whether values `[T, ...]` are images that PNG can hold."""
    return values.dtype == np.uint8 and values.ndim == 4 and values.shape[1] in _CHANNELS


def table_of(columns: Mapping[str, Array], hub: Mapping[str, Any] | None = None) -> pa.Table:
    """Return arrays `[T, ...]` by name as a table of T rows.

    `hub` holds the `Column.hub_feature` of every column; None leaves it out.
    """
    table = pa.table({name: _to_arrow(values) for name, values in columns.items()})
    if hub is None:
        return table
    described = json.dumps({"info": {"features": hub}})
    return table.replace_schema_metadata({"huggingface": described})


def array_of(table: pa.Table, name: str, shape: list[int]) -> Array:
    """Return a column as a new array `[T, *shape]`; images as uint8 `[T, C, H, W]`."""
    column = table[name].combine_chunks()
    if pa.types.is_struct(column.type):
        pictures = [_decoded(each["bytes"]) for each in column.to_pylist()]
        return np.stack(pictures) if pictures else np.empty((0, 0, 0, 0), np.uint8)
    if isinstance(column.type, pa.BaseExtensionType):  # of the library `datasets`, if imported
        column = column.storage
    while not pa.types.is_primitive(column.type):
        column = column.flatten()
    return np.array(column.to_numpy(zero_copy_only=False)).reshape(len(table), *shape)


def tasks_table(names: list[str]) -> pa.Table:
    """Return the table of tasks, whose index in pandas is the name of the task."""
    index, number = "__index_level_0__", "task_index"
    columns = (number, number, "int64", "int64"), (None, index, "unicode", "object")
    keys = ("name", "field_name", "pandas_type", "numpy_type")
    described = {
        "index_columns": [index],
        "column_indexes": [],
        "columns": [{**dict(zip(keys, each, strict=True)), "metadata": None} for each in columns],
        "pandas_version": "2.0.0",
    }
    table = pa.table({number: pa.array(range(len(names)), pa.int64()), index: names})
    return table.replace_schema_metadata({"pandas": json.dumps(described)})


def _to_arrow(values: Array) -> pa.Array:
    if is_image(values):
        pictures = [{"bytes": _encoded(each), "path": None} for each in values]
        return pa.array(pictures, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    shape = values.shape[1:]
    column = pa.array(np.ascontiguousarray(values).reshape(-1))
    if shape in ((), (1,)):
        return column
    if len(shape) == 1:
        return pa.FixedSizeListArray.from_arrays(column, shape[0])
    for size in reversed(shape):
        offsets = np.arange(0, len(column) + 1, size, dtype=np.int32)
        column = pa.ListArray.from_arrays(pa.array(offsets), column)
    return column


def _encoded(picture: Array) -> bytes:
    """Return an image `[C, H, W]` as PNG, without loss."""
    buffer = io.BytesIO()
    channels_last = np.ascontiguousarray(picture.transpose(1, 2, 0))
    image = channels_last.squeeze(2) if len(picture) == 1 else channels_last
    Image.fromarray(image).save(buffer, format="PNG")
    return buffer.getvalue()


def _decoded(png: bytes) -> Array:
    """Return an image `[C, H, W]` from its file."""
    try:
        picture = np.array(Image.open(io.BytesIO(png)))
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from None
    return picture[None] if picture.ndim == 2 else picture.transpose(2, 0, 1)
