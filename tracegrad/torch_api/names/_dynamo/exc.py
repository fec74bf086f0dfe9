"""torch._dynamo.exc: errors that are never raised here."""


class TorchDynamoException(RuntimeError):
    """An error of torch's compiler."""


class Unsupported(TorchDynamoException):
    """What it cannot compile."""
