# SPDX-License-Identifier: Apache-2.0
"""Which modules are hooked into, and by what. Every name is looked for and left alone where it is missing."""

from .phases import CHECKPOINT, EVAL, LOAD

# Most Python processes never train: what does the work is loaded when a framework is.


def _torch_optimizer(module):
    from . import torch_hooks

    torch_hooks.count_steps(module)
    _a_framework(module)


def _torch_compile(module):
    from . import torch_hooks

    torch_hooks.show_compilations(module)


def _torch_serialization(module):
    from .wrapping import wrap

    wrap(module, "save", CHECKPOINT)
    # Later on, it is data sets that are read with it.
    wrap(module, "load", LOAD, only_before_training=True)


def _deepspeed(module):
    from . import wrapping
    from .recorder import recorder

    engine = module.DeepSpeedEngine
    # Its optimizers step once for each group of parameters, and it knows better. Overflown steps count, as it counts them.
    wrapping.after(engine, "step", lambda self, *_: self.global_steps and recorder.stated(self.global_steps))
    wrapping.wrap(engine, "save_checkpoint", CHECKPOINT)
    wrapping.wrap(engine, "load_checkpoint", LOAD)


def _a_framework(_module):
    from .recorder import recorder

    recorder.framework_imported()


def _keras(module):
    from . import keras_hooks

    keras_hooks.watch(module.CallbackList)
    _a_framework(module)


def _functions(**phases):
    """A hook that shows phases around functions of the module."""

    def hook(module):
        from .wrapping import wrap

        for name, phase in phases.items():
            wrap(module, name, phase)

    return hook


def _methods(class_name, **phases):
    """A hook that shows phases around methods of a class of the module."""

    def hook(module):
        from .wrapping import wrap

        holder = getattr(module, class_name, None)
        if holder is not None:
            for name, phase in phases.items():
                wrap(holder, name, phase)

    return hook


_LIGHTNING_TRAINER = _methods(
    "Trainer", save_checkpoint=CHECKPOINT, validate=EVAL, test=EVAL, predict=EVAL, _run_sanity_check=EVAL
)
_LIGHTNING_EVALUATION = _methods("_EvaluationLoop", run=EVAL)
_ORBAX_SAVE_AND_RESTORE = {"save": CHECKPOINT, "restore": LOAD}

HOOKS = {
    "torch.optim.optimizer": _torch_optimizer,
    "torch._dynamo.callback": _torch_compile,
    "torch.serialization": _torch_serialization,
    "torch.distributed.checkpoint.state_dict_saver": _functions(
        save=CHECKPOINT, async_save=CHECKPOINT, save_state_dict=CHECKPOINT
    ),
    "torch.distributed.checkpoint.state_dict_loader": _functions(load=LOAD, load_state_dict=LOAD),
    "deepspeed.runtime.engine": _deepspeed,
    "transformers.trainer": _methods(
        "Trainer",
        evaluate=EVAL,
        predict=EVAL,
        _save_checkpoint=CHECKPOINT,
        save_model=CHECKPOINT,
        _load_from_checkpoint=LOAD,
    ),
    "accelerate.accelerator": _methods("Accelerator", save_state=CHECKPOINT, load_state=LOAD),
    "lightning.pytorch.trainer.trainer": _LIGHTNING_TRAINER,
    "pytorch_lightning.trainer.trainer": _LIGHTNING_TRAINER,
    "lightning.pytorch.loops.evaluation_loop": _LIGHTNING_EVALUATION,
    "pytorch_lightning.loops.evaluation_loop": _LIGHTNING_EVALUATION,
    "jax": _a_framework,
    "orbax.checkpoint.checkpoint_manager": _methods(
        "CheckpointManager", wait_until_finished=CHECKPOINT, **_ORBAX_SAVE_AND_RESTORE
    ),
    "orbax.checkpoint._src.checkpointers.checkpointer": _methods("Checkpointer", **_ORBAX_SAVE_AND_RESTORE),
    "orbax.checkpoint._src.checkpointers.async_checkpointer": _methods("AsyncCheckpointer", **_ORBAX_SAVE_AND_RESTORE),
    "keras.src.callbacks.callback_list": _keras,
    "keras.src.callbacks": _keras,
    "keras.callbacks": _keras,
}
