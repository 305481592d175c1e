# SPDX-License-Identifier: Apache-2.0
"""What a training program can say to Steadfast, and ask it.

    import steadfast

    start = steadfast.resume_step() or 0
    for step in range(start + 1, steps + 1):
        loss = train(step)
        steadfast.progress(step, loss=loss)
        if steadfast.should_checkpoint():
            with steadfast.checkpointing():
                path = save(step)
            steadfast.checkpoint_done(step, path)

None of it is needed: Steadfast sees the steps of PyTorch's optimizers, checkpoints and evaluations by itself. Where no
supervisor runs, everything here does nothing. Nothing here waits, but for
`checkpoint_done` where the job is about to be stopped, and nothing raises but for arguments of a wrong type.

Pure Python 3.8 or newer, without dependencies.
"""

import os
from typing import Callable, Optional, Type, TypeVar, Union

from _steadfast import guard as _guard
from _steadfast import phases as _phases
from _steadfast.recorder import recorder as _recorder

__all__ = [
    "Phase",
    "checkpoint_done",
    "checkpointing",
    "compiling",
    "evaluating",
    "generation",
    "loading",
    "progress",
    "resume_path",
    "resume_step",
    "should_checkpoint",
    "supervised",
]

_Function = TypeVar("_Function", bound=Callable[..., object])


def supervised() -> bool:
    """Whether a supervisor reads what this program reports."""
    return _guard.attempt("making the page", _recorder.page) is not None


def generation() -> int:
    """How many times the job's workers have been started, this time included; 0 without a supervisor."""
    return _number("STEADFAST_GENERATION") or 0


def progress(step: int, *, loss: Optional[float] = None) -> None:
    """Reports that `step` is done, counted from the beginning of the training and not of this process.

    From the first call on, these are the steps that count; optimizers are no longer counted. Call it on every rank, at
    every step (a call takes about a microsecond). A `loss` that is still on a GPU makes the call wait for it: report it
    now and then.
    """
    step = int(step)
    loss = None if loss is None else float(loss)
    _guard.attempt("reporting progress", _recorder.stated, step, loss)


def should_checkpoint() -> bool:
    """Whether the supervisor wants a checkpoint at this step. All ranks are told at the same step.

    Ask after `progress`, on every rank and at every step: a program that never asks is never asked to save. It stays true
    until `checkpoint_done`.
    """
    return bool(_guard.attempt("asking for a checkpoint's time", _recorder.should_checkpoint))


def checkpoint_done(step: int, path: Union[str, "os.PathLike[str]", None] = None) -> None:
    """Reports that this rank's part of the checkpoint of `step` is written, completely and to stable storage.

    Where the checkpoint was asked for because the workers are going to be stopped, this waits until they are (and no longer
    than the supervisor would): a step made meanwhile would be lost. Signals are handled as always.
    """
    step = int(step)
    path = None if path is None else os.fspath(path)
    _guard.attempt("reporting a checkpoint", _recorder.checkpoint_done, step, path)


def resume_path() -> Optional[str]:
    """The checkpoint to resume from: None to start from the beginning, or to look for one as without a supervisor."""
    return os.environ.get("STEADFAST_RESUME_PATH") or None


def resume_step() -> Optional[int]:
    """The step of the checkpoint to resume from; None where `resume_path` gives none."""
    return _number("STEADFAST_RESUME_STEP")


class Phase:
    """Something other than training that the program does for a while: `with steadfast.evaluating(): ...`.

    The supervisor then does not take the missing steps for a hang. Phases can be nested. Only those of the thread that
    trains count. A Phase is also a decorator.
    """

    __slots__ = ("_entered", "_phase")

    def __init__(self, phase: int) -> None:
        self._phase = phase
        self._entered = 0

    def __enter__(self) -> "Phase":
        if _recorder.enter(self._phase):
            self._entered += 1
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], value: Optional[BaseException], trace: Optional[object]
    ) -> None:
        if self._entered:
            self._entered -= 1
            _recorder.leave(self._phase)

    def __call__(self, function: _Function) -> _Function:
        import functools

        phase = self._phase

        @functools.wraps(function)
        def decorated(*args: object, **kwargs: object) -> object:
            with Phase(phase):
                return function(*args, **kwargs)

        return decorated  # type: ignore[return-value]


def checkpointing() -> Phase:
    """A checkpoint is written."""
    return Phase(_phases.CHECKPOINT)


def evaluating() -> Phase:
    """The model is evaluated."""
    return Phase(_phases.EVAL)


def loading() -> Phase:
    """A checkpoint, or data, is read."""
    return Phase(_phases.LOAD)


def compiling() -> Phase:
    """The program is compiled, or warms up otherwise."""
    return Phase(_phases.COMPILE)


def _number(name: str) -> Optional[int]:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return None
