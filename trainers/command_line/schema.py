"""Schema of the general settings: those of every run, with any agent and environment."""

from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_type_hints

from pydantic import BeforeValidator, Field

from torchrl_gpu.arguments import CheckedFields
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.options import CompileMode, GraphMode, PrecisionMode, ProductMode

Mode = Literal["train", "eval", "demo", "record", "export", "tune"]

# Marks a setting that is saved with a run, and restored from its checkpoints.
_SAVED: Final = "saved"


def _as_kind(device: Any) -> Any:
    if not isinstance(device, str):
        raise ValueError("write auto, cpu or another kind of device, as in cuda or cuda:1")
    return device


class GeneralSettings(CheckedFields):
    """General settings: name, type, range, description and default of each.

    Help text, checks, defaults and the settings in a checkpoint come from this class.

    Args:
        mode: train, eval to evaluate a policy, demo to film one, record to write its episodes as a
            dataset, export to write it as ONNX and torch.export files, or tune to search settings
            of agent, environment and trainer.
        device: compute device: auto, cuda, rocm, xpu, mps, directml or cpu, or one of several, as
            in cuda:1; auto picks the first one available.
        devices: devices that train together, one process each: a number, all, or indices as in
            [0,2]; None for one. env.num_envs, agent.batch_size, frames and intervals are those of
            all processes together. device=cpu takes one process per core at most.
        device_memory_limit: memory of the device for this run, as a fraction (0.5) or an amount
            (8GiB, 512MiB); None for no limit. Torch enforces it on cuda, rocm, xpu and mps;
            everywhere, replays and simulators that exceed it are refused.
        precision: number format of matrix products and convolutions in learning: fp32, tf32, bf16
            or fp16; parameters, losses and distributions are float32 in all of them. auto for
            bf16 in compiled updates on a CPU with instructions for it, and fp32 otherwise.
        compile: compile the losses of the agent and their gradients: off, default, or max-autotune,
            which searches for the fastest kernels; the first update takes from seconds to a minute.
            auto for default on a CPU in runs whose batches have at least 7.5 million transitions,
            else off.
        graphs: off, or on to replay policies, draws of batches and updates as captured graphs, for
            which the host queues one piece of work instead of one for each kernel; for cuda, rocm
            and xpu. auto for on where that is known to be faster: on cuda, for the agents and
            encoders of this library.
        products: library of float32 matrix products on a CPU: auto for oneDNN where the first
            update finds it faster, as on AMD processors with AVX-512; torch for PyTorch's own.
        observation_keys: observations that the agent receives, as in [observation]; None for all.
        checkpoint: run folder or checkpoint file to resume, evaluate, film, record or export;
            pretrained:NAME, as in pretrained:fanuc/sac, for a policy of the library.
        policy: folder of an exported policy to evaluate or film.
        resume: auto to go on with the newest run of the same settings, or to begin one if there is
            none, so that a job that is queued anew is one unchanged command; a run that has ended
            is left as it is.
        trust: your packages whose classes a checkpoint may name, as in my_robots or
            [my_robots,my_envs]; importing them runs their code.
        runs: folder of all runs; each run writes to runs/<env>/<agent>/<time>.
        viewer: web to show the policy live in the browser, beside a training or instead of a film;
            off for no viewer.
        viewer_host: name or address of the network interface that serves the viewer; localhost for
            browsers on this machine alone, 0.0.0.0 for any.
        viewer_port: port of the viewer; 0 for a free one.

    Raises:
        ConfigurationError: a value has the wrong type or lies outside its range.
    """

    mode: Mode = "train"
    seed: Annotated[
        int, _SAVED, Field(ge=0, lt=2**31, description="seed of all random numbers")
    ] = 0
    device: Annotated[str, BeforeValidator(_as_kind)] = "auto"
    devices: (
        Annotated[int, Field(ge=1)]
        | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
        | Literal["all"]
        | None
    ) = None
    device_memory_limit: int | float | str | None = None
    threads: Annotated[
        int | None,
        Field(
            ge=1,
            le=1024,
            description="number of CPU threads of PyTorch; None for one per core. More than one "
            "helps networks from 256 wide on, and images, if cores are free",
        ),
    ] = 1
    precision: Annotated[PrecisionMode, _SAVED] = "auto"
    compile: Annotated[CompileMode, _SAVED] = "auto"
    graphs: Annotated[GraphMode, _SAVED] = "auto"
    products: Annotated[ProductMode, _SAVED] = "auto"
    observation_keys: Annotated[Annotated[list[str], Field(min_length=1)] | None, _SAVED] = None
    checkpoint: Path | None = None
    policy: Path | None = None
    resume: Literal["auto"] | None = None
    trust: Annotated[
        tuple[Annotated[str, Field(pattern=r"^\w+(\.\w+)*$")], ...],
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    ] = ()
    runs: Path = Path("runs")
    viewer: Literal["web", "off"] = "off"
    viewer_host: str = "localhost"
    viewer_port: Annotated[int, Field(ge=0, lt=2**16)] = 8080

    def __post_init__(self) -> None:
        if self.resume is not None and self.checkpoint is not None:
            raise ConfigurationError(
                f"resume={self.resume} finds the run by its settings; leave it out, or leave out "
                f"checkpoint={self.checkpoint}"
            )
        if self.resume is not None and self.mode != "train":
            instead = "goes on with its study" if self.mode == "tune" else "takes checkpoint=..."
            raise ConfigurationError(
                f"resume={self.resume}: only mode=train resumes a run; mode={self.mode} {instead}"
            )
        if self.policy is not None and self.checkpoint is not None:
            raise ConfigurationError(
                f"policy={self.policy}: leave out checkpoint={self.checkpoint}, or the policy"
            )
        if self.trust and not (self.checkpoint or self.policy or self.resume):
            raise ConfigurationError(
                f"trust={','.join(self.trust)}: only files of checkpoint=, policy= and resume= "
                "name classes to trust; leave it out"
            )
        if self.policy is not None and self.mode not in ("eval", "demo"):
            raise ConfigurationError(
                f"policy={self.policy}: only mode=eval and mode=demo run an exported policy; "
                f"mode={self.mode} takes checkpoint=..."
            )
        if self.viewer == "web" and self.mode not in ("train", "demo"):
            raise ConfigurationError(
                f"viewer=web: only mode=train and mode=demo have a viewer; mode={self.mode} does "
                "without"
            )
        if self.devices is not None and self.mode != "train":
            raise ConfigurationError(
                f"devices={self.devices}: only mode=train uses several devices; leave it out"
            )

    @classmethod
    def paths(cls) -> list[str]:
        """Return the names of the settings that are paths."""
        hints = get_type_hints(cls)
        return [name for name, hint in hints.items() if Path in (hint, *get_args(hint))]

    def of_machine(self) -> dict[str, Any]:
        """Return the settings for the machine, which are not saved with a run, by name."""
        apart = {*self.saved(), *self.paths(), *self.of_viewer(), "mode", "resume", "trust"}
        return {name: value for name, value in vars(self).items() if name not in apart}

    def of_viewer(self) -> dict[str, Any]:
        """Return the settings of the viewer, which change nothing in a run, by name."""
        return {name: value for name, value in vars(self).items() if name.startswith("viewer")}

    def saved(self) -> dict[str, Any]:
        """Return the settings that are saved with a run, by name."""
        hints = get_type_hints(type(self), include_extras=True)
        return {n: getattr(self, n) for n, hint in hints.items() if _SAVED in get_args(hint)}
