"""The one exception family of Plait: each class names a situation, each message carries the offending value."""


class PlaitError(Exception):
    """Anything that Plait refuses or cannot do; the message is one sentence for the user."""


class SpecError(PlaitError):
    """A YAML file is wrong; ``problems`` holds every fault of the file, one line each, as file:line:column."""

    def __init__(self, problems: "tuple[str, ...]") -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class PlacementImpossible(PlaitError):
    """No set of devices of this cluster can ever hold the task."""


class DeviceLost(PlaitError):
    """A device, its worker or its node went away."""


class ContractMismatch(PlaitError):
    """A worker's model, data plan or wire format differs from that of the group; the message names the first field."""


class MembershipLost(PlaitError):
    """This worker is no longer part of the group and cannot go on by itself."""


class ControllerUnreachable(PlaitError):
    """The controller does not answer at the address that was tried."""
