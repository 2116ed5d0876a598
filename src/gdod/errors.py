"""What the library raises and warns about."""


class InputError(ValueError):
    """Something was passed that cannot be used; nothing has been written to any `.grad`."""


class NonFiniteInputError(InputError):
    """Losses, or their gradients, are infinite or not a number; nothing has been written to any `.grad`."""


class MixingWarning(UserWarning):
    """Examples of a batch influence each other's losses, so that rows need a backward pass each."""
