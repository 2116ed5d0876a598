"""The learning rate in each step, as a share of its full value. It depends on the step alone."""

from math import cos, pi

from gdod.training.config import ScheduleConfig


def share(schedule: ScheduleConfig, step: int, total: int) -> float:
    """What step number ``step`` of ``total``, from 0 on, is made with."""
    if step < schedule.warmup:
        return (step + 1) / schedule.warmup
    after = step - schedule.warmup
    if schedule.name == "constant":
        return 1.0
    if schedule.name == "step":
        assert schedule.every is not None
        return max(schedule.floor, schedule.factor ** (after // schedule.every))
    progress = min(1.0, after / max(1, total - schedule.warmup))
    falling = (1 + cos(pi * progress)) / 2 if schedule.name == "cosine" else 1 - progress
    return schedule.floor + (1 - schedule.floor) * falling
