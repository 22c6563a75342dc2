"""One error type a stage. Each speaks to the author of the kernel: where, what was expected, what was found, one hint."""


class MoapipeError(Exception):
    """Base of every error that a user can cause; the command line prints it as one message, without a traceback.

    `stage` names the stage, `where` the file, definition or key, `hint` the one thing to try next.
    """

    stage = "moapipe"

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message, self.where, self.hint = message, where, hint

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f"\n  hint: {self.hint}" if self.hint else ""
        return f"{self.stage}: {place}{self.message}{advice}"


class AlgebraError(MoapipeError):
    """Shapes that do not conform, an unknown operator, a law that does not apply."""

    stage = "algebra"


class LiftError(MoapipeError):
    """A lift that is not legal here, or that matches nothing; names the array and the axis."""

    stage = "lift"


class TargetError(MoapipeError):
    """An operational normal form that a language cannot express."""

    stage = "target"


class ConfigError(MoapipeError):
    """An experiment, machine or kernel file that does not say what it must."""

    stage = "config"


class LabError(MoapipeError):
    """A build, a validation or a measurement that failed."""

    stage = "lab"


class MachineError(MoapipeError):
    """What the machine did to a job, not what the job is: a full disk, a process that somebody killed. It is no result, nothing is
    written down, and the same command tries again."""

    stage = "machine"


class RecordError(MoapipeError):
    """A dataset or an archive that is incomplete, damaged or mixed."""

    stage = "record"
