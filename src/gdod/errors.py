"""The exceptions that the library raises and the warnings that it gives."""


class InputError(ValueError):
    """An input cannot be used; the message says why and what to do. No `.grad` has been written to."""


class NonFiniteInputError(InputError):
    """Losses or their gradients are infinite or not a number. No `.grad` has been written to."""


class SlowPathWarning(UserWarning):
    """Some parameters need a backward pass for each row: the result is exact, the step slower."""


class MixingWarning(SlowPathWarning):
    """Examples of a batch influence each other's losses, so that each row needs a backward pass of its own."""
