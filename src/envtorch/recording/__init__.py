"""Recordings: every episode of a server, written down as it happens, read and replayed later.

`create_app(..., record="recordings")` or `envtorch serve ... --record recordings` writes; `Recording.open`
reads; `replay` plays again and finds the first divergence. The format is in `envtorch.recording.format`.
"""

from envtorch.recording.compare import Comparison, Difference
from envtorch.recording.format import Fault, Fork, Header, Moment, Reset, Step, ToolCall
from envtorch.recording.reader import Episode, Recording, find_recordings
from envtorch.recording.recorder import Recorder
from envtorch.recording.replay import Divergence, Player, Replay, Way, replay

__all__ = [
    "Comparison",
    "Difference",
    "Divergence",
    "Episode",
    "Fault",
    "Fork",
    "Header",
    "Moment",
    "Player",
    "Recorder",
    "Recording",
    "Replay",
    "Reset",
    "Step",
    "ToolCall",
    "Way",
    "find_recordings",
    "replay",
]
