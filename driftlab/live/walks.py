"""All matrices of one checkpoint, again and again for new checkpoints of the same base."""

from typing import Any

from driftlab.checkpoints.reading import prefetched, to_read
from driftlab.checkpoints.sequence import CheckpointSequence
from driftlab.checkpoints.tracks import Track
from driftlab.crew import Crew
from driftlab.devices import exact_math, resolve_device
from driftlab.errors import CheckpointError
from driftlab.rows import measure_track
from driftlab.scan import require_matrices
from driftlab.spectral.basis import bad_values
from driftlab.spectral.decomposition import Decomposition, decompose
from driftlab.spectral.measures import Plan

KEEP = 4 << 30


class Walker:
    """Measures checkpoints one by one, keeping the base's decompositions as far as memory allows.

    Parameters
    ----------
    plan : Plan
        Which measures.
    include, exclude : list of str, optional
        Regular expressions on tensor names.
    device : str
        Where to compute.
    keep : int
        Bytes of decompositions that are kept from one checkpoint to the next; the others are made again each time.
    """

    def __init__(
        self, plan: Plan, include: list[str] | None, exclude: list[str] | None, device: str, keep: int = KEEP
    ) -> None:
        self.plan = plan
        self.include, self.exclude = include, exclude
        self.device = resolve_device(device)
        self.left = keep
        self.kept: dict[str, Decomposition] = {}

    def rows(self, sequence: CheckpointSequence) -> list[dict[str, Any]]:
        """Return the rows of all checkpoints of a sequence, for one base always the same as :func:`driftlab.scan.scan`.

        Raises
        ------
        UsageError
            If an expression is wrong or leaves nothing.
        CheckpointError
            If no tensor is a matrix that can be measured.
        """
        tracks = sequence.tracks(self.include, self.exclude)
        require_matrices(tracks)
        rows: list[dict[str, Any]] = []
        with exact_math(), Crew(self.device) as crew:
            for track, read in prefetched(tracks):
                rows += measure_track(track, read, self.plan, self.device, crew, self._decomposition(track))
        return rows

    def _decomposition(self, track: Track) -> Decomposition | None:
        """Return the decomposition of a track's base if it is kept or can be; None leaves it to the measuring."""
        if track.name in self.kept or track.base is None or track.left_out or not to_read(track):
            return self.kept.get(track.name)
        m, n = track.base.shape
        size = 8 * min(m, n) * (m + n)
        if size > self.left:
            return None
        try:
            base = track.base.read()
        except CheckpointError:
            return None  # its rows will say so
        if bad_values(base):
            return None
        self.left -= size
        self.kept[track.name] = decompose(base.to(self.device).double())
        return self.kept[track.name]
