"""StoredState: what a version has of this rank, where as many ranks stored it as restore it."""

import logging
from typing import Any

import unreft
from unreft.torch.captured_state import CapturedState
from unreft.torch.device_extras import DeviceExtras
from unreft.torch.extras import Extras
from unreft.torch.mesh_place import Place, read_place
from unreft.torch.restored_memory import read_aside
from unreft.torch.shards import Bound

class StoredState:
    """`tensors` as this rank knows them by name, `record` what its extras were made from."""

    reshaped_from: int | None = None
    level = logging.WARNING

    def __init__(
        self,
        client: Any,
        decision: unreft.Decision,
        state: CapturedState,
        aside: DeviceExtras,
        extras: Extras,
    ):
        self.tensors = [tensor for tensor in decision.tensors if not aside.is_ours(tensor)]
        subject = f"step {decision.step}: nothing but tensors is stored of this rank"
        self.record = read_record(client, decision, decision.extras, subject, aside, extras)
        self.summary = self._said_of_mesh(decision.step, state.place)

    def to_read(self, bounds: list[Bound]) -> list[Bound]:
        """The live tensors, with the names by which they are read."""
        return bounds

    def _said_of_mesh(self, step: int, place: Place | None) -> str:
        """Nothing, where the ranks have the places in a mesh that they had."""
        record = self.record.get("mesh")
        if record is None or place is None or read_place(record).wide() == place.wide():
            return ""
        return (
            f"step {step} of a mesh of {read_place(record)} is restored by as many ranks in one of "
            f"{place}: each goes on with the random streams, and all that is its own, of its number"
        )


def read_record(
    client: Any,
    decision: unreft.Decision,
    data: bytes | None,
    without: str,
    aside: DeviceExtras,
    extras: Extras,
) -> dict[str, Any]:
    """One rank's record from its extras, `data`; `without`: the error where there are none."""
    if data is None:
        raise unreft.DataLoss(without)
    return extras.loads(data, read_aside(client, aside, decision))
