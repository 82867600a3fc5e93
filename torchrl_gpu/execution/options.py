"""Names of the ways to execute a run, for settings that are checked before torch is imported."""

from typing import Literal

PrecisionName = Literal["fp32", "tf32", "bf16", "fp16"]
PrecisionMode = Literal["auto", PrecisionName]
Compilation = Literal["off", "default", "max-autotune"]
CompileMode = Literal["auto", Compilation]
GraphMode = Literal["auto", "off", "on"]
ProductMode = Literal["auto", "torch"]
Library = Literal["torch", "onednn"]
