# SPDX-License-Identifier: Apache-2.0
"""What a process can be busy with, as the progress page numbers it."""

INIT, TRAIN, CHECKPOINT, EVAL, LOAD, COMPILE = range(6)
